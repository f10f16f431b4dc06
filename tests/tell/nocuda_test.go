// SPDX-License-Identifier: Apache-2.0

package tell

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// withoutCUDA starts a program that asks the kernel driver itself.
func (j job) withoutCUDA(errs io.Writer, args ...string) (*exec.Cmd, *json.Decoder) {
	j.t.Helper()
	cmd := exec.Command("../../build/simgpu/bin/nocuda", args...)
	driver, err := filepath.Abs("../../build/simgpu/lib/libsimrm.so")
	if err != nil {
		j.t.Fatal(err)
	}
	for _, v := range j.env {
		if strings.HasPrefix(v, "LD_PRELOAD=") {
			v += ":" + driver
		}
		cmd.Env = append(cmd.Env, v)
	}
	cmd.Stderr = errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		j.t.Fatal(err)
	}
	j.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, json.NewDecoder(bufio.NewReader(out))
}

type line struct {
	Total  uint64 `json:"total_mib"`
	Free   uint64 `json:"free_mib"`
	Got    uint64 `json:"got_mib"`
	Status uint32 `json:"status"`
	Again  uint32 `json:"again"`
}

func next(t *testing.T, lines *json.Decoder) (l line) {
	t.Helper()
	if err := lines.Decode(&l); err != nil {
		t.Fatalf("%v (run make first)", err)
	}
	return l
}

// A process that never calls CUDA is counted, refused and shown its share, and what it takes is its
// job's: it has a slot, a sign of life and slices.
func TestAProgramWithoutCUDAHasItsShare(t *testing.T) {
	const noMemory = 0x51
	j := newJob(t)
	var errs bytes.Buffer
	cmd, lines := j.withoutCUDA(&errs, "600")
	if l := next(t, lines); l.Total != 8<<10 || l.Free != 8<<10 {
		t.Errorf("told %+v at the start, want 8 GiB", l)
	}
	if l := next(t, lines); l.Total != 8<<10 || l.Free != 0 {
		t.Errorf("told %+v with all in use, want 8 GiB and none free", l)
	}
	if l := next(t, lines); l.Got != 8<<10 || l.Status != noMemory {
		t.Errorf("got %+v, want 8 GiB and status %#x", l, noMemory)
	}
	slot := j.slotOf(cmd.Process.Pid)
	if c := slot.Cards[0]; c.Mem != 8<<30 || c.Contexts != 1 {
		t.Errorf("its slot has %d MiB and %d contexts, want 8192 and 1", c.Mem>>20, c.Contexts)
	}
	if slot.Flags&libvgpu.SlotUngated == 0 {
		t.Errorf("its slot has the flags %#x: gresd takes it for one that does nothing", slot.Flags)
	}
	grant, err := libvgpu.OpenGrantRW(j.file("VGPU_GRANT"))
	if err != nil {
		t.Fatal(err)
	}
	defer grant.Close()
	const slice = 3000
	grant.SetSchedule(0, libvgpu.Schedule{SliceUS: slice, Cores: 30, Gate: libvgpu.GateBudget})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		now := j.slotOf(cmd.Process.Pid)
		if now.HeartbeatNS != slot.HeartbeatNS && now.Cards[0].SliceUS == slice && now.Flags&libvgpu.SlotSlicesOK != 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a minute: heartbeat %d, before %d; slice %d us, want %d; flags %#x", now.HeartbeatNS, slot.HeartbeatNS, now.Cards[0].SliceUS, slice, now.Flags)
		}
	}
	// What another process of the job may have is what is left.
	var others bytes.Buffer
	second, rest := j.withoutCUDA(&others)
	next(t, rest)
	next(t, rest)
	if l := next(t, rest); l.Got != 0 || l.Status != noMemory {
		t.Errorf("a second process got %+v", l)
	}
	if l := next(t, rest); l.Again != noMemory {
		t.Errorf("a second process got %+v afterwards", l)
	}
	if err := second.Wait(); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for _, want := range []string{
		`(?m)^vgpu: memory: 256 MiB refused: the limit of job 4217 on card 0 is 8 GiB, used are 8 GiB, of which this process \(\d+\) holds 8 GiB\. To have more: submit with --vgpu-mem=9G$`,
		`(?m)^vgpu: compute: process \d+ works on card 0 by calls that no gate holds: its hard limit of 30% acts as a soft one: .*$`,
	} {
		if got := regexp.MustCompile(want).FindAllString(errs.String(), -1); len(got) != 1 {
			t.Errorf("stderr %q, want once %s", errs.String(), want)
		}
	}
}

// What goes with its device is given back.
func TestAProgramWithoutCUDAGivesBack(t *testing.T) {
	j := newJob(t)
	var errs bytes.Buffer
	cmd, lines := j.withoutCUDA(&errs)
	for range 3 {
		next(t, lines)
	}
	if l := next(t, lines); l.Again != 0 {
		t.Errorf("with all given back it got %+v", l)
	}
	if l := next(t, lines); l.Free != 8<<10-256 {
		t.Errorf("told %+v with 256 MiB in use", l)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, errs.String())
	}
}

func (j job) slotOf(pid int) libvgpu.SlotView {
	j.t.Helper()
	view, err := libvgpu.ReadCache(j.file("VGPU_CACHE"))
	if err != nil {
		j.t.Fatal(err)
	}
	for _, s := range view.Slots {
		if s.PID == uint32(pid) {
			return s
		}
	}
	j.t.Fatalf("process %d has no slot", pid)
	return libvgpu.SlotView{}
}
