// SPDX-License-Identifier: Apache-2.0

package libvgpu

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// A process in a PID namespace of its own is pid 1 there.
func TestFindsAProcessOfAnotherPIDNamespace(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Skipf("PID namespaces are not allowed here: %v", err)
	}
	host := uint32(cmd.Process.Pid)
	start, ok := startTime(host)
	ns := pidNS(strconv.Itoa(int(host)))
	if !ok || ns == 0 || ns == ownPIDNS() {
		t.Fatalf("start time %d, namespace %d, ours %d", start, ns, ownPIDNS())
	}
	var h hostPIDs
	if got := h.find(ns, 1, uint32(start)); got != host {
		t.Errorf("found %d, want %d", got, host)
	}
	for name, got := range map[string]uint32{
		"another start time": h.find(ns, 1, uint32(start)+1),
		"another namespace":  h.find(ns+1, 1, uint32(start)),
		"another pid":        h.find(ns, 2, uint32(start)),
	} {
		if got != 0 {
			t.Errorf("%s: found %d, want none", name, got)
		}
	}

	slot := SlotView{PID: 1, StartTime: start, PIDNS: ns}
	time.Sleep(rescanAfter)
	if alive, onHost := slot.look(); !alive || !onHost || slot.HostPID != host {
		t.Errorf("slot: alive %v, on host %v, host pid %d; want %d", alive, onHost, slot.HostPID, host)
	}
	// It may say that it is somebody else: that one has another start time.
	liar := SlotView{PID: 1, HostPID: uint32(os.Getpid()), StartTime: start, PIDNS: ns}
	if self, _ := startTime(uint32(os.Getpid())); self != start {
		if alive, onHost := liar.look(); alive || onHost {
			t.Error("a slot that names another process passed for alive")
		}
	}

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	gone := SlotView{PID: 1, StartTime: start, PIDNS: ns}
	time.Sleep(rescanAfter)
	if alive, onHost := gone.look(); alive || onHost {
		t.Errorf("after its end: alive %v, on host %v", alive, onHost)
	}
}
