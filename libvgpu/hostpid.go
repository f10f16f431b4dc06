// SPDX-License-Identifier: Apache-2.0

package libvgpu

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A slot of another PID namespace is judged by a scan of /proc. Why "the scan does not
// list it" proves that its process has ended:
//
//   - Only a process itself claims its slot, so when its owner word was read it lived, or
//     had ended already. The scan begins after that.
//   - gresd sees it: it is in the first PID namespace, or in one in which it finds
//     slurmd (so all processes of jobs are below: a process cannot leave its namespace,
//     but for one below), and hidepid hides none from it (CAP_SYS_PTRACE). Elsewhere, and
//     where the pid that a process has in its own namespace cannot be read, a scan proves
//     nothing.
//   - Reading /proc goes up the pids, and a process keeps its own, through exec too:
//     one that lives from the beginning of a scan to its end is listed.
//   - Where the start time may read differently there (time namespaces), or a namespace
//     is not known, whatever may be the process passes for it.
//
// The other direction needs no care: pids and namespaces are numbered anew, but with
// another start time, and if not, a dead process counts a while longer.

// nsProcess is a process that lives in another PID namespace than ours.
type nsProcess struct {
	ns        uint64 // inode; 0: not to be seen
	hostPID   uint32
	start     uint64 // as it reads here
	otherTime bool   // it may read differently there
}

// hostPIDs finds what the processes of other PID namespaces are called in ours.
// It looks through /proc when it is asked for one that it does not know, and then
// rests for restPart times what that took.
type hostPIDs struct {
	mu       sync.Mutex
	began    time.Time // of the last scan; zero: none
	ended    time.Time
	took     time.Duration          // of a processor
	complete bool                   // it saw all that lived all the time
	known    map[uint32][]nsProcess // by pid in their own namespace
}

const (
	rescanAfter = 250 * time.Millisecond
	restPart    = 9
)

var namespaced hostPIDs

// ownPIDNS is the inode of this process's PID namespace; 0 when /proc does not
// say it.
var ownPIDNS = sync.OnceValue(func() uint64 { return nsInode("self", "pid") })

var ownTimeNS = sync.OnceValue(func() uint64 { return nsInode("self", "time") })

// firstPIDNS is what the kernel numbers the first PID namespace (PROC_PID_INIT_INO).
const firstPIDNS = 0xEFFFFFFC

// hasPtrace says whether this process may look at those of other users.
var hasPtrace = sync.OnceValue(func() bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&head, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0
})

// isSlurmd says whether a process of our own PID namespace is root's slurmd.
func isSlurmd(process string) bool {
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+process, &st); err != nil || st.Uid != 0 {
		return false
	}
	name, err := os.ReadFile("/proc/" + process + "/comm")
	return err == nil && string(name) == "slurmd\n"
}

// nsInode is that of a namespace of a process; 0 when that cannot be seen.
func nsInode(process, namespace string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+process+"/ns/"+namespace, &st); err != nil {
		return 0
	}
	return st.Ino
}

// verdict is what is known of the process of a slot.
type verdict int

const (
	unknown verdict = iota
	found
	absent // proved
)

// find looks for the process of a slot in other PID namespaces, by a scan that began
// at since or later. It returns the process's pid in our namespace.
func (h *hostPIDs) find(s *SlotView, since time.Time, p *patience) (uint32, verdict) {
	for {
		if p != nil {
			h.mu.Lock()
		} else if !h.mu.TryLock() {
			return 0, unknown
		}
		rest := time.Duration(0)
		pid, v := h.match(s)
		if v != found && h.began.Before(since) {
			if rest = h.rest(p != nil); rest <= 0 {
				h.scan()
				pid, v = h.match(s)
			}
		}
		if v == absent && !h.complete {
			v = unknown
		}
		h.mu.Unlock()
		if rest <= 0 {
			return pid, v
		}
		if !p.wait(rest) {
			return 0, unknown
		}
	}
}

// patience is of somebody who waits for an answer. nil: nobody does.
type patience struct{ until time.Time }

// wait returns false, at once, where there is not so much patience left.
func (p *patience) wait(d time.Duration) bool {
	if p == nil || time.Now().Add(d).After(p.until) {
		return false
	}
	time.Sleep(d)
	return true
}

// rest is how long it is until the next scan may begin.
func (h *hostPIDs) rest(asked bool) time.Duration {
	rest := restPart * h.took
	if !asked {
		rest = max(rest, rescanAfter)
	}
	return time.Until(h.ended.Add(rest))
}

// match looks for the process of a slot in what is known. The namespace bits of the
// owner word count: the slot's field may still be the last owner's.
func (h *hostPIDs) match(s *SlotView) (uint32, verdict) {
	v := absent
	bits, start := ownerNS(s.Owner), uint32(s.StartTime)
	for _, p := range h.known[s.PID] {
		switch {
		case p.ns != 0 && bits != nsUnknown && uint64(bits) != p.ns%nsUnknown:
		case p.ns != 0 && p.ns == s.PIDNS && uint32(p.start) == start && start != 0:
			return p.hostPID, found
		case uint32(p.start) == start, start == 0, p.otherTime:
			v = unknown
		}
	}
	return 0, v
}

// scan lists the processes that live in a PID namespace below ours.
func (h *hostPIDs) scan() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	h.began, h.known = time.Now(), map[uint32][]nsProcess{}
	h.complete = h.list()
	h.ended, h.took = time.Now(), threadTime()-before
}

// threadTime is the processor time that this thread has had.
func threadTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// list fills known and says whether it saw all.
func (h *hostPIDs) list() bool {
	dir, err := os.Open("/proc")
	if err != nil {
		return false
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	all, sees := err == nil && hasPtrace(), ownPIDNS() == firstPIDNS
	for _, name := range names {
		pid, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			continue
		}
		p := nsProcess{ns: nsInode(name, "pid"), hostPID: uint32(pid)}
		if p.ns == ownPIDNS() {
			sees = sees || isSlurmd(name)
			continue
		}
		inner, told := innermostPID(name)
		start, life := startTime(p.hostPID)
		switch {
		case life == over, told && inner == 0: // ended meanwhile, or in our own after all
		case !told, life == unseen:
			all = false
		default:
			p.start, p.otherTime = start, nsInode(name, "time") != ownTimeNS()
			h.known[inner] = append(h.known[inner], p)
		}
	}
	return all && sees
}

// innermostPID returns the last number of the line NSpid of a process's status, 0
// when there is only one: the process lives in our own namespace. False: not told.
func innermostPID(process string) (uint32, bool) {
	text, err := os.ReadFile("/proc/" + process + "/status")
	if err != nil {
		return 0, false
	}
	_, rest, ok := strings.Cut(string(text), "\nNSpid:")
	line, _, _ := strings.Cut(rest, "\n")
	pids := strings.Fields(line)
	if !ok || len(pids) == 0 {
		return 0, false
	}
	if len(pids) == 1 {
		return 0, true
	}
	pid, err := strconv.ParseUint(pids[len(pids)-1], 10, 32)
	return uint32(pid), err == nil
}

// resolve finds the process of a slot: its pid in our namespace, if it is found. For
// since see [hostPIDs.find].
func (s *SlotView) resolve(since time.Time, p *patience) (uint32, verdict) {
	is := func(pid uint32) (l life, same bool) {
		start, l := startTime(pid)
		return l, l == lives && uint32(start) == uint32(s.StartTime)
	}
	// What its slot says it is called here, gresd told it.
	if s.HostPID != 0 {
		if _, same := is(s.HostPID); same {
			return s.HostPID, found
		}
	}
	// A field that does not fit the owner's bits is not its own.
	bits := uint64(ownerNS(s.Owner))
	fits := s.PIDNS != 0 && bits == s.PIDNS%nsUnknown
	if fits && s.PIDNS != ownPIDNS() || bits != nsUnknown && bits != ownPIDNS()%nsUnknown {
		return namespaced.find(s, since, p)
	}
	l, same := is(s.PID)
	switch {
	case same:
		return s.PID, found
	case l == unseen, l == lives && (s.StartTime == 0 || nsInode(strconv.FormatUint(uint64(s.PID), 10), "time") != ownTimeNS()):
		return 0, unknown
	case fits && hasPtrace():
		return 0, absent
	}
	return namespaced.find(s, since, p)
}

// life is the kernel's answer about a pid.
type life int

const (
	unseen life = iota // it cannot be looked at: no descriptor is left, or /proc hides it
	lives
	over // there is none, or it only waits for its parent
)

// startTime returns field 22 of /proc/<pid>/stat.
func startTime(pid uint32) (uint64, life) {
	var buf [1024]byte // a line of 52 numbers and a name is shorter
	line, ok := readSmall("/proc/"+strconv.FormatUint(uint64(pid), 10)+"/stat", buf[:])
	if start, l := parseStat(line); ok && l != unseen {
		return start, l
	}
	if pid == 0 || unix.Kill(int(pid), 0) == unix.ESRCH {
		return 0, over
	}
	return 0, unseen
}

// parseStat reads the line of /proc/<pid>/stat. The name of the process, in field 2,
// may hold spaces and brackets: count from the last bracket.
func parseStat(buf []byte) (uint64, life) {
	rest := buf[bytes.LastIndexByte(buf, ')')+1:]
	var fields [20][]byte // from field 3 on
	for i := range fields {
		rest = bytes.TrimLeft(rest, " ")
		var more bool
		if fields[i], rest, more = bytes.Cut(rest, []byte(" ")); !more {
			return 0, unseen // there are more fields than these
		}
	}
	// A first thread that has ended while others run looks like a zombie.
	zombie := fields[0][0] == 'Z' || fields[0][0] == 'X'
	if threads, err := strconv.Atoi(string(fields[17])); zombie && (err != nil || threads <= 1) {
		return 0, over
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	if err != nil {
		return 0, unseen
	}
	return start, lives
}

type mapping int

const (
	notSeen mapping = iota
	mapped
	unmapped
)

// mapsFile looks for a file, by its inode, in the mappings of a process.
func mapsFile(process string, inode uint64) mapping {
	text, err := os.ReadFile("/proc/" + process + "/maps")
	if err != nil || len(text) == 0 { // no maps: a kernel thread, or a process that ends
		return notSeen
	}
	want := strconv.FormatUint(inode, 10)
	for line := range bytes.Lines(text) {
		// address permissions offset device inode path
		if fields := bytes.Fields(line); len(fields) >= 5 && string(fields[4]) == want {
			return mapped
		}
	}
	return unmapped
}

// mappedInode returns a file's inode as mappings show it: on an overlay, fstat may return a
// different inode. It never touches the page, because the owner of the file may truncate it.
func mappedInode(f *os.File) uint64 {
	var st unix.Stat_t
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0
	}
	defer func() { _ = unix.Munmap(page) }()
	if unix.Fstat(int(f.Fd()), &st) != nil || mapsFile("self", st.Ino) != mapped {
		return 0
	}
	return st.Ino
}

// These calls only read memory (the mapped cache and grant files) or text that the kernel makes at
// once. They bypass Go's scheduler. A scheduled call wakes a monitor thread each time, which costs
// more than the read.

// pread fills buf from a place of an open file; [io.ErrUnexpectedEOF]: it is shorter.
func pread(fd int, buf []byte, at int64) error {
	for len(buf) > 0 {
		n, _, errno := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), uintptr(at), 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return os.NewSyscallError("pread", errno)
		case n == 0:
			return io.ErrUnexpectedEOF
		default:
			buf, at = buf[n:], at+int64(n)
		}
	}
	return nil
}

// checkSize returns an error that wraps sentinel unless the file is regular and has this size.
func checkSize(fd int, size int64, sentinel error) error {
	var st unix.Stat_t
	if _, _, errno := unix.RawSyscall(unix.SYS_FSTAT, uintptr(fd), uintptr(unsafe.Pointer(&st)), 0); errno != 0 {
		return os.NewSyscallError("fstat", errno)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != size {
		return fmt.Errorf("%w: mode 0%o, %d bytes; want a file of %d bytes", sentinel, st.Mode, st.Size, size)
	}
	return nil
}

// readSmall reads a file of /proc that fits into buf with one reading.
func readSmall(path string, buf []byte) (text []byte, ok bool) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return nil, false
	}
	here, errno := unix.AT_FDCWD, unix.EINTR
	var fd, got uintptr
	for errno == unix.EINTR {
		fd, _, errno = unix.RawSyscall6(unix.SYS_OPENAT, uintptr(here), uintptr(unsafe.Pointer(name)), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	}
	if errno != 0 {
		return nil, false
	}
	for errno = unix.EINTR; errno == unix.EINTR; {
		got, _, errno = unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
	}
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	if errno != 0 { // of a process that has ended since its file was opened, say
		return nil, false
	}
	return buf[:got], int(got) < len(buf)
}
