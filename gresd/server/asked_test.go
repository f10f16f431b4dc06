// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// asks makes a job ask for GRES in slurmctld's words.
func (n *testNode) asks(id uint32, asked slurm.Asked) {
	n.t.Helper()
	n.cluster.change(n.t, func(s *clusterState) {
		if s.Asked == nil {
			s.Asked = map[uint32]slurm.Asked{}
		}
		s.Asked[id] = asked
	})
}

// byTask is a request for so many shards for each task, which may be on several cards.
func byTask(n gpu.Share) slurm.Asked { return slurm.Asked{PerTask: fmt.Sprintf("gres/shard:%d", n)} }

// Slurm 22.05 can start a job without the shards that it asks for. It must not
// run: nothing would hold it at its share. It comes again, but not for ever.
func TestJobThatLostItsShardsComesAgain(t *testing.T) {
	lost := func(f *slurm.JobFacts) { f.Units, f.MayAskForShards = nil, true }
	n := newTestNode(t).start()
	n.want(n.job(1, 0, lost, batch), wire.None) // a release that does not
	n = newTestNode(t)
	n.cluster.change(t, func(s *clusterState) { s.Old = true })
	n.start()
	for id := range uint32(3) {
		n.asks(id, slurm.Asked{PerNode: "gres:shard:30"})
	}
	n.want(n.job(1, 0, lost, batch), wire.Requeued)
	if rep := n.want(n.job(2, 0, lost), wire.Refused); !strings.Contains(rep.Message, "without the shards that it asks for (gres:shard:30)") {
		t.Errorf("the user is told %q", rep.Message)
	}
	n.want(n.job(3, 0, func(f *slurm.JobFacts) { f.Units = nil }), wire.None)
	// slurmctld lost its state and gave the number to another user's job.
	other := n.job(1, 0, lost, batch, func(f *slurm.JobFacts) { f.UID = 33 })
	other.Restart = 1
	n.want(other, wire.Requeued)
	again := n.job(1, 0, lost, batch)
	again.Restart = 1
	if rep := n.want(again, wire.Refused); !strings.Contains(rep.Message, "twice without the shards") {
		t.Errorf("the user is told %q", rep.Message)
	}
	// Its user's own words look like a request: slurmctld knows of none.
	n.asks(5, slurm.Asked{})
	n.want(n.job(5, 0, lost, batch), wire.None)
	// Prolog may ask twice for one run: it is sent back both times.
	n.asks(6, slurm.Asked{PerNode: "gres:shard:30"})
	w := n.job(6, 0, lost, batch)
	n.want(w, wire.Requeued)
	n.job(6, 0, lost, batch)
	n.want(w, wire.Requeued)
	// A record that cannot be read is held against what squeue says.
	n.cluster.change(t, func(s *clusterState) { s.Broken = map[uint32]string{7: "imitates", 8: "imitates"} })
	n.asks(7, slurm.Asked{PerNode: "gres:shard:30"})
	n.want(n.job(7, 0, lost), wire.Refused)
	n.want(n.job(8, 0, lost), wire.None)
	// Where slurmctld does not answer nobody knows.
	n.cluster.change(t, func(s *clusterState) { s.Down = true })
	if rep, _ := n.ask(wire.Request{Op: wire.OpGrant, JobID: 4, Node: "n1"}); rep.Kind != wire.KindBusy {
		t.Errorf("without slurmctld: got %+v, want no answer yet", rep)
	}
}

// Where Slurm may split shards over cards, a share that nobody asked to be split is not.
func TestShareIsNotSplitUnasked(t *testing.T) {
	n := newTestNode(t).start()
	on := func(units ...gpu.Share) func(*slurm.JobFacts) {
		return func(f *slurm.JobFacts) {
			f.Units = map[int]gpu.Share{}
			for card, u := range units {
				f.Units[card] = u
			}
		}
	}
	one := slurm.Asked{PerNode: "gres/shard:50"}
	n.asks(1, one)
	rep := n.want(n.job(1, 50, on(30, 20), batch), wire.Requeued)
	if want := "want 50 % of one card: slurmctld has split it into 30 % of card 0 and 20 % of card 1"; !strings.Contains(rep.Message, want) {
		t.Errorf("the user is told %q, want %q", rep.Message, want)
	}
	n.asks(2, one)
	n.want(n.job(2, 50, on(30, 20)), wire.Refused)
	n.asks(3, one) // raised for memory: the share is in the comment
	n.want(n.job(3, 50, on(30, 20), func(f *slurm.JobFacts) { f.Comment = "vgpu(share=40,mem=25%)" }), wire.Refused)
	if got := n.ledger.InUse(); len(got) != 0 {
		t.Errorf("in use are %v", got)
	}
	// Asked for: two cards, each task's own share, whole cards.
	asked := n.job(4, 50, on(25, 25))
	asked.Options.Cards = "2"
	n.want(asked, wire.Granted)
	n.end(4)
	n.want(wire.Request{Op: wire.OpRelease, JobID: 4, Node: "n1"}, wire.Released)
	n.asks(5, byTask(25))
	n.want(n.job(5, 75, on(50, 25)), wire.Granted)
	n.end(5)
	n.want(wire.Request{Op: wire.OpRelease, JobID: 5, Node: "n1"}, wire.Released)
	n.asks(6, byTask(40))
	n.want(n.job(6, 80, on(50, 30)), wire.Refused)
	n.want(n.job(7, 200, on(100, 100)), wire.Granted)
}
