// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// fill leaves no room in dir, which is a small tmpfs of its own, until mend is called.
func (n *testNode) fill(dir string) (mend func()) {
	n.t.Helper()
	f, err := os.CreateTemp(dir, "filler")
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

// wantBusy asks for a job. gresd must not report an error of the node: Slurm then drains the node.
func (n *testNode) wantBusy(req wire.Request, reason string) {
	n.t.Helper()
	if rep, err := n.ask(req); err == nil || rep.Kind != wire.KindBusy || !strings.Contains(err.Error(), reason) {
		n.t.Errorf("%s of job %d: %+v, %v; want an answer that gresd is busy, with %q", req.Op, req.JobID, rep, err, reason)
	}
}

// wantNoRoom asks for a batch job, another job and a job whose request is wrong, while dir is full.
// It returns the last two.
func (n *testNode) wantNoRoom(dir string) (single, refused wire.Request) {
	n.t.Helper()
	reason := dir + " has no room"
	requeued, single, refused := n.job(7, 30, batch), n.job(8, 30), n.job(9, 30)
	refused.Options.Mem = "x"
	var asked sync.WaitGroup // each waits for room
	asked.Go(func() {
		rep, err := n.ask(requeued)
		if err != nil || rep.Result != wire.Requeued || !strings.Contains(rep.Message, reason) {
			n.t.Errorf("a batch job: %+v, %v; want it requeued", rep, err)
		}
	})
	asked.Go(func() { n.wantBusy(single, reason) })
	asked.Go(func() { n.wantBusy(refused, reason) })
	asked.Wait()
	return single, refused
}

// A user can fill run_dir. No job of another user drains the node then, and none keeps a record.
func TestAFullRunDirIsNoFaultOfTheNode(t *testing.T) {
	n := newTestNode(t)
	n.small(n.cfg.Paths.RunDir, "size=4m,mode=755")
	n.start()
	n.want(n.job(6, 10), wire.Granted)
	mend := n.fill(n.cfg.Paths.RunDir)
	single, refused := n.wantNoRoom("run_dir")
	// The Prolog asks again, and the folder of the job is gone.
	if err := os.RemoveAll(n.cfg.Paths.Job(6)); err != nil {
		t.Fatal(err)
	}
	again := n.fill(n.cfg.Paths.RunDir)
	n.wantBusy(n.job(6, 10), "run_dir has no room")
	if held := records(n); len(held) != 1 || held[0] != 6 {
		t.Errorf("records of jobs %v, want that of 6 alone", held)
	}
	again()
	mend()
	n.want(n.job(6, 10), wire.Granted)
	n.want(single, wire.Granted)
	n.want(refused, wire.Refused)
}

// The same for state_dir. A job that has its record keeps it.
func TestAFullStateDirIsNoFaultOfTheNode(t *testing.T) {
	n := newTestNode(t)
	n.small(n.cfg.Paths.StateDir, "size=1m,mode=700")
	n.start()
	n.want(n.job(6, 10), wire.Granted)
	mend := n.fill(n.cfg.Paths.StateDir)
	n.restart() // a new gresd begins a new journal
	single, refused := n.wantNoRoom("state_dir")
	n.want(n.job(6, 10), wire.Granted)
	n.wantBusy(wire.Request{Op: wire.OpRelease, JobID: 6}, "no space left on device")
	newName := n.job(10, 10)
	newName.Node = "n2" // gresd saves the names of the node
	n.wantBusy(newName, "no space left on device")
	if held := records(n); len(held) != 1 || held[0] != 6 {
		t.Errorf("records of jobs %v, want that of 6 alone", held)
	}
	mend()
	n.want(single, wire.Granted)
	n.want(refused, wire.Refused)
	n.want(wire.Request{Op: wire.OpRelease, JobID: 6}, wire.Released)
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

func TestASlowDiskIsLogged(t *testing.T) {
	for limit, want := range map[time.Duration]bool{-1: true, time.Hour: false} {
		var text strings.Builder
		s := Server{slowWrite: limit, log: slog.New(slog.NewTextHandler(&text, nil))}
		if err := s.awaitDisk(7, ledger.Pending{}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(text.String(), "job_id=7"); got != want {
			t.Errorf("limit %s: got %q, want a line: %v", limit, text.String(), want)
		}
	}
}
