// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/patient"
)

// tokenVariable carries a record's token.
const tokenVariable = "VGPU_MPS_TOKEN"

// process is one process of this boot: a process id alone is used again.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start_time"` // clock ticks since boot
}

// info is what /proc says of a process.
type info struct {
	process
	parent, group, session int
	zombie                 bool
}

func look(pid int) (info, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return info{}, false
	}
	return readStat(pid, text)
}

func readStat(pid int, text []byte) (info, bool) {
	// The name, in brackets, can hold anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return info{}, false
	}
	i := info{process: process{PID: pid}, zombie: fields[0] == "Z" || fields[0] == "X"}
	i.parent, _ = strconv.Atoi(fields[1])
	i.group, _ = strconv.Atoi(fields[2])
	i.session, _ = strconv.Atoi(fields[3])
	var err error
	i.Start, err = strconv.ParseUint(fields[19], 10, 64)
	return i, err == nil
}

func (p process) alive() bool {
	if p.PID == 0 {
		return false
	}
	i, ok := look(p.PID)
	return ok && !i.zombie && i.Start == p.Start
}

// signal signals the process, and no other that has its number by now.
func (p process) signal(sig syscall.Signal) {
	handle, err := os.FindProcess(p.PID) // of the process, where the kernel has such handles
	if err != nil {
		return
	}
	defer func() { _ = handle.Release() }()
	if p.alive() {
		_ = handle.Signal(sig)
	}
}

// uidOf is the real user of a process.
func uidOf(pid int) (uint32, bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, false
	}
	return readUID(text)
}

func readUID(text []byte) (uint32, bool) {
	_, rest, _ := strings.Cut(string(text), "\nUid:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0, false
	}
	uid, err := strconv.ParseUint(fields[0], 10, 32)
	return uint32(uid), err == nil
}

// stuck are the processes whose users let readers of their environment wait.
var stuck = patient.New()

func hasToken(pid int, token string) bool {
	env, _ := patient.Within(stuck, uint32(pid), func() []byte {
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		return env
	})
	for word := range bytes.SplitSeq(env, []byte{0}) {
		if string(word) == tokenVariable+"="+token {
			return true
		}
	}
	return false
}

func (r record) leaderAlive() bool { return r.alive() }

// near says that a process has a tie to the daemon that only its own have, as
// long as the daemon lives.
func (r record) near(i info) bool { return i.group == r.PID || i.session == r.PID || i.parent == r.PID }

// family are the living processes of the record's user that are surely of its
// daemon: the daemon, what is in its process group or session or descends from
// it while it lives, and what has its token whether it lives or not.
func (r record) family() []process {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	all := map[int]info{}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if i, ok := look(pid); ok && !i.zombie {
			all[pid] = i
		}
	}
	leader, ok := all[r.PID]
	lives := ok && leader.Start == r.Start
	descends := func(i info) bool {
		for range len(all) { // a process that ends meanwhile could make a circle
			if i.PID == r.PID {
				return true
			}
			next, ok := all[i.parent]
			if !ok {
				return false
			}
			i = next
		}
		return false
	}
	var found []process
	for _, i := range all {
		if uid, ok := uidOf(i.PID); !ok || uid != r.Key.UID {
			continue
		}
		if lives && (r.near(i) || descends(i)) || hasToken(i.PID, r.Token) {
			found = append(found, i.process)
		}
	}
	return found
}
