// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func (f fakeCluster) Notify(_ context.Context, id uint32, message string) error {
	return os.WriteFile(f.path+".notice", []byte(message), 0o644)
}

func (f fakeCluster) Node(context.Context, string) (slurm.NodeFacts, error) {
	text, err := os.ReadFile(f.path + ".comment")
	if err != nil {
		return slurm.NodeFacts{State: "IDLE"}, nil
	}
	return slurm.NodeFacts{State: "IDLE", Comment: string(text)}, nil
}

func (f fakeCluster) CommentNode(_ context.Context, _, comment string) error {
	return os.WriteFile(f.path+".comment", []byte(comment), 0o644)
}

func (fakeCluster) DrainNode(context.Context, string, string) error { return errors.New("drained") }
func (fakeCluster) ResumeNode(context.Context, string) error        { return errors.New("resumed") }

func (n *testNode) said(what string) string {
	text, _ := os.ReadFile(n.cluster.path + "." + what)
	return string(text)
}

func (n *testNode) eventually(what string, ok func() bool) {
	n.t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("not within 5 s: %s", what)
		}
	}
}

func TestCordon(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	rep := n.want(wire.Request{Op: wire.OpCordon, Card: "0", Reason: "fan"}, wire.Changed)
	if !strings.Contains(rep.Message, "jobs that stay on it: 1") {
		t.Errorf("message %q", rep.Message)
	}

	// What lives on the card stays and is told; its user sees it too.
	_, jobs := n.report.Snapshot()
	if len(jobs) != 1 || len(jobs[0].Messages) != 1 || !strings.Contains(jobs[0].Messages[0], "administrator: fan") ||
		!strings.Contains(jobs[0].Messages[0], "this job goes on") {
		t.Errorf("jobs %+v", jobs)
	}
	n.eventually("slurmctld shows it to the job", func() bool { return strings.Contains(n.said("notice"), "fan") })
	n.eventually("the node has a comment", func() bool { return strings.HasPrefix(n.said("comment"), "vgpu: card 0: ") })

	// An interactive job is refused, a batch job waits, and the other card works.
	rep = n.want(n.job(8, 10), wire.Refused)
	for _, word := range []string{"card 0", "is not healthy", "administrator: fan"} {
		if !strings.Contains(rep.Message, word) {
			t.Errorf("refused without %q: %s", word, rep.Message)
		}
	}
	n.want(n.job(9, 10, func(f *slurm.JobFacts) { f.Batch = true }), wire.Requeued)
	n.want(n.job(10, 10, func(f *slurm.JobFacts) { f.Units = map[int]gpu.Share{1: 10} }), wire.Granted)
	status := n.report.Status(t.Context(), true)
	if c := status.Cards[0]; c.Healthy || !strings.Contains(c.Why, "fan") || !status.Cards[1].Healthy || status.Cards[1].Why != "" {
		t.Errorf("cards %+v", status.Cards)
	}
	if !slices.ContainsFunc(status.Problems, func(p string) bool { return strings.Contains(p, "fan") }) {
		t.Errorf("problems %q", status.Problems)
	}

	// It outlives gresd, and what the driver says of its cards.
	n.restart()
	n.refreshCards()
	n.want(n.job(11, 10), wire.Refused)
	n.want(wire.Request{Op: wire.OpUncordon, Card: string(n.cards.cards[0].UUID)}, wire.Changed)
	n.want(n.job(12, 10), wire.Granted)
	n.want(wire.Request{Op: wire.OpUncordon, Card: "0"}, wire.None)
	n.eventually("the comment is gone", func() bool { return n.said("comment") == "" })
}

func TestCordonIsForRoot(t *testing.T) {
	n := newTestNode(t).start()
	for _, op := range []wire.Op{wire.OpCordon, wire.OpUncordon} {
		if rep := n.askAs(nobody, wire.Request{Op: op, Card: "0"}); rep.OK || !strings.Contains(rep.Message, "only root") {
			t.Errorf("%s by a user: %+v", op, rep)
		}
		if _, err := n.ask(wire.Request{Op: op, Card: "7"}); err == nil || !strings.Contains(err.Error(), "for example 0 or GPU-") {
			t.Errorf("%s of a card that is not there: %v", op, err)
		}
	}
}

func TestPlacementOfOursGoesAround(t *testing.T) {
	n := newTestNode(t, gresdPlaces).start()
	n.want(wire.Request{Op: wire.OpCordon, Card: "0"}, wire.Changed)
	job := func(id uint32) wire.Request {
		req := n.job(id, 60, func(f *slurm.JobFacts) { f.Units, f.Counted = nil, 60 })
		return req
	}
	n.want(job(7), wire.Granted)
	if rec, _ := n.ledger.Get(7); rec.Placement.Cards[0].Index != 1 {
		t.Errorf("placed on %+v", rec.Placement)
	}
	n.want(wire.Request{Op: wire.OpCordon, Card: "1"}, wire.Changed)
	if rep := n.want(job(8), wire.Refused); !strings.Contains(rep.Message, "card 0: cordoned") || !strings.Contains(rep.Message, "card 1: cordoned") {
		t.Errorf("refused with %q", rep.Message)
	}
}

// What is known of a card can be forgotten after the card has gone.
func TestUncordonACardThatIsNotThereAnyMore(t *testing.T) {
	n := newTestNode(t).start()
	if err := n.Server.cards.Cordon("GPU-old", "burnt"); err != nil {
		t.Fatal(err)
	}
	if p := n.allProblems(true); len(p) != 1 || !strings.Contains(p[0], "GPU-old") {
		t.Errorf("problems %q", p)
	}
	n.want(wire.Request{Op: wire.OpUncordon, Card: "GPU-old"}, wire.Changed)
	if p := n.allProblems(true); len(p) != 0 {
		t.Errorf("problems %q", p)
	}
	if _, err := n.ask(wire.Request{Op: wire.OpUncordon, Card: "GPU-old"}); err == nil {
		t.Error("a card that nobody knows")
	}
}

// A card that fell off the bus is still counted by Slurm, and has its jobs.
func TestALostCardIsKept(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	all := n.cards.cards
	set := func(cards []gpu.Card, err error) {
		n.cards.mu.Lock()
		n.cards.cards, n.cards.err = cards, err
		n.cards.mu.Unlock()
		n.refreshCards()
	}
	set(all[1:], &driver.CardError{NVMLIndex: 0, Err: errors.New("lost")})
	if cards, _ := n.report.Snapshot(); len(cards) != 2 || cards[0].Healthy || cards[0].Why != "the driver cannot read it" || cards[0].Jobs != 1 || !cards[1].Healthy {
		t.Errorf("cards %+v", cards)
	}
	if rep := n.want(n.job(8, 10), wire.Refused); !strings.Contains(rep.Message, "the driver cannot read it") {
		t.Errorf("refused with %q", rep.Message)
	}
	set(all, nil)
	if cards, _ := n.report.Snapshot(); !cards[0].Healthy {
		t.Errorf("cards %+v", cards)
	}
	// A driver that says nothing takes nothing away.
	set(nil, errors.New("no answer"))
	if cards, _ := n.report.Snapshot(); len(cards) != 2 || !cards[0].Healthy {
		t.Errorf("cards %+v", cards)
	}
}

// A job of which neighbours take the time for long is a problem, which names it.
func TestADeprivedJobIsAProblem(t *testing.T) {
	var does atomic.Pointer[arbiter.Work]
	does.Store(&arbiter.Work{})
	n := newTestNode(t)
	n.work = func(arbiter.Key) (arbiter.Work, bool) { return *does.Load(), true }
	n.start()
	n.want(n.job(7, 30), wire.Granted)
	for _, c := range []struct {
		did  arbiter.Work
		want bool
	}{
		{arbiter.Work{Busy: true, Bound: arbiter.ByProgram, Had: 0.1}, false},
		{arbiter.Work{Busy: true, Bound: arbiter.ByNeighbors, Had: 0.1, Deprived: 9 * time.Second}, false},
		{arbiter.Work{Busy: true, Bound: arbiter.ByNeighbors, Had: 0.1, Deprived: 11 * time.Second}, true},
	} {
		did := c.did
		does.Store(&did)
		is := slices.ContainsFunc(n.allProblems(true), func(p string) bool {
			return strings.Contains(p, "job 7 ") && strings.Contains(p, "10%") && strings.Contains(p, "30%") && strings.Contains(p, "for 11s")
		})
		if is != c.want {
			t.Errorf("%+v: problems %q", c.did, n.allProblems(true))
		}
		if slices.ContainsFunc(n.allProblems(false), func(p string) bool { return strings.Contains(p, "job 7") }) {
			t.Errorf("%+v: other users are told of it", c.did)
		}
		_, jobs := n.report.Snapshot()
		if use := jobs[0].Cards[0].JobUse; use.LimitedBy != string(did.Bound) || *use.Had != did.Had || *use.DeprivedSeconds != did.Deprived.Seconds() {
			t.Errorf("%+v: told %+v", did, use)
		}
	}
}
