// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	clearTimeout = 5 * time.Second
	// mostSlots keeps a child's command line short; the rest has its turn at
	// the next look.
	mostSlots = 256
	// cacheFD is where the child finds the file.
	cacheFD = 3
	// leftWord ends the word of a slot whose process has become another program.
	leftWord = ":left"
)

// ClearInChild returns a [ClearSlots] that runs a program with args, a word for the job's user
// and one for each slot, and with the cache as file 3. The program must call
// [ClearInherited].
//
// It is started as gresd's own user and becomes the job's itself: a process that
// was started as a user can be traced by that user, and this one is outside of the
// job's cgroup and namespaces, with cards of others within its reach.
func ClearInChild(program string, args ...string) ClearSlots {
	return func(ctx context.Context, cache *os.File, uid, gid uint32, dead []libvgpu.SlotOwner) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, clearTimeout)
		defer cancel()
		words := append(slices.Clone(args), fmt.Sprintf("%d:%d", uid, gid))
		for _, d := range dead {
			words = append(words, wordOf(d))
		}
		out, errs := process.Output{Most: mostSaid}, process.Output{Most: mostSaid}
		cmd := process.Command(ctx, program, words...)
		cmd.Env, cmd.ExtraFiles = []string{"GOMAXPROCS=1"}, []*os.File{cache}
		cmd.Stdout, cmd.Stderr = &out, &errs
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

// mostSaid is what is kept of what a child prints.
const mostSaid = 4 << 10

// Become gives up root for the user and group of the first word that [ClearInChild] gives.
// Afterwards the process is still not that user's to trace, nor its files.
func Become(word string) error {
	user, group, _ := strings.Cut(word, ":")
	uid, err := strconv.ParseUint(user, 10, 32)
	gid, err2 := strconv.ParseUint(group, 10, 32)
	if err != nil || err2 != nil {
		return fmt.Errorf("user %q: want UID:GID", word)
	}
	if os.Geteuid() != 0 { // a gresd of no rights has no others to give up
		return nil
	}
	for _, give := range []func() error{
		func() error { return syscall.Setgroups(nil) },
		func() error { return syscall.Setresgid(int(gid), int(gid), int(gid)) },
		func() error { return syscall.Setresuid(int(uid), int(uid), int(uid)) },
		func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) },
		// The kernel has done it at the change of user, unless fs.suid_dumpable says no.
		func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) },
		// ... and has forgotten this one.
		func() error { return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0) },
	} {
		if err := give(); err != nil {
			return fmt.Errorf("become user %d: %w", uid, err)
		}
	}
	return nil
}

// ClearInherited is the work of the child: words are as [ClearInChild] gives them. It
// returns how many slots were cleared.
func ClearInherited(words []string) (int, error) {
	if len(words) == 0 {
		return 0, errors.New("want UID:GID and slots")
	}
	if err := Become(words[0]); err != nil {
		return 0, err
	}
	dead, err := parseSlots(words[1:])
	if err != nil {
		return 0, err
	}
	cache := os.NewFile(cacheFD, "cache")
	if cache == nil {
		return 0, fmt.Errorf("want the cache as file %d", cacheFD)
	}
	defer cache.Close()
	return libvgpu.ClearSlots(cache, dead)
}

func wordOf(slot libvgpu.SlotOwner) string {
	word := fmt.Sprintf("%d:%d", slot.Index, slot.Owner)
	if slot.Left {
		word += leftWord
	}
	return word
}

func parseSlots(words []string) (dead []libvgpu.SlotOwner, err error) {
	for _, w := range words {
		slot, left := strings.CutSuffix(w, leftWord)
		index, owner, _ := strings.Cut(slot, ":")
		i, err := strconv.ParseUint(index, 10, 32)
		o, err2 := strconv.ParseUint(owner, 10, 64)
		if err != nil || err2 != nil {
			return nil, fmt.Errorf("slot %q: want INDEX:OWNER", w)
		}
		dead = append(dead, libvgpu.SlotOwner{Index: uint32(i), Owner: o, Left: left})
	}
	return dead, nil
}
