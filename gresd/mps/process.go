// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/timeout"
)

// tokenVariable carries a record's token.
const tokenVariable = "VGPU_MPS_TOKEN"

// identity names one process of this boot. The kernel uses a process id again.
type identity struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start_time"` // clock ticks since boot
}

func (p identity) alive() bool {
	stat, ok := process.Of(p.PID).Stat()
	return ok && !stat.Ended && stat.Start == p.Start
}

// signal sends a signal by a pidfd, so that no later process with the same id gets it.
func (p identity) signal(sig syscall.Signal) {
	pidfd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(pidfd) }()
	if p.alive() {
		_ = unix.PidfdSendSignal(pidfd, sig, nil, 0)
	}
}

// stuck are the processes that let readers of their environment wait.
var stuck timeout.Processes

// mostAsking bounds how long the processes of a user are asked, however many there are.
const mostAsking = 3 * time.Second

// environment is a variable for tests.
var environment = func(pid int) []byte {
	text, _ := os.ReadFile(process.Of(pid).File("environ"))
	return text
}

// programs is how the names of NVIDIA's two programs begin.
const programs = "nvidia-cuda-mps-"

// hasToken says whether a process of that user has the token. Only the two programs are asked, by a
// link that waits for nobody: other programs of the user that wait are none of MPS's business.
func hasToken(pid int, uid uint32, token string) bool {
	if !strings.HasPrefix(filepath.Base(process.Of(pid).Link("exe")), programs) {
		return false
	}
	env, _ := timeout.RunForProcess(&stuck, uid, uint32(pid), func() []byte { return environment(pid) })
	for word := range bytes.SplitSeq(env, []byte{0}) {
		if string(word) == tokenVariable+"="+token {
			return true
		}
	}
	return false
}

// family are the living processes of the record's user, root where the daemon is for everyone, that
// are surely of its daemon: the daemon, what is in its process group or session or descends from
// it while it lives, and what has its token whether it lives or not.
func (r record) family() []identity {
	all := map[int]process.Stat{}
	for _, dir := range process.All("/proc") {
		pid, err := strconv.Atoi(filepath.Base(string(dir)))
		if stat, ok := dir.Stat(); err == nil && ok && !stat.Ended {
			all[pid] = stat
		}
	}
	leader, ok := all[r.PID]
	lives := ok && leader.Start == r.Start
	tied := func(pid int) bool {
		for range len(all) { // a process that ends meanwhile could make a circle
			stat, ok := all[pid]
			if !ok || pid == r.PID || stat.Group == r.PID || stat.Session == r.PID {
				return ok
			}
			pid = stat.Parent
		}
		return false
	}
	var found []identity
	until := time.Now().Add(mostAsking)
	for pid, stat := range all {
		if uid, ok := process.Of(pid).UID(); !ok || uid != r.Key.UID {
			continue
		}
		if lives && tied(pid) || time.Now().Before(until) && hasToken(pid, r.Key.UID, r.Token) {
			found = append(found, identity{pid, stat.Start})
		}
	}
	return found
}
