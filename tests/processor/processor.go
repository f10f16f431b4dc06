// SPDX-License-Identifier: Apache-2.0

// Package processor keeps what other programs of the machine do out of a measurement.
package processor

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// group is the cgroup of all tests that measure. Children inherit a cgroup, also in a new session.
const group = "/sys/fs/cgroup/cpu/vgpu-tests"

// Prefer gives this process and its children precedence over other programs of the machine: their
// processors are free whenever they want one. It needs root, and cgroup v1 or autogroups. Without
// these it does nothing. VGPU_PREFER=no turns it off.
func Prefer() {
	if os.Getenv("VGPU_PREFER") == "no" {
		return
	}
	if os.MkdirAll(group, 0o755) == nil &&
		os.WriteFile(filepath.Join(group, "cpu.shares"), []byte("88761"), 0) == nil &&
		os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0) == nil {
		return
	}
	_ = os.WriteFile("/proc/self/autogroup", []byte("-20"), 0) // only root may
}

// Waited is how long the main thread of a process has wanted a processor and had none. The process
// may have ended if nobody has waited for it.
func Waited(pid int) time.Duration {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/schedstat") // "": the process is gone
	_, rest, _ := strings.Cut(string(text), " ")
	waited, _, _ := strings.Cut(rest, " ")
	ns, _ := strconv.ParseInt(waited, 10, 64)
	return time.Duration(ns)
}

// Output runs a program and returns what it prints, and the part of its time in which its main
// thread wanted a processor and had none.
func Output(cmd *exec.Cmd) (out []byte, late float64, err error) {
	var text bytes.Buffer
	cmd.Stdout = &text
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	var info unix.Siginfo
	for err := unix.EINTR; err == unix.EINTR; { // it has ended, and keeps its numbers
		err, _ = unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil).(unix.Errno)
	}
	late = min(1, float64(Waited(cmd.Process.Pid))/float64(time.Since(began)))
	err = cmd.Wait()
	return text.Bytes(), late, err
}
