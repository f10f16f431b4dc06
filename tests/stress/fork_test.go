// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// forks starts the program of that name, and waits until it has begun. It goes on when in is closed.
func forks(t *testing.T, env []string, args ...string) (cmd *exec.Cmd, in io.Closer, errs *bytes.Buffer) {
	t.Helper()
	cmd, errs = exec.Command("../../build/tests/forks", args...), &bytes.Buffer{}
	cmd.Env, cmd.Stderr = env, errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("%v: %s", err, errs)
	}
	return cmd, in, errs
}

// Children that use no CUDA take no place of the job, and say nothing.
func TestForkedChildrenWithoutCUDAHaveNoSlot(t *testing.T) {
	j := hardJob(t)
	env, cache := j.env, j.cache
	cmd, in, errs := forks(t, env, "--what", "idle", "--count", "50")
	view, err := libvgpu.ReadCache(cache)
	if err != nil || len(view.Slots) != 1 {
		t.Errorf("%d slots, %v; want that of the parent", len(view.Slots), err)
	}
	_ = in.Close()
	if err := cmd.Wait(); err != nil || errs.Len() != 0 {
		t.Errorf("%v, stderr %q", err, errs.String())
	}
}

// A child of a process that has not begun with CUDA has its own place with its first call.
func TestForkedChildrenThatUseCUDAAreCounted(t *testing.T) {
	j := hardJob(t)
	env, cache := j.env, j.cache
	result, err := run(t, env, "forks", "--what", "cuda", "--count", "5")
	if err != nil || result["allocated"].(float64) != 5 {
		t.Fatalf("%v, %v: want 5", result, err)
	}
	view, err := libvgpu.ReadCache(cache)
	if err != nil || len(view.Slots) < 2 {
		t.Errorf("%d slots, %v; want some of children", len(view.Slots), err)
	}
}

// lastSign makes the last sign of life of the first process an old one.
func lastSign(t *testing.T, cache string) {
	t.Helper()
	f, err := os.OpenFile(cache, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{1, 0, 0, 0, 0, 0, 0, 0}, 2097152+3072+24); err != nil {
		t.Fatal(err)
	}
}

func becameSleep(pid int) bool {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return string(name) == "sleep\n"
}

// What a program took is the job's again when its process has become another one by exec. A
// process that is only stopped keeps it.
func TestExecGivesMemoryBack(t *testing.T) {
	j := hardJob(t)
	env, cache := j.env, j.cache
	cmd, in, _ := forks(t, env, "--what", "exec")
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	r, err := libvgpu.OpenCache(cache)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	slot := func() libvgpu.SlotView {
		t.Helper()
		view, err := r.Read()
		if err != nil || len(view.Slots) != 1 {
			t.Fatalf("%+v, %v", view, err)
		}
		return view.Slots[0]
	}
	_ = cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(600 * time.Millisecond) // it is stopped, and its reader looks again
	lastSign(t, cache)
	if s := slot(); s.Gone || !s.Alive || s.Cards[0].Mem < 1<<30 {
		t.Fatalf("stopped: %+v", s)
	}
	_ = cmd.Process.Signal(syscall.SIGCONT)
	_ = in.Close()
	for end := time.Now().Add(20 * time.Second); !becameSleep(cmd.Process.Pid) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	lastSign(t, cache)
	s := slot()
	for end := time.Now().Add(20 * time.Second); !s.Gone && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		s = slot()
	}
	f, err := os.OpenFile(cache, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n, err := libvgpu.ClearSlots(f, []libvgpu.SlotOwner{s.SlotOwner}); !s.Left || n != 1 || err != nil {
		t.Errorf("%+v: cleared %d, %v", s, n, err)
	}
	if view, err := r.Read(); err != nil || len(view.Slots) != 0 {
		t.Errorf("%+v, %v: want no slot", view, err)
	}
	if cmd.Process.Signal(syscall.Signal(0)) != nil {
		t.Error("the process has ended")
	}
}

// A thread that is cancelled while it waits in the library leaves no allocation open: gresd
// would never compare the process with the card's count again.
func TestCancelledThreadsEndTheirAllocations(t *testing.T) {
	j := hardJob(t)
	env, cache := j.env, j.cache
	if _, err := run(t, env, "cancel"); err != nil {
		t.Fatal(err)
	}
	view, err := libvgpu.ReadCache(cache)
	if err != nil || len(view.Slots) == 0 {
		t.Fatalf("%+v, %v", view, err)
	}
	for _, s := range view.Slots {
		if s.MemBegun != s.MemDone {
			t.Errorf("process %d: %d allocations begun, %d ended", s.PID, s.MemBegun, s.MemDone)
		}
	}
}

// Nor is it cancelled in a launch, which is not where a program expects that: whatever it holds
// there would stay so.
func TestThreadsAreNotCancelledInALaunch(t *testing.T) {
	env, _ := limited(t, oneCard, "10")
	result, err := run(t, env, "cancel", "--launch", "1")
	if err != nil {
		t.Fatal(err)
	}
	if result["cancelled"].(float64) != 1 || result["inside"].(float64) != 0 {
		t.Errorf("%v: want it cancelled, between two launches", result)
	}
}
