// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Times tells how long processes had a card.
type Times interface {
	OnCard(card gpu.UUID) (gputime.Account, bool)
}

// exact is what the cards' own records say of the cards on which some job's use must
// be known. The records cost the card and this process a little, so nobody asks for
// those of other cards.
type exact struct {
	times Times
	cards map[gpu.UUID]*cardAccount
	// unseen are the cards on which a process works whose launches nobody counts.
	unseen map[gpu.UUID]bool
	// nameless is for how long jobs of ours worked, and others alone had their cards.
	nameless time.Duration
}

// cardAccount is what a look at a card's records told.
type cardAccount struct {
	sum   gputime.Account
	known bool
	asks  int                    // number of questions
	begun bool                   // all of sum is from the time of the questions
	span  time.Duration          // since the look before; 0: nothing new
	use   map[uint32]gputime.Use // in that, by pid of the host
	works bool                   // some job of ours did
	ours  time.Duration          // what such jobs had
}

// namelessFor is how long nobody whom we know has had the card, while jobs of ours launched
// work, until the records are not believed: they number processes as the first PID namespace
// does, and a gresd in another one does not know these numbers.
const namelessFor = 250 * time.Millisecond

// ask chooses the cards for the next poll: cards with several competing jobs, and cards with work
// that no other source shows.
func (e *exact) ask(contested map[gpu.UUID]bool) {
	if e.times == nil {
		return
	}
	wanted := map[gpu.UUID]*cardAccount{}
	for card, several := range contested {
		if several || e.unseen[card] {
			if wanted[card] = e.cards[card]; wanted[card] == nil {
				wanted[card] = &cardAccount{}
			}
		}
	}
	e.cards = wanted
}

// end judges the last poll, and chooses the cards for the next poll.
func (e *exact) end(contested map[gpu.UUID]bool) (doubts bool) {
	doubts = e.judge()
	e.ask(contested)
	return doubts
}

// look takes the newest account of every card that was asked for.
func (e *exact) look() {
	e.unseen = nil
	for card, c := range e.cards {
		before, was := c.sum, c.known
		c.sum, c.known = e.times.OnCard(card)
		c.asks++
		c.span, c.use, c.works, c.ours = 0, nil, false, 0
		if !c.known || !was || c.sum.At <= before.At {
			continue
		}
		if !c.begun {
			// What was there before may be from when this card was last asked. Since then
			// somebody had it who did nothing: who stays on it leaves no record.
			c.begun = true
			continue
		}
		c.span, c.use = c.sum.At-before.At, map[uint32]gputime.Use{}
		for pid, use := range c.sum.Uses {
			c.use[pid] = use.Since(before.Uses[pid])
		}
	}
}

// works says whether a process worked in the last span, by the card's records. It wanted the card for half
// of the span: its kernels may run for longer than [hold]. No hook sees a process that works without CUDA.
// Its card is always asked, any time on the card is work, and it works if there are no records.
func (e *exact) works(card gpu.UUID, slot libvgpu.SlotView) bool {
	ungated := slot.Flags&libvgpu.SlotUngated != 0
	if ungated {
		if e.unseen == nil {
			e.unseen = map[gpu.UUID]bool{}
		}
		e.unseen[card] = true
	}
	if !slot.OnHost || e.refused(card) {
		return ungated
	}
	if e.cards[card] == nil {
		return false // nobody has asked yet
	}
	use, span := e.cards[card].use[slot.HostPID], e.cards[card].span
	wanted := use.Had + use.Waited
	return wanted > 0 && (ungated || 2*wanted >= span)
}

// of returns what a job's processes did on a card in the last span, and for which part of it
// they wanted the card.
func (c *cardAccount) of(pids []uint32, works bool) (had time.Duration, wants float64, turns uint64) {
	if c.span == 0 {
		return 0, 0, 0
	}
	for _, pid := range pids {
		use := c.use[pid]
		had, turns = had+use.Had, turns+use.Turns
		wants = max(wants, float64(use.Had+use.Waited)/float64(c.span))
	}
	if works {
		c.works, c.ours = true, c.ours+had
	}
	return had, min(1, wants), turns
}

// judge notes whether the records number processes as we do, when all jobs were looked at. It is
// true when they are no longer believed.
func (e *exact) judge() (doubts bool) {
	before := e.nameless
	for _, c := range e.cards {
		all := time.Duration(0)
		for _, use := range c.use {
			all += use.Had
		}
		switch {
		case c.ours > 0:
			e.nameless = 0
		case c.works && all > 0:
			e.nameless += c.span
		}
	}
	return before < namelessFor && e.nameless >= namelessFor
}

// tells says whether a card's records tell what our processes had.
func (e *exact) tells(c *cardAccount) bool { return c != nil && c.known && e.nameless < namelessFor }

// firstAsks are questions that a card may leave without an answer: the first begins a record,
// and an answer is of the question before.
const firstAsks = 2

// refused says that there are no records of a card, or none that tell anything.
func (e *exact) refused(card gpu.UUID) bool {
	c := e.cards[card]
	return e.times == nil || c != nil && c.asks > firstAsks && !e.tells(c)
}
