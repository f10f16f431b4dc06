// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// TestMain lets the test program be the child that gresd runs.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		main()
		return
	}
	os.Exit(m.Run())
}

func testGrants(t *testing.T) *grant.Store {
	t.Helper()
	dir := t.TempDir()
	grants, err := grant.NewStore(grant.Layout{
		RunDir: dir, Jobs: filepath.Join(dir, "jobs"), Preload: filepath.Join(dir, "preload"), Library: "/usr/lib/vgpu/libvgpu.so",
		SelfDir: filepath.Join(dir, "self"), HostPreload: filepath.Join(dir, "ld.so.preload"),
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(grants.Close)
	return grants
}

// takeSlot writes a process into slot 0 of a cache, as libvgpu would.
func takeSlot(t *testing.T, path string, pid int, mem uint64) {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	start, err := strconv.ParseUint(strings.Fields(rest)[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	slot := make([]byte, 72)
	binary.LittleEndian.PutUint64(slot, 0x3ff<<54|uint64(pid)<<32|start&0xffffffff)
	binary.LittleEndian.PutUint64(slot[8:], start)
	binary.LittleEndian.PutUint64(slot[64:], mem)
	const header, slots = 2097152, 2097152 + 3072
	for at, data := range map[int64][]byte{slots: slot, header + 32: {1, 0, 0, 0}} {
		if _, err := f.WriteAt(data, at); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSlotsOfDeadProcessesAreCleared(t *testing.T) {
	grants := testGrants(t)
	const job, nobody = 7, 65534
	err := grants.Create(grant.SpecOf(ledger.Record{
		JobID: job, UID: nobody, GID: nobody, State: ledger.Granted, Mode: gpu.Hard, Created: time.Now(),
		Placement: place.Placement{Cards: []place.CardShare{{UUID: "GPU-a", Share: 30, Cores: 30, Memory: gpu.GiB}}},
	}), nil)
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command("/bin/sleep", "60")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	takeSlot(t, filepath.Join(grants.Dir(job), "cache"), process.Process.Pid, 1<<20)
	slots := func() []libvgpu.SlotView {
		view, err := grants.Cache(job, 0)
		if err != nil {
			t.Fatal(err)
		}
		return view.Slots
	}
	if s := slots(); len(s) != 1 || !s[0].Alive {
		t.Fatalf("slots %+v, want a living process", s)
	}
	r := grant.NewSlotReclaimer(grants, grant.ClearInChild(self, clearSlots), slog.New(slog.DiscardHandler))
	var running sync.WaitGroup
	running.Go(func() { r.Run(t.Context()) }) // until the test ends
	t.Cleanup(running.Wait)
	_ = process.Process.Kill()
	_ = process.Wait()
	for deadline := time.Now().Add(20 * time.Second); len(slots()) != 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("slots %+v 20 s after the death of their process", slots())
		}
	}
}
