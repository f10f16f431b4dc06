// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

func TestRestartAdopts(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	bad := n.job(8, 30)
	bad.Options.Mem = "x"
	n.want(bad, wire.Refused)
	before := inode(t, n.file(7, "grant"))
	n.stop() // as on SIGTERM: the grants stay in force
	if !exists(n.file(7, "grant")) || !exists(n.file(8, "refused")) {
		t.Fatal("stopping removed files of living jobs")
	}
	n.start()
	if inode(t, n.file(7, "grant")) != before {
		t.Error("the grant was replaced")
	}
	if !n.grants.Has(7) || len(n.ledger.List()) != 2 {
		t.Errorf("open %v, records %v", n.grants.Open(), n.ledger.List())
	}
	if n.ledger.InUse()[n.cards.cards[0].UUID].Units != 30 {
		t.Error("the card is not counted as in use")
	}
}

func TestRestartReleasesWhatEnded(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	n.want(n.job(8, 30), wire.Granted)
	n.stop()
	n.end(7)
	n.start()
	if !exists(n.file(7, "grant")) {
		t.Error("slurmctld was asked at once: all nodes may start at once")
	}
	if err := n.reconcileOnce(t.Context(), due); err != nil {
		t.Fatal(err)
	}
	if exists(n.cfg.Paths.Job(7)) || !exists(n.file(8, "grant")) {
		t.Error("want job 7 gone and job 8 kept")
	}
}

// The clock was set back an hour: what was granted before it seems to be of the
// future, and what is granted after it to be old.
func TestTheClockMayBeSet(t *testing.T) {
	n := newTestNode(t).start()
	for _, job := range []uint32{7, 8} {
		n.want(n.job(job, 30), wire.Granted)
		rec, _ := n.ledger.Get(job)
		rec.Created = rec.Created.Add(time.Hour)
		if err := n.ledger.Commit(rec); err != nil {
			t.Fatal(err)
		}
	}
	n.end(7)
	ask, began := n.node.Slurm, false
	n.node.Slurm = func(conf string) node.Slurm {
		return answered{ask(conf), func() {
			// Slurm has answered; a job that starts now is not in its answer.
			if !began {
				began = true
				n.want(n.job(9, 20), wire.Granted)
				rec, _ := n.ledger.Get(9)
				rec.Created = rec.Created.Add(-time.Hour)
				if err := n.ledger.Commit(rec); err != nil {
					t.Error(err)
				}
				n.end(9) // as far as that answer knows
			}
		}}
	}
	if err := n.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	for job, want := range map[uint32]bool{7: false, 8: true, 9: true} {
		if _, known := n.ledger.Get(job); known != want || exists(n.cfg.Paths.Job(job)) != want {
			t.Errorf("job %d: known %v, want %v", job, known, want)
		}
	}
}

// answered calls something when Slurm has answered about a job.
type answered struct {
	node.Slurm
	then func()
}

func (a answered) Brief(ctx context.Context, job uint32, node string) (slurm.JobFacts, error) {
	facts, err := a.Slurm.Brief(ctx, job, node)
	a.then()
	return facts, err
}

// A job whose Epilog came while the ledger was still to be rebuilt lives on in
// Slurm for a while: it gets nothing back.
func TestWhatWasReleasedIsNotRecovered(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	n.want(n.job(8, 30), wire.Granted)
	n.stop()
	if err := os.WriteFile(n.cfg.Paths.Ledger(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(n.cfg.Paths.RunDir); err != nil {
		t.Fatal(err)
	}
	down := func(is bool) { n.cluster.change(t, func(s *clusterState) { s.Down = is }) }
	down(true)
	n.start()
	if rep := n.release(wire.Request{JobID: 7}); !rep.OK {
		t.Fatalf("release: %+v", rep)
	}
	down(false)
	if err := n.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, known := n.ledger.Get(7); known {
		t.Error("job 7 was released and is back")
	}
	if _, known := n.ledger.Get(8); !known {
		t.Error("job 8 lives and is lost")
	}
}

// A job that starts after gresd asks for itself, with its options: recovering it would take them
// from it.
func TestAJobThatStartsIsNotRecovered(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(6, 30), wire.Granted)
	n.stop()
	removeAll(t, n.cfg.Paths.RunDir)
	if err := os.Remove(n.cfg.Paths.Ledger()); err != nil {
		t.Fatal(err)
	}
	n.cluster.change(t, func(s *clusterState) { s.Down = true })
	n.start()
	n.job(7, 30)
	n.cluster.change(t, func(s *clusterState) { s.Down = false })
	if err := n.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n.isLost() {
		t.Fatal("gresd still waits for slurmctld")
	}
	if _, known := n.ledger.Get(6); !known {
		t.Error("job 6 lives and is lost")
	}
	if rec, known := n.ledger.Get(7); known {
		t.Errorf("recovered without having asked: %+v", rec)
	}
}

func TestNothingEndsWhileSlurmctldIsDown(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	n.end(7)
	n.cluster.change(t, func(s *clusterState) { s.Down = true })
	n.restart()
	if err := n.Reconcile(t.Context()); err == nil {
		t.Error("want an error that says slurmctld is not available")
	}
	if !n.grants.Has(7) {
		t.Error("the grant was lost")
	}
	n.cluster.change(t, func(s *clusterState) { s.Down = false })
	if err := n.Reconcile(t.Context()); err != nil || exists(n.cfg.Paths.Job(7)) {
		t.Errorf("job 7 should be gone now: %v", err)
	}
}

func TestMissingFilesAreMadeAgain(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	bad := n.job(8, 30)
	bad.Options.Mem = "x"
	n.want(bad, wire.Refused)
	for name, lose := range map[string]func(){
		"while it runs": func() { removeAll(t, n.cfg.Paths.Jobs(), "7", "8") },
		"while it is stopped": func() {
			n.stop()
			removeAll(t, n.cfg.Paths.RunDir)
			n.start()
		},
	} {
		lose()
		if err := n.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		if spec, _, err := libvgpu.ReadGrant(n.file(7, "grant")); err != nil || spec.Cards[0].MemLimit != 30<<30 {
			t.Errorf("%s: grant %+v, %v", name, spec, err)
		}
		if !exists(n.file(8, "refused")) {
			t.Errorf("%s: the refusal was not made again", name)
		}
	}
}

func removeAll(t *testing.T, dir string, names ...string) {
	t.Helper()
	if len(names) == 0 {
		names = []string{"."}
	}
	for _, name := range names {
		if out, err := exec.Command("find", filepath.Join(dir, name), "-mindepth", "1", "-delete").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		_ = os.Remove(filepath.Join(dir, name))
	}
}

func TestOrphansAreRemoved(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	n.stop()
	for _, name := range []string{"99", "new-7", "junk"} {
		if err := os.Mkdir(filepath.Join(n.cfg.Paths.Jobs(), name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	entries, err := os.ReadDir(n.cfg.Paths.Jobs())
	if err != nil || len(entries) != 1 || entries[0].Name() != "7" {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestCorruptLedgerIsRebuilt(t *testing.T) {
	n := newTestNode(t).start()
	soft := n.job(7, 30)
	soft.Options = wire.Options{Mem: "8G", Mode: "soft:80"}
	n.want(soft, wire.Granted)
	n.want(n.job(8, 20), wire.Granted)
	n.want(n.job(9, 20), wire.Granted)
	before := inode(t, n.file(7, "grant"))
	n.stop()
	n.end(9)
	if err := os.Truncate(n.cfg.Paths.Ledger(), 20); err != nil {
		t.Fatal(err)
	}
	n.start()
	rec, known := n.ledger.Get(7)
	if c := rec.Placement.Cards; !known || len(c) != 1 || c[0].Share != 30 || c[0].Memory != 8*gpu.GiB ||
		rec.Mode != gpu.Soft || rec.Ceiling != 80 || rec.User != "nobody" || rec.Account != "phys" {
		t.Errorf("record %+v", rec)
	}
	if inode(t, n.file(7, "grant")) != before || !n.grants.Has(7) {
		t.Error("the grant of a living job was not adopted")
	}
	if n.ledger.InUse()[n.cards.cards[0].UUID].Units != 50 {
		t.Errorf("in use %+v, want 50", n.ledger.InUse())
	}
	if exists(n.cfg.Paths.Job(9)) {
		t.Error("an ended job was rebuilt")
	}
}

func TestCorruptLedgerWithSlurmctldDown(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	n.stop()
	n.cluster.change(t, func(s *clusterState) { s.Down = true })
	if err := os.WriteFile(n.cfg.Paths.Ledger(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.start()
	if !n.grants.Has(7) || n.ledger.InUse()[n.cards.cards[0].UUID].Units != 30 {
		t.Error("the grant was not rebuilt from its file")
	}
}

// The run of a job is known again, or learned from its next Prolog; either way
// that Prolog does not take the grant from the job's tasks.
func TestRunOfARebuiltRecord(t *testing.T) {
	for name, down := range map[string]bool{"slurmctld answers": false, "slurmctld is down": true} {
		n := newTestNode(t).start()
		req := n.job(7, 30, func(f *slurm.JobFacts) { f.Restarts = 2 })
		req.Restart = 2
		n.want(req, wire.Granted)
		putSlot(t, n.file(7, "cache"), 1, 1) // a task is at work
		before := inode(t, n.file(7, "grant"))
		n.stop()
		if err := os.Remove(n.cfg.Paths.Ledger()); err != nil {
			t.Fatal(err)
		}
		n.cluster.change(t, func(s *clusterState) { s.Down = down })
		n.start()
		known := int64(2)
		if down {
			known = ledger.UnknownRun
		}
		if rec, _ := n.ledger.Get(7); rec.Restarts != known {
			t.Errorf("%s: run %d, want %d", name, rec.Restarts, known)
		}
		n.want(req, wire.Granted)
		if rec, _ := n.ledger.Get(7); rec.Restarts != 2 || inode(t, n.file(7, "grant")) != before {
			t.Errorf("%s: run %d, want 2 and the same grant", name, rec.Restarts)
		}
	}
}

// Ledger and run folder are both lost; the jobs run on.
func TestLostLedgerAndFolders(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	n.job(8, 30, func(f *slurm.JobFacts) { f.Units = nil }) // lives and has no share
	n.job(9, 90, batch)                                     // never fitted
	n.stop()
	removeAll(t, n.cfg.Paths.RunDir)
	if err := os.Remove(n.cfg.Paths.Ledger()); err != nil {
		t.Fatal(err)
	}
	n.start()
	if rec, known := n.ledger.Get(7); !known || rec.Placement.Cards[0].Share != 30 || !n.grants.Has(7) {
		t.Errorf("job 7: %v, %+v", known, rec)
	}
	if len(n.ledger.List()) != 1 {
		t.Errorf("records %+v, want only job 7", n.ledger.List())
	}
	if got := n.cluster.load().Requeued; len(got) != 0 {
		t.Errorf("recovery requeued %v", got)
	}
}

// While slurmctld is away a lost ledger is rebuilt in part. That is not forgotten over a restart.
func TestALostLedgerIsRebuiltByALaterGresd(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	n.want(n.job(8, 20), wire.Granted)
	n.stop()
	removeAll(t, n.cfg.Paths.Job(8))
	if err := os.Remove(n.cfg.Paths.Ledger()); err != nil {
		t.Fatal(err)
	}
	n.cluster.change(t, func(s *clusterState) { s.Down, s.Stepds = true, []uint32{7, 8} })
	n.start()
	if rec := n.ledger.List(); len(rec) != 1 || rec[0].JobID != 7 {
		t.Fatalf("records %+v, want job 7, which has a folder", rec)
	}
	n.restart()
	n.cluster.change(t, func(s *clusterState) { s.Down = false })
	if err := n.Reconcile(context.Background()); err != nil {
		t.Fatal(err)
	}
	if rec, known := n.ledger.Get(8); !known || rec.Placement.Cards[0].Share != 20 || !n.grants.Has(8) {
		t.Errorf("job 8: %v, %+v", known, rec)
	}
	n.end(8)
	n.want(wire.Request{Op: wire.OpRelease, JobID: 8}, wire.Released)
	n.job(8, 20) // would be recovered again
	n.restart()
	if _, known := n.ledger.Get(8); known {
		t.Error("a ledger that was rebuilt is still taken for lost")
	}
}

// A node name that no Prolog has said must not make all jobs look ended.
func TestUnknownNodeNameKeepsAll(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	n.stop()
	n.end(7)
	if err := os.Remove(filepath.Join(n.cfg.Paths.StateDir, "nodes.json")); err != nil {
		t.Fatal(err)
	}
	n.start()
	if !n.grants.Has(7) {
		t.Error("a job was released though nobody could be asked about it")
	}
}

func TestARevokedGrantIsNotRebuilt(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	// Killed between the two halves of a release, while the job completes.
	n.grants.Revoke(7)
	_, onDisk := n.ledger.BeginDelete(7)
	if err := onDisk.Wait(); err != nil {
		t.Fatal(err)
	}
	n.restart()
	if exists(n.cfg.Paths.Job(7)) || len(n.ledger.List()) != 0 {
		t.Error("a job whose release had begun came back")
	}
}

// A node may have thousands of jobs: a job that starts does not wait until all of
// them were looked at.
func TestAJobStartsWhileAllAreCompared(t *testing.T) {
	n := newTestNode(t).start()
	for id := range uint32(3) {
		n.want(n.job(10+id, 5), wire.Granted)
	}
	unlock := n.jobLocks.lock(11) // work on one job that takes long
	compared := make(chan error, 1)
	go func() { compared <- n.Reconcile(context.Background()) }()
	waiting := func() bool {
		n.jobLocks.mu.Lock()
		defer n.jobLocks.mu.Unlock()
		return n.jobLocks.byJob[11].users > 1
	}
	for end := time.Now().Add(5 * time.Second); !waiting() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	next := n.job(20, 5)
	answered := make(chan wire.Reply, 1)
	go func() {
		rep, _ := n.ask(next)
		answered <- rep
	}()
	select {
	case rep := <-answered:
		if rep.Result != wire.Granted {
			t.Errorf("answer is %q %q", rep.Result, rep.Message)
		}
	case <-time.After(10 * time.Second):
		t.Error("a job waits for the comparison of another")
	}
	unlock()
	if err := <-compared; err != nil {
		t.Error(err)
	}
	n.end(10, 11, 12)
	if err := n.Reconcile(context.Background()); err != nil || n.ledger.Len() != 1 {
		t.Errorf("%d jobs are left, %v; want 1", n.ledger.Len(), err)
	}
}
