// SPDX-License-Identifier: Apache-2.0

package libvgpu

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// nsProcess names a process inside its own PID namespace. Start times are the
// same in all of them.
type nsProcess struct {
	ns         uint64
	pid, start uint32
}

// hostPIDs finds what the processes of other PID namespaces are called in ours.
// It looks through /proc when it is asked for one that it does not know, at most
// once in rescanAfter.
type hostPIDs struct {
	mu      sync.Mutex
	scanned time.Time
	known   map[nsProcess]uint32
}

const rescanAfter = 250 * time.Millisecond

var namespaced hostPIDs

// ownPIDNS is the inode of this process's PID namespace; 0 when /proc does not
// say it.
var ownPIDNS = sync.OnceValue(func() uint64 { return pidNS("self") })

func pidNS(process string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+process+"/ns/pid", &st); err != nil {
		return 0
	}
	return st.Ino
}

// find returns the pid in our namespace, or 0. It needs the right to look at the
// process's namespace: root, or the same user.
func (h *hostPIDs) find(ns uint64, pid, start uint32) uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	name := nsProcess{ns, pid, start}
	if found, ok := h.known[name]; ok {
		return found
	}
	if time.Since(h.scanned) < rescanAfter {
		return 0
	}
	h.known, h.scanned = scan(), time.Now()
	return h.known[name]
}

// scan lists the processes that live in a PID namespace below ours.
func scan() map[nsProcess]uint32 {
	found := map[nsProcess]uint32{}
	dir, err := os.Open("/proc")
	if err != nil {
		return found
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			continue
		}
		inner := innermostPID(name)
		if inner == 0 {
			continue
		}
		start, ok := startTime(uint32(pid))
		if ns := pidNS(name); ok && ns != 0 {
			found[nsProcess{ns, inner, uint32(start)}] = uint32(pid)
		}
	}
	return found
}

// innermostPID returns the last number of the line NSpid of a process's status,
// or 0 when there is only one: the process lives in our own namespace.
func innermostPID(process string) uint32 {
	text, err := os.ReadFile("/proc/" + process + "/status")
	if err != nil {
		return 0
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), "NSpid:")
		if !ok {
			continue
		}
		pids := strings.Fields(rest)
		if len(pids) < 2 {
			return 0
		}
		pid, err := strconv.ParseUint(pids[len(pids)-1], 10, 32)
		if err != nil {
			return 0
		}
		return uint32(pid)
	}
	return 0
}
