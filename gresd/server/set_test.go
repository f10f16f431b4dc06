// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// arbitrate runs an arbiter that looks only when it is woken: a change that is
// seen was not waited for.
func (n *testNode) arbitrate() {
	n.t.Helper()
	judge := arbiter.NewRunner(n.grants, arbiter.Params{Period: 20000, MaxPeriod: 50000, MinSlice: 500}, time.Hour, slog.New(slog.DiscardHandler))
	n.grants.OnChange(judge.Wake)
	var running sync.WaitGroup
	running.Go(func() { judge.Run(n.t.Context()) })
	n.t.Cleanup(running.Wait)
}

// inForce waits for the compute share in the grant of a job.
func (n *testNode) inForce(job, cores uint32) {
	n.t.Helper()
	start := time.Now()
	for n.grants.Schedule(job, 0).Cores != cores {
		if time.Since(start) > 5*time.Second {
			n.t.Fatalf("job %d: %+v after 5 s, want cores %d", job, n.grants.Schedule(job, 0), cores)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestSet(t *testing.T) {
	n := newTestNode(t).start()
	n.arbitrate()
	n.want(n.job(7, 60), wire.Granted)
	n.want(n.job(8, 40), wire.Granted)
	n.inForce(7, 60)
	rep := n.want(wire.Request{Op: wire.OpSet, JobID: 7, Cores: 20}, wire.Changed)
	if !strings.Contains(rep.Message, "20 %") || !strings.Contains(rep.Message, "60 %") {
		t.Errorf("message %q", rep.Message)
	}
	n.inForce(7, 20)
	// 20 and 40 of 60: the neighbour's slice grows as well, without its asking.
	for start := time.Now(); n.grants.Schedule(8, 0).SliceUS != 13333 && time.Since(start) < 5*time.Second; {
		time.Sleep(time.Millisecond)
	}
	if s := n.grants.Schedule(8, 0); s.Cores != 40 || s.SliceUS != 13333 {
		t.Errorf("job 8: %+v", s)
	}
	cards, jobs := n.report.Snapshot()
	if cards[0].Cores != 60 || cards[0].Share != 100 || jobs[0].Cards[0].Cores != 20 || jobs[0].Cards[0].Share != 60 {
		t.Errorf("card %+v, job %+v", cards[0], jobs[0].Cards[0])
	}

	// It outlives gresd, and a second Prolog of the same run.
	before := inode(t, n.file(7, "grant"))
	n.restart()
	n.arbitrate()
	n.want(n.job(7, 60), wire.Granted)
	n.grants.SetCores(8, 40) // wakes the new arbiter
	n.inForce(7, 20)
	if rec, _ := n.ledger.Get(7); rec.Placement.Cards[0].Cores != 20 || inode(t, n.file(7, "grant")) != before {
		t.Errorf("record %+v", rec.Placement)
	}
	n.want(wire.Request{Op: wire.OpSet, JobID: 7, Cores: 60}, wire.Changed) // back to all of it
	n.inForce(7, 60)
}

func TestSetRefuses(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	soft := n.job(8, 40)
	soft.Options = wire.Options{Mode: "soft:35", Cores: "20"}
	n.want(soft, wire.Granted)
	two := n.job(9, 20, func(f *slurm.JobFacts) { f.Units = map[int]gpu.Share{0: 20, 1: 50} })
	n.asks(9, byTask(10))
	n.want(two, wire.Granted)
	bad := n.job(10, 10)
	bad.Options.Mem = "x"
	n.want(bad, wire.Refused)
	for name, c := range map[string]struct {
		job, cores uint32
		say        string
	}{
		"more than its shards":    {7, 31, "vgpu: set: job 7: --cores: 31: want 1 to 30, the share that it holds of card 0, for example --cores 30"},
		"more than its ceiling":   {8, 36, "--cores: 36: want 1 to 35, the ceiling of its mode soft:35, for example --cores 35"},
		"more than on some card":  {9, 21, "want 1 to 20, the share that it holds of card 0"},
		"a job that was refused":  {10, 5, "job 10: it has no share"},
		"a job that is not there": {77, 5, "job 77: it has no share"},
		"more than a card":        {7, 101, "want 1 to 100"},
		"nothing":                 {7, 0, "want 1 to 100"},
		"no job":                  {0, 5, "want"},
	} {
		_, err := n.ask(wire.Request{Op: wire.OpSet, JobID: c.job, Cores: c.cores})
		var refused *wire.Error
		if errors.As(err, &refused) && refused.Kind != wire.KindUser || err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: got %v, want %q", name, err, c.say)
		}
	}
	if rep := n.askAs(nobody, wire.Request{Op: wire.OpSet, JobID: 7, Cores: 5}); rep.OK || rep.Kind != wire.KindUser || !strings.Contains(rep.Message, "only root") {
		t.Errorf("set by the job's own user: %+v", rep)
	}
	for job, want := range map[uint32]gpu.Share{7: 30, 8: 20, 9: 20} {
		if rec, _ := n.ledger.Get(job); rec.Placement.Cards[0].Cores != want {
			t.Errorf("job %d: cores %d, want %d", job, rec.Placement.Cards[0].Cores, want)
		}
	}
}
