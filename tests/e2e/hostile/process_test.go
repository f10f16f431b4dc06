// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

var processAttacks = []attack{
	{"`/proc/PID/{mem,maps,environ,fd,root,…}` of another's program, of gresd and of Slurm", kernel, "", func(s *siege) tally {
		got := s.attack(carol, append([]string{"proc"}, s.targets()...)...)
		got.add(s.attackInside(append([]string{"proc"}, s.targets()...)...))
		return got
	}},
	{"`ptrace`, `process_vm_readv`, `pidfd_getfd`, signals, priorities and limits of them", kernel, "", func(s *siege) tally {
		got := s.attack(carol, append([]string{"trace"}, s.targets()...)...)
		got.add(s.attackInside(append([]string{"trace"}, s.targets()...)...))
		return got
	}},
	{"the names and arguments of another's programs", nothing, "the kernel shows them to all; `hidepid` hides them", func(s *siege) tally {
		return s.attack(carol, append([]string{"names"}, s.targets()...)...)
	}},
}

func init() {
	agents["proc"] = func(pids []string) tally {
		var t tally
		for _, pid := range pids {
			for _, file := range []string{
				"mem", "maps", "smaps", "environ", "auxv", "stack", "syscall", "io", "pagemap", "personality",
				"fd", "fdinfo", "map_files", "root", "cwd", "exe", "ns/mnt", "ns/user", "task/" + pid + "/mem", "task/" + pid + "/environ",
			} {
				path := "/proc/" + pid + "/" + file
				t.denied(peek(path), "uid %d: look at %s", os.Getuid(), path)
			}
			for _, file := range []string{"mem", "clear_refs", "oom_score_adj", "coredump_filter", "comm", "setgroups", "uid_map", "attr/current", "timerslack_ns", "sched"} {
				path := "/proc/" + pid + "/" + file
				f, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err == nil {
					_, err = f.WriteString("0")
					f.Close()
				}
				t.denied(err, "uid %d: write %s", os.Getuid(), path)
			}
		}
		return t
	}
	agents["trace"] = func(pids []string) tally {
		runtime.LockOSThread()
		var t tally
		for _, text := range pids {
			pid, _ := strconv.Atoi(text)
			for _, op := range touches {
				t.denied(op.do(pid), "uid %d: %s of process %d", os.Getuid(), op.name, pid)
			}
		}
		return t
	}
	agents["attach"] = func(pids []string) tally {
		runtime.LockOSThread()
		var t tally
		_, _, e := syscall.Syscall6(syscall.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(number(pids[0])), 0, 0, 0, 0)
		t.denied(errno(e), "trace process %s", pids[0])
		return t
	}
	agents["names"] = func(pids []string) tally {
		var t tally
		for _, pid := range pids {
			for _, file := range []string{"cmdline", "comm", "stat", "status"} {
				_, err := os.ReadFile("/proc/" + pid + "/" + file)
				t.denied(err, "read /proc/%s/%s", pid, file)
			}
		}
		return t
	}
}

// targets are the victim's program, its slurmstepd, gresd and slurmd.
func (s *siege) targets() []string {
	pids := []string{fmt.Sprint(s.victimPID), fmt.Sprint(s.gresd), fmt.Sprint(s.Slurmd.PID())}
	for pid := s.victimPID; pid > 1; {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		var comm string
		var status byte
		if _, scanErr := fmt.Sscanf(string(text), "%d %s %c %d", new(int), &comm, &status, &pid); err != nil || scanErr != nil {
			break
		}
		if comm == "(slurmstepd)" {
			break
		}
		if pid > 1 {
			pids = append(pids, fmt.Sprint(pid))
		}
	}
	return pids
}

// peek reads something of a file, a folder or a link.
func peek(path string) error {
	if _, err := os.Readlink(path); err == nil {
		return nil
	}
	if _, err := os.ReadDir(path); err == nil {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := f.Read(make([]byte, 16))
	if n > 0 {
		return nil
	}
	return fmt.Errorf("nothing to read: %w", err)
}

var here [8]byte

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

func iovec(b []byte) []unix.Iovec { return []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}} }

func errno(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

var touches = []struct {
	name string
	do   func(pid int) error
}{
	{"PTRACE_ATTACH", syscall.PtraceAttach},
	{"PTRACE_SEIZE", func(pid int) error {
		_, _, e := syscall.Syscall6(syscall.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0)
		return errno(e)
	}},
	{"process_vm_readv", func(pid int) error {
		_, err := unix.ProcessVMReadv(pid, iovec(here[:]), []unix.RemoteIovec{{Base: addressOf(here[:]), Len: 8}}, 0)
		return notFault(err)
	}},
	{"process_vm_writev", func(pid int) error {
		_, err := unix.ProcessVMWritev(pid, iovec(here[:]), []unix.RemoteIovec{{Base: addressOf(here[:]), Len: 8}}, 0)
		return notFault(err)
	}},
	{"pidfd_getfd", func(pid int) error {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.PidfdGetfd(fd, 1, 0)
		return err
	}},
	{"pidfd_send_signal", func(pid int) error {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.PidfdSendSignal(fd, 0, nil, 0)
	}},
	{"setns", func(pid int) error {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Setns(fd, unix.CLONE_NEWNS)
	}},
	{"kill 0", func(pid int) error { return unix.Kill(pid, 0) }},
	{"SIGSTOP", func(pid int) error { return unix.Kill(pid, unix.SIGSTOP) }},
	{"SIGKILL", func(pid int) error { return unix.Kill(pid, unix.SIGKILL) }},
	{"setpriority", func(pid int) error { return unix.Setpriority(unix.PRIO_PROCESS, pid, 19) }},
	{"sched_setaffinity", func(pid int) error {
		var set unix.CPUSet
		set.Set(0)
		return unix.SchedSetaffinity(pid, &set)
	}},
	{"prlimit", func(pid int) error {
		return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: 1}, nil)
	}},
	{"kcmp", func(pid int) error {
		_, _, e := syscall.Syscall6(unix.SYS_KCMP, uintptr(pid), uintptr(os.Getpid()), 1, 0, 0, 0)
		return errno(e)
	}},
	{"ioprio_set", func(pid int) error {
		_, _, e := syscall.Syscall(unix.SYS_IOPRIO_SET, 1, uintptr(pid), 3<<13)
		return errno(e)
	}},
	{"migrate_pages", func(pid int) error {
		mask := uint64(1)
		_, _, e := syscall.Syscall6(unix.SYS_MIGRATE_PAGES, uintptr(pid), 64, uintptr(unsafe.Pointer(&mask)), uintptr(unsafe.Pointer(&mask)), 0, 0)
		return errno(e)
	}},
	{"get_robust_list", func(pid int) error {
		var head, size uintptr
		_, _, e := syscall.Syscall(unix.SYS_GET_ROBUST_LIST, uintptr(pid), uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&size)))
		return errno(e)
	}},
}

// notFault: an address that is not there was looked for, which is already too much.
func notFault(err error) error {
	if err == unix.EFAULT {
		return nil
	}
	return err
}

// jobOfEnv is the job of this process, as Slurm has told it.
func jobOfEnv() int {
	job, _ := strconv.Atoi(os.Getenv("SLURM_JOB_ID"))
	return job
}
