// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// fill leaves no room in run_dir, which is a small tmpfs of its own, until mend is called.
func (n *testNode) fill() (mend func()) {
	n.t.Helper()
	f, err := os.CreateTemp(n.cfg.Paths.RunDir, "filler")
	if err != nil {
		n.t.Fatal(err)
	}
	defer f.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		n.t.Fatal(err)
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			n.t.Fatal(err)
		}
	}
}

// small mounts a small tmpfs.
func (n *testNode) small(dir, options string) {
	n.t.Helper()
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, options)
	}
	if errors.Is(err, unix.EPERM) {
		n.t.Skip("needs root: it mounts a tmpfs")
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// A user can fill run_dir. No job of another user drains the node then, and none keeps a record.
func TestAFullRunDirIsNoFaultOfTheNode(t *testing.T) {
	n := newTestNode(t)
	n.small(n.cfg.Paths.RunDir, "size=4m,mode=755")
	n.start()
	n.want(n.job(6, 10), wire.Granted)
	mend := n.fill()
	busy := func(req wire.Request) {
		t.Helper()
		if rep, err := n.ask(req); err == nil || rep.Kind != wire.KindBusy || !strings.Contains(err.Error(), "run_dir has no room") {
			t.Errorf("job %d: %+v, %v; want an answer that gresd is busy", req.JobID, rep, err)
		}
	}
	requeued, single, refused := n.job(7, 30, batch), n.job(8, 30), n.job(9, 30)
	refused.Options.Mem = "x"
	var asked sync.WaitGroup // each waits for room
	asked.Go(func() {
		rep, err := n.ask(requeued)
		if err != nil || rep.Result != wire.Requeued || !strings.Contains(rep.Message, "run_dir has no room") {
			t.Errorf("a batch job: %+v, %v; want it requeued", rep, err)
		}
	})
	asked.Go(func() { busy(single) })
	asked.Go(func() { busy(refused) })
	asked.Wait()
	// The Prolog asks again, and the folder of the job is gone.
	if err := os.RemoveAll(n.cfg.Paths.Job(6)); err != nil {
		t.Fatal(err)
	}
	again := n.fill()
	busy(n.job(6, 10))
	if held := records(n); len(held) != 1 || held[0] != 6 {
		t.Errorf("records of jobs %v, want that of 6 alone", held)
	}
	again()
	mend()
	n.want(n.job(6, 10), wire.Granted)
	n.want(single, wire.Granted)
	n.want(refused, wire.Refused)
}

// The same for a job whose MPS daemon finds no room.
func TestAJobIsRequeuedWhenItsMPSDaemonFindsNoRoom(t *testing.T) {
	n, _ := newMPSNode(t)
	n.small(n.cfg.Paths.MPS(), "nr_inodes=1")
	n.start()
	if rep := n.want(n.withMPS(7, 30, batch), wire.Requeued); !strings.Contains(rep.Message, "run_dir has no room") {
		t.Errorf("message %q", rep.Message)
	}
	if held := records(n); len(held) != 0 {
		t.Errorf("records of jobs %v, want none", held)
	}
}
