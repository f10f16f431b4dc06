// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
)

// hardJob is a job with 20 % of a simulated card, whose gate gresd has opened.
func hardJob(t *testing.T) job {
	t.Helper()
	return newMachine(t, oneCard).job(1, 8<<30, libvgpu.Schedule{Cores: 20, WeightPPM: 1e6, LeastPPM: 1e6})
}

// A program with many thread-local variables is held as any other when gresd shuts the gate.
func TestLargeThreadLocalVariablesLeaveRoomForTheWatcher(t *testing.T) {
	t.Parallel()
	j := hardJob(t)
	s := j.grant.Schedule(0)
	timer := time.AfterFunc(300*time.Millisecond, func() {
		s.Gate = libvgpu.GateBudget
		j.grant.SetSchedule(0, s)
	})
	defer timer.Stop()
	result, err := run(t, j.env, "watched", "--secs", "2")
	if err != nil {
		t.Fatal(err)
	}
	if result["watcher"].(float64) != 1 || result["per_second"].(float64) > 250 {
		t.Errorf("%v: want a watcher, and at most half of the 500 kernels that a whole card runs in a second", result)
	}
}

// Where no thread is to be had nobody would shut the gate: it is shut from the start, which
// the user and gresd are told.
func TestWithoutAWatcherTheGateHolds(t *testing.T) {
	t.Parallel()
	j := hardJob(t)
	cmd := exec.Command("../../build/tests/watched", "--secs", "2", "--no-thread", "1")
	cmd.Env = j.env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	if got := errs.String(); strings.Count(got, "vgpu: watcher: no thread can be started") != 1 {
		t.Errorf("stderr %q", got)
	}
	r := decode(t, out.Bytes())
	if r["watcher"].(float64) != 0 || r["per_second"].(float64) > 170 {
		t.Errorf("%v: want no watcher, and about 100 kernels a second", r)
	}
	if s := j.slot(); s.Flags&libvgpu.SlotUnwatched == 0 {
		t.Errorf("%+v: want the flag", s)
	}
}

// The watcher does not ask for the environment, whatever it says: a thread of the program may be
// changing it.
func TestTheWatcherLeavesTheEnvironmentAlone(t *testing.T) {
	t.Parallel()
	j := hardJob(t)
	timer := time.AfterFunc(500*time.Millisecond, func() { // so that it has something to say
		if err := j.RefuseSlices(simgpu.Fault{Count: -1}); err != nil {
			t.Error(err)
		}
		s := j.grant.Schedule(0)
		s.SliceUS, s.Gate = 3000, libvgpu.GateBudget
		j.grant.SetSchedule(0, s)
	})
	defer timer.Stop()
	cmd := exec.Command("../../build/tests/environ", "--secs", "3")
	cmd.Env = append(j.env, "VGPU_LOG_LEVEL=4")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	r := decode(t, out.Bytes())
	if r["asked"].(float64) == 0 || r["by_own_thread"].(float64) != 0 {
		t.Errorf("%v: want some questions, none of them the watcher's", r)
	}
	if !strings.Contains(errs.String(), "slices: card 0: 3000 us: refused by the driver") {
		t.Errorf("stderr %q: the watcher has said nothing", errs.String())
	}
}

// The library reads the environment until cuInit returns, as the driver does, and not when a context is made.
func TestContextsLeaveTheEnvironmentAlone(t *testing.T) {
	spec := libvgpu.GrantSpec{JobID: 7, Cards: []libvgpu.GrantCard{{Engine: libvgpu.EngineConcurrent}}}
	j := newMachine(t, oneCard).jobOf(spec, 8<<30, libvgpu.Schedule{Cores: 50})
	r, err := run(t, j.env, "environ", "--contexts", "10")
	if err != nil || r["before"] == 0.0 || r["asked"] != 0.0 {
		t.Errorf("%v, %v; want no question after cuInit", r, err)
	}
}

// A gresd that does not answer holds up nothing: in a PID namespace the watcher asks it for the
// process's number outside, and has looked at everything once before.
func TestTheWatcherWorksBeforeItAsks(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	silent, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	m := newMachine(t, oneCard)
	j := m.jobOf(libvgpu.GrantSpec{JobID: 1, Socket: socket}, 8<<30, libvgpu.Schedule{Cores: 20, Gate: libvgpu.GateBudget, WeightPPM: 1e6})
	cmd := exec.Command("../../build/tests/watched", "--secs", "3")
	cmd.Env = j.env
	const first = "pid:[4026531836]"
	if ns, err := os.Readlink("/proc/self/ns/pid"); err != nil || ns == first {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	}
	if err := cmd.Start(); errors.Is(err, syscall.EPERM) {
		t.Skip("want root, or a PID namespace")
	} else if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	if err := silent.(*net.UnixListener).SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	asks, err := silent.Accept()
	if err != nil {
		t.Fatalf("it never asked: %v", err)
	}
	defer asks.Close()
	if _, err := libvgpu.ReadHAMi(j.cache); err != nil { // what it writes at the end of a look
		t.Errorf("it asked before it looked at anything: %v", err)
	}
}

// An open gate counts on neighbors until its lease expires. A new context opened it again for up to a
// second, although gresd had not renewed the lease.
func TestANewContextDoesNotOpenAGateWithoutALease(t *testing.T) {
	t.Parallel()
	j := newMachine(t, oneCard).job(1, 8<<30, libvgpu.Schedule{Cores: 20, WeightPPM: 1e6, LeastPPM: 1e6, LeaseNS: 1})
	result, err := run(t, j.env, "streams", "--how", "retained", "--secs", "3")
	if err != nil {
		t.Fatal(err)
	}
	ofCard(t, result["part"].(float64), 0.01, 0.3, result["late"].(float64))
}
