// SPDX-License-Identifier: Apache-2.0

// Package processor keeps what other programs of the machine do out of a measurement.
package processor

import (
	"bytes"
	"errors"
	"maps"
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

// Waited is how long the threads of a process have wanted a processor and had none. Of a process that
// has ended and for which nobody has waited, it is the time of the main thread.
func Waited(pid int) time.Duration {
	var sum time.Duration
	for _, waited := range threads(pid) {
		sum += waited
	}
	return sum
}

// threads is the same of each thread.
func threads(pid int) map[string]time.Duration {
	waited := map[string]time.Duration{}
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/schedstat")
	for _, file := range files {
		text, _ := os.ReadFile(file) // "": the thread has ended
		if fields := strings.Fields(string(text)); len(fields) > 1 {
			ns, _ := strconv.ParseInt(fields[1], 10, 64)
			waited[file] = time.Duration(ns)
		}
	}
	return waited
}

// Output runs a program and returns what it prints, and the part of its time in which its threads wanted
// a processor and had none.
func Output(cmd *exec.Cmd) (out []byte, late float64, err error) {
	var text bytes.Buffer
	cmd.Stdout = &text
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	waited := map[string]time.Duration{}
	for ended := false; !ended; {
		// A zombie has its main thread's numbers; those of other threads are up to 50 ms old.
		ended = hasEnded(cmd.Process.Pid)
		maps.Copy(waited, threads(cmd.Process.Pid))
		if !ended {
			time.Sleep(50 * time.Millisecond)
		}
	}
	var sum time.Duration
	for _, w := range waited {
		sum += w
	}
	late = min(1, float64(sum)/float64(time.Since(began)))
	err = cmd.Wait()
	return text.Bytes(), late, err
}

func hasEnded(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0 || errors.Is(err, unix.ECHILD)
}

// Bounds are what job i may do where it must do from least to most of a card on an idle machine. want is
// what each job is due, in the same unit, and late the part of the time in which it had no processor. A job
// that is late does less, and others may do what it leaves.
func Bounds(i int, least, most float64, want, late []float64) (low, high float64) {
	low, high = least*(1-late[i]), most
	for j := range want {
		if j != i {
			high += want[j] * late[j]
		}
	}
	return low, high
}
