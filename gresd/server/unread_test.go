// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// answer sets the next answers of the driver.
func (f *fakeInventory) answer(cards []gpu.Card, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cards, f.err = cards, err
}

// If the driver names no card at gresd's start, jobs wait until it does. None fails.
func TestJobsWaitUntilTheDriverNamesTheCards(t *testing.T) {
	for name, err := range map[string]error{
		"the first card takes too long": fmt.Errorf("read cards: %w", driver.ErrNoAnswer),
		"the cards cannot be counted":   errors.New("count cards: Unknown Error"),
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			all := n.cards.cards
			n.cards.answer(nil, err)
			n.start()
			req := n.job(7, 30, batch)
			req.Within = 1
			if rep, asked := n.ask(req); asked == nil || rep.Kind != wire.KindBusy || !strings.Contains(asked.Error(), err.Error()) {
				t.Errorf("got %+v, %v; want an answer that gresd is busy", rep, asked)
			}
			n.want(n.job(8, 0, func(f *slurm.JobFacts) { f.Units = nil }), wire.None)

			// The main loop asks the driver again, without a beat.
			granted := make(chan wire.Reply, 1)
			go func() {
				rep, _ := n.ask(n.job(9, 30))
				granted <- rep
			}()
			n.cards.answer(all, nil)
			select {
			case rep := <-granted:
				if rep.Result != wire.Granted {
					t.Errorf("got %+v", rep)
				}
			case <-time.After(20 * time.Second):
				t.Error("the job still waits")
			}
		})
	}
}

// If slurmctld gives a job a card that gresd cannot read, the job is requeued. It does not fail.
func TestAJobOnACardThatCannotBeReadIsRequeued(t *testing.T) {
	lost := &driver.CardError{NVMLIndex: 1, Err: errors.New("get handle: GPU is lost")}
	on := func(units map[int]gpu.Share) func(*slurm.JobFacts) {
		return func(f *slurm.JobFacts) { f.Units = units }
	}
	for name, test := range map[string]struct {
		cards int
		err   error
		job   func(*slurm.JobFacts)
		want  wire.Result
		says  string
	}{
		"the card of the job":                {1, lost, on(map[int]gpu.Share{1: 30}), wire.Requeued, "GPU is lost"},
		"one of two cards":                   {1, lost, on(map[int]gpu.Share{0: 100, 1: 100}), wire.Requeued, "GPU is lost"},
		"another card":                       {1, lost, on(map[int]gpu.Share{0: 30}), wire.Granted, ""},
		"every card":                         {0, lost, on(map[int]gpu.Share{0: 30}), wire.Requeued, "GPU is lost"},
		"a card that the driver never names": {1, nil, on(map[int]gpu.Share{1: 30}), wire.Requeued, "card 1 is not on this node"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			n.cards.answer(n.cards.cards[:test.cards], test.err)
			n.start()
			rep := n.want(n.job(7, 30, batch, test.job), test.want)
			if !strings.Contains(rep.Message, test.says) {
				t.Errorf("message %q", rep.Message)
			}
		})
	}
}

// The same where gresd chooses the cards. A request that no card could serve stays the user's mistake.
func TestAChoiceOfOursThatLacksACardThatCannotBeRead(t *testing.T) {
	n := newTestNode(t, gresdPlaces)
	all := n.cards.cards
	n.cards.answer(all[:1], &driver.CardError{NVMLIndex: 1, Err: errors.New("GPU is lost")})
	n.start()
	counted := func(units gpu.Share) func(*slurm.JobFacts) {
		return func(f *slurm.JobFacts) { f.Units, f.Counted = nil, units }
	}
	two := n.job(7, 60, batch, counted(60))
	two.Options.Cards = "2"
	n.want(two, wire.Requeued)
	n.want(n.job(8, 30, batch, counted(30)), wire.Granted)
	typed := n.job(9, 30, batch, counted(30), func(f *slurm.JobFacts) { f.CountedTypes = []string{"h100"} })
	n.want(typed, wire.Requeued)
	n.cards.answer(all, nil)
	n.refreshCards()
	three := n.job(10, 60, batch, counted(60))
	three.Options.Cards = "3"
	n.want(three, wire.Refused)
}

// A whole card that gresd cannot read yet is not shared when it can be read again.
func TestAWholeCardThatCannotBeReadIsNotShared(t *testing.T) {
	n := newTestNode(t, gresdPlaces)
	all := n.cards.cards
	n.cards.answer(all[:1], &driver.CardError{NVMLIndex: 1, Err: errors.New("GPU is lost")})
	n.start()
	whole := n.job(7, 0, func(f *slurm.JobFacts) { f.Units, f.WholeCards = nil, []int{1} })
	whole.GPUs = []int{1}
	n.want(whole, wire.None)
	n.cards.answer(all, nil)
	n.refreshCards()
	if err := n.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.want(n.job(8, 60, func(f *slurm.JobFacts) { f.Units, f.Counted = nil, 60 }), wire.Granted)
	if rec, _ := n.ledger.Get(8); rec.Placement.Cards[0].Index != 0 {
		t.Errorf("the share is on %+v, which job 7 has as a whole", rec.Placement.Cards)
	}
}

// A job that was put off for such a card starts as soon as the driver reads it.
func TestAJobThatWasPutOffStartsWhenItsCardIsRead(t *testing.T) {
	n := newTestNode(t)
	all := n.cards.cards
	n.cards.answer(all[:1], &driver.CardError{NVMLIndex: 1, Err: errors.New("GPU is lost")})
	n.start()
	req := n.job(7, 30, batch, func(f *slurm.JobFacts) { f.Units = map[int]gpu.Share{1: 30} })
	req.Restart = 6
	n.want(req, wire.Requeued)
	updates := func() []string { return n.cluster.load().Updates }
	n.eventually("the job is put off", func() bool { return slices.Equal(updates(), []string{"7 later 10m0s"}) })
	n.refreshCards()
	n.cards.answer(all, nil)
	n.refreshCards()
	n.eventually("the job may start", func() bool { return len(updates()) == 2 })
}

// After a restart, gresd does not know the index of a lost card. The node still shows its fault.
func TestTheNodeShowsASickCardThatCannotBeReadAfterARestart(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted) // gresd learns the name of its node
	card := n.cards.cards[1].UUID
	n.want(wire.Request{Op: wire.OpCordon, Card: string(card), Reason: "fan"}, wire.Changed)
	n.eventually("the node has a comment", func() bool { return strings.Contains(n.said("comment"), "fan") })
	n.stop()
	n.cards.answer(n.cards.cards[:1], &driver.CardError{NVMLIndex: 1, Err: errors.New("GPU is lost")})
	n.start()
	n.outbox.TellNodes(t.Context())
	if said := n.said("comment"); !strings.Contains(said, "fan") || !strings.Contains(said, "GPU is lost") {
		t.Errorf("the comment is %q", said)
	}
}
