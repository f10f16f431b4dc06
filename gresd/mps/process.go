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

// info is what /proc says of a process.
type info struct {
	identity
	process.Stat
}

func look(pid int) (info, bool) {
	stat, ok := process.Of(pid).Stat()
	return info{identity{pid, stat.Start}, stat}, ok
}

func (p identity) alive() bool {
	if p.PID == 0 {
		return false
	}
	i, ok := look(p.PID)
	return ok && !i.Ended && i.Stat.Start == p.Start
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

// near says that a process has a tie to the daemon that only its own have, as
// long as the daemon lives.
func (r record) near(i info) bool { return i.Group == r.PID || i.Session == r.PID || i.Parent == r.PID }

// family are the living processes of the record's user, root where the daemon is for everyone, that
// are surely of its daemon: the daemon, what is in its process group or session or descends from
// it while it lives, and what has its token whether it lives or not.
func (r record) family() []identity {
	all := map[int]info{}
	for _, dir := range process.All("/proc") {
		pid, err := strconv.Atoi(filepath.Base(string(dir)))
		if err != nil {
			continue
		}
		if i, ok := look(pid); ok && !i.Ended {
			all[pid] = i
		}
	}
	leader, ok := all[r.PID]
	lives := ok && leader.Stat.Start == r.Start
	descends := func(i info) bool {
		for range len(all) { // a process that ends meanwhile could make a circle
			if i.PID == r.PID {
				return true
			}
			next, ok := all[i.Parent]
			if !ok {
				return false
			}
			i = next
		}
		return false
	}
	var found []identity
	until := time.Now().Add(mostAsking)
	for _, i := range all {
		if uid, ok := process.Of(i.PID).UID(); !ok || uid != r.Key.UID {
			continue
		}
		if lives && (r.near(i) || descends(i)) || time.Now().Before(until) && hasToken(i.PID, r.Key.UID, r.Token) {
			found = append(found, i.identity)
		}
	}
	return found
}
