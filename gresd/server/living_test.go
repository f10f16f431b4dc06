// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// counting notes the questions about jobs.
type counting struct {
	node.Slurm
	asked *[]uint32
}

func (c counting) Brief(ctx context.Context, job uint32, node string) (slurm.JobFacts, error) {
	*c.asked = append(*c.asked, job)
	return c.Slurm.Brief(ctx, job, node)
}

// countQuestions notes whom slurmctld is asked about from now on.
func (n *testNode) countQuestions() *[]uint32 {
	asked, ask := new([]uint32), n.node.Slurm
	n.node.Slurm = func(conf string) node.Slurm { return counting{ask(conf), asked} }
	return asked
}

func TestSlurmctldIsAskedOnlyAboutJobsWithoutAProcess(t *testing.T) {
	n := newTestNode(t).start()
	for _, job := range []uint32{7, 8} {
		n.want(n.job(job, 30), wire.Granted)
	}
	n.cluster.change(t, func(s *clusterState) { s.Stepds = []uint32{7} })
	asked := n.countQuestions()
	for _, whom := range []compareScope{due, all} {
		if err := n.reconcileOnce(t.Context(), whom); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(*asked, []uint32{8, 8}) {
		t.Errorf("asked about %d, want about 8, twice", *asked)
	}
	if n.ledger.Len() != 2 {
		t.Errorf("%d records are left, want 2", n.ledger.Len())
	}
	// Its process ends, and its Epilog was lost.
	n.cluster.change(t, func(s *clusterState) { s.Stepds = nil })
	n.end(7)
	if err := n.reconcileOnce(t.Context(), due); err != nil {
		t.Fatal(err)
	}
	if _, known := n.ledger.Get(7); known || n.ledger.Len() != 1 {
		t.Errorf("job 7 is known: %v, of %d", known, n.ledger.Len())
	}
}

// Slurm ends a job whose Epilog was lost, by an agent that tries again only after a minute.
func TestAJobThatSlurmEndsIsAskedAboutEachTime(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	n.cluster.change(t, func(s *clusterState) {
		f := s.Jobs[7]
		f.State = slurm.Completing
		s.Jobs[7] = f
	})
	for range 3 {
		if err := n.reconcileOnce(t.Context(), due); err != nil {
			t.Fatal(err)
		}
	}
	if n.ledger.Len() != 1 {
		t.Fatal("released before it had ended")
	}
	n.end(7)
	if err := n.reconcileOnce(t.Context(), due); err != nil {
		t.Fatal(err)
	}
	if n.ledger.Len() != 0 {
		t.Error("the share of a job that has ended is kept")
	}
}

// unclear gives an answer about one job that says nothing.
type unclear struct {
	node.Slurm
	job uint32
	err error
}

func (u unclear) Brief(ctx context.Context, job uint32, node string) (slurm.JobFacts, error) {
	if job == u.job {
		return slurm.JobFacts{}, u.err
	}
	return u.Slurm.Brief(ctx, job, node)
}

// One job without a clear answer keeps its share, and keeps no share of others. If slurmctld is
// silent, gresd does not ask about the others.
func TestAJobWithoutAClearAnswerKeepsNoOther(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		left []uint32
	}{
		"an unknown text": {fmt.Errorf("scontrol: %w: Zero Bytes were transmitted or received", slurm.ErrUnavailable), []uint32{7}},
		"silence":         {fmt.Errorf("scontrol: %w", slurm.ErrSilent), []uint32{7, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t).start()
			n.want(n.job(7, 30), wire.Granted)
			n.want(n.job(8, 30), wire.Granted)
			ask := n.node.Slurm
			n.node.Slurm = func(conf string) node.Slurm { return unclear{ask(conf), 7, test.err} }
			n.end(8)
			if err := n.Reconcile(t.Context()); !errors.Is(err, test.err) {
				t.Errorf("error %v, want %v", err, test.err)
			}
			if held := records(n); !slices.Equal(held, test.left) {
				t.Errorf("records of jobs %v, want %v", held, test.left)
			}
		})
	}
}

// asksNodes counts the questions about nodes.
type asksNodes struct {
	node.Slurm
	asked *int
}

func (a asksNodes) Node(ctx context.Context, node string) (slurm.NodeFacts, error) {
	*a.asked++
	return a.Slurm.Node(ctx, node)
}

// A node with nothing to say does not ask what slurmctld says of it, and one with a sick card does
// now and then.
func TestAHealthyNodeSaysNothing(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	n.stop()
	var asked int
	ask := n.node.Slurm
	cleanup := func() {}
	again := func() *Server { // as after a restart
		cleanup()
		s, clean, err := assemble(n.cfg, n.dir, n.cluster, n.cards, n.count, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		cleanup = clean
		s.node.Slurm = func(conf string) node.Slurm { return asksNodes{ask(conf), &asked} }
		return s
	}
	tell := func(s *Server, want int, when string) {
		t.Helper()
		asked = 0
		for range 10 {
			s.outbox.TellNodes(t.Context())
		}
		if asked != want {
			t.Errorf("%s: %d questions, want %d", when, asked, want)
		}
	}
	s := again()
	tell(s, 0, "no card was ever sick")
	if err := s.cards.Cordon(n.cards.cards[0].UUID, "noise"); err != nil {
		t.Fatal(err)
	}
	tell(s, 2, "a card is sick") // and once more, to see that it was taken
	s = again()
	tell(s, 1, "after another restart")
	if _, err := s.cards.Uncordon(n.cards.cards[0].UUID); err != nil {
		t.Fatal(err)
	}
	tell(s, 2, "the card is well")
	s = again()
	tell(s, 0, "after a restart")
	if err := os.Remove(s.cfg().Paths.Silent()); err != nil {
		t.Fatal(err)
	}
	tell(s, 1, "an earlier gresd may have said something")
	cleanup()
}
