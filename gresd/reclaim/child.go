// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	childTimeout = 5 * time.Second
	// mostSlots keeps a child's command line short; the rest has its turn at
	// the next look.
	mostSlots = 256
	// cacheFD is where the child finds the file.
	cacheFD = 3
)

// Child returns a [Clear] that runs a program with args and a word for each
// slot, as the job's user and with the cache as file 3. The program must call
// [ClearInherited].
func Child(program string, args ...string) Clear {
	return func(ctx context.Context, cache *os.File, uid, gid uint32, dead []libvgpu.SlotOwner) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, childTimeout)
		defer cancel()
		words := append([]string{}, args...)
		for _, d := range dead {
			words = append(words, fmt.Sprintf("%d:%d", d.Index, d.Owner))
		}
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(ctx, program, words...)
		cmd.Dir, cmd.Env, cmd.ExtraFiles = "/", []string{"GOMAXPROCS=1"}, []*os.File{cache}
		cmd.Stdout, cmd.Stderr = &out, &errs
		cmd.WaitDelay = time.Second
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Setsid: true, Pdeathsig: syscall.SIGKILL,
			Credential: &syscall.Credential{Uid: uid, Gid: gid},
		}
		if err := cmd.Run(); err != nil {
			reason, _, _ := strings.Cut(errs.String(), "\n")
			return 0, fmt.Errorf("clear slots as user %d: %w: %s", uid, err, reason)
		}
		n, err := strconv.Atoi(strings.TrimSpace(out.String()))
		if err != nil {
			return 0, fmt.Errorf("clear slots as user %d: read answer: %w", uid, err)
		}
		return n, nil
	}
}

// ClearInherited is the work of the child: words are as [Child] gives them. It
// returns how many slots were cleared.
func ClearInherited(words []string) (int, error) {
	var dead []libvgpu.SlotOwner
	for _, w := range words {
		index, owner, _ := strings.Cut(w, ":")
		i, err := strconv.ParseUint(index, 10, 32)
		if err != nil {
			return 0, fmt.Errorf("slot %q: want INDEX:OWNER", w)
		}
		o, err := strconv.ParseUint(owner, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("slot %q: want INDEX:OWNER", w)
		}
		dead = append(dead, libvgpu.SlotOwner{Index: uint32(i), Owner: o})
	}
	cache := os.NewFile(cacheFD, "cache")
	if cache == nil {
		return 0, fmt.Errorf("want the cache as file %d", cacheFD)
	}
	defer cache.Close()
	return libvgpu.ClearSlots(cache, dead)
}
