// SPDX-License-Identifier: Apache-2.0

package storm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A watched gresd stops at each of its points: a system call that changes a file
// of its folders, makes one durable, or answers a client. The program that watches
// decides whether it goes on, fails, or is killed there.
//
// gresd itself has no part in it: the kernel stops it, by a seccomp filter whose
// notifications the watcher answers. So the real program runs, and no point can be
// forgotten when its code changes.

// Point is one of them.
type Point struct {
	N    int    // 1 for the first since gresd was started
	Call string // name of the system call
	File string // what it is about, "reply" for a client; numbers of jobs are #
}

// Kind is the point without its number.
func (p Point) Kind() string { return p.Call + " " + p.File }

// Verdict is what becomes of a point.
type Verdict struct {
	Kill bool
	Fail syscall.Errno // 0: it goes on
}

// Watch decides about the points of a gresd, one after the other.
type Watch struct {
	// Decide must be set before the start.
	Decide func(Point) Verdict

	mu    sync.Mutex
	count int
}

// watched names system calls that can be points.
var watched = map[uint32]string{
	unix.SYS_OPENAT: "create", unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "write", unix.SYS_FTRUNCATE: "truncate",
	unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fsync",
	unix.SYS_RENAMEAT: "rename", unix.SYS_RENAMEAT2: "rename",
	unix.SYS_MKDIRAT: "mkdir", unix.SYS_UNLINKAT: "unlink",
	unix.SYS_FCHMOD: "chmod", unix.SYS_FCHMODAT: "chmod", unix.SYS_FCHOWN: "chown", unix.SYS_SETXATTR: "setxattr",
}

// pathFirst has those whose first argument is the path.
var pathFirst = map[int32]bool{unix.SYS_SETXATTR: true}

// stageEnv tells this program, started again, to become a watched gresd.
const stageEnv = "VGPU_STORM_WATCHED"

// Become must be called first in a program that uses a Watch. It returns unless
// the program was started to become a watched gresd.
func Become() {
	if os.Getenv(stageEnv) == "" {
		return
	}
	fmt.Fprintf(os.Stderr, "storm: become gresd: %v\n", become())
	os.Exit(1)
}

// become puts the filter on this thread, hands its notifications to the parent, on
// descriptor 3, and starts gresd in its place, which inherits the filter.
func become() error {
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := filter()
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	const waitKillable = 1 << 5 // SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV: a signal of Go's own does not start the call anew
	fd, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|waitKillable, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	if err := unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(fd)), nil, 0); err != nil {
		return fmt.Errorf("hand over notifications: %w", err)
	}
	unix.CloseOnExec(3)
	unix.CloseOnExec(int(fd))
	env := os.Environ()
	for i, v := range env {
		if strings.HasPrefix(v, stageEnv+"=") {
			env[i] = "VGPU_STORM=1"
		}
	}
	return syscall.Exec(os.Args[1], os.Args[1:], env)
}

// filter notifies of the watched calls; of openat only where it may make a file.
func filter() []unix.SockFilter {
	const nr, flags = 0, 16 + 2*8 // in struct seccomp_data: the call, its third argument
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	jump := func(op uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	program := []unix.SockFilter{
		load(nr),
		jump(unix.BPF_JEQ, unix.SYS_OPENAT, 0, 4),
		load(flags),
		jump(unix.BPF_JSET, unix.O_CREAT, 0, 1),
		ret(unix.SECCOMP_RET_USER_NOTIF),
		ret(unix.SECCOMP_RET_ALLOW),
	}
	for call := range watched {
		if call != unix.SYS_OPENAT {
			program = append(program, jump(unix.BPF_JEQ, call, 0, 1), ret(unix.SECCOMP_RET_USER_NOTIF))
		}
	}
	return append(program, ret(unix.SECCOMP_RET_ALLOW))
}

// Start starts a command as a watched one. Only what happens in the folders counts.
func (w *Watch) Start(cmd *exec.Cmd, dirs []string) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "notifications")
	defer theirs.Close()
	cmd.Args = append([]string{"storm"}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
	cmd.Path, cmd.Env, cmd.ExtraFiles = "/proc/self/exe", append(cmd.Env, stageEnv+"=1"), []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		return err
	}
	theirs.Close()
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), rights, 0)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return errors.Join(errors.New("no seccomp notifications: want Linux 5.19 or newer, and a kernel that allows filters"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.count = 0
	w.mu.Unlock()
	go w.serve(fds[0], cmd.Process.Pid, dirs)
	return nil
}

// notification is struct seccomp_notif; answer is struct seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type answer struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// serve answers until gresd and all its children have ended; calls count that are about dirs.
func (w *Watch) serve(fd, pid int, dirs []string) {
	defer unix.Close(fd)
	for {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil || poll[0].Revents&unix.POLLIN == 0 {
			return // nobody has the filter any more
		}
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 {
			continue // the thread was killed meanwhile
		}
		a := answer{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if what, counts := about(n, dirs); counts {
			w.mu.Lock()
			w.count++
			v := w.Decide(Point{w.count, watched[uint32(n.nr)], what})
			w.mu.Unlock()
			switch {
			case v.Kill:
				_ = unix.Kill(pid, unix.SIGKILL)
				continue // it never goes on
			case v.Fail != 0:
				a.err, a.flags = -int32(v.Fail), 0
			}
		}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
	}
}

// about says what a call is about, and whether it counts.
func about(n notification, dirs []string) (string, bool) {
	path := ""
	switch n.nr {
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_FTRUNCATE, unix.SYS_FCHMOD, unix.SYS_FCHOWN:
		path, _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.pid, n.args[0]))
		if strings.HasPrefix(path, "socket:") && n.nr == unix.SYS_WRITE {
			return "reply", true
		}
	default:
		if pathFirst[n.nr] {
			path = text(n.pid, n.args[0])
			break
		}
		path = text(n.pid, n.args[1]) // …at
		if !strings.HasPrefix(path, "/") {
			dir, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.pid, int32(n.args[0])))
			path = dir + "/" + path
		}
	}
	for _, dir := range dirs {
		if rest, inside := strings.CutPrefix(path, dir); inside {
			return numbers.ReplaceAllString(strings.TrimPrefix(rest, "/"), "#"), true
		}
	}
	return "", false
}

var numbers = regexp.MustCompile(`[0-9]+`)

// text reads a path of another process, which waits.
func text(pid uint32, at uint64) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, 512)
	n, _ := f.ReadAt(buf, int64(at)) // less where the memory ends
	path, _, _ := strings.Cut(string(buf[:n]), "\x00")
	return path
}
