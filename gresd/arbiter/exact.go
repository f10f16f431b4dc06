// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/cardtime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Times tells how long processes had a card.
type Times interface {
	OnCard(card gpu.UUID) (cardtime.Account, bool)
}

// exact is what the cards' own records say of the cards on which some job's use must
// be known. The records cost the card and this process a little, so nobody asks for
// those of other cards.
type exact struct {
	times Times
	cards map[gpu.UUID]*cardAccount
}

// cardAccount is what a look at a card's records told.
type cardAccount struct {
	sum   cardtime.Account
	known bool
	asked bool
	begun bool                     // sum is of a time in which we asked
	span  time.Duration            // since the look before; 0: nothing new
	had   map[uint32]time.Duration // in that, by pid of the host
	all   float64                  // part of the time that all had lately; 0: not known
}

// allMemory is how long what all had is remembered.
const allMemory = 500 * time.Millisecond

// ask decides of which cards the next look asks: those where somebody must wait for
// others according to what they had, and those that are needed for another reason.
func (e *exact) ask(claims []Claim, needed func(gpu.UUID) bool) {
	if e.times == nil {
		return
	}
	wanted := map[gpu.UUID]*cardAccount{}
	for card, list := range byCard(claims) {
		for i := range list {
			if busyOthers(list, i) && followed(list, i) || needed(card) {
				wanted[card] = e.cards[card]
				if wanted[card] == nil {
					wanted[card] = &cardAccount{}
				}
			}
		}
	}
	e.cards = wanted
}

func byCard(claims []Claim) map[gpu.UUID][]Claim {
	cards := map[gpu.UUID][]Claim{}
	for _, c := range claims {
		cards[c.Card] = append(cards[c.Card], c)
	}
	return cards
}

func busyOthers(claims []Claim, i int) bool {
	for k, c := range claims {
		if k != i && c.Busy > 0 {
			return true
		}
	}
	return false
}

// look takes the newest account of every card that was asked for.
func (e *exact) look() {
	for card, c := range e.cards {
		before, was := c.sum, c.known
		c.sum, c.known = e.times.OnCard(card)
		c.asked = true
		c.span, c.had = 0, nil
		if !c.known || !was || c.sum.At <= before.At {
			continue
		}
		if !c.begun {
			// What was there before may be from when this card was last asked. Since then
			// somebody had it who did nothing: who stays on it leaves no record.
			c.begun = true
			continue
		}
		c.span, c.had = c.sum.At-before.At, map[uint32]time.Duration{}
		var sum time.Duration
		for pid, had := range c.sum.Had {
			c.had[pid] = hadSince(had, before.Had[pid])
			sum += c.had[pid]
		}
		all := float64(sum) / float64(c.span)
		if c.all != 0 {
			fade := math.Exp(-float64(c.span) / float64(allMemory))
			all = c.all*fade + all*(1-fade)
		}
		c.all = all
	}
}

// hadSince is what a process had since an account; one that was forgotten meanwhile has
// begun anew.
func hadSince(had, before time.Duration) time.Duration {
	if had < before {
		return had
	}
	return had - before
}

// refused says that there are no records of a card.
func (e *exact) refused(card gpu.UUID) bool {
	c := e.cards[card]
	return e.times == nil || c != nil && c.asked && !c.known
}

// of returns copies of what is known of a job's cards.
func (e *exact) of(cards []libvgpu.GrantCard) []cardAccount {
	accounts := make([]cardAccount, len(cards))
	for i, card := range cards {
		if c := e.cards[gpu.UUID(card.UUID)]; c != nil {
			accounts[i] = *c
		}
	}
	return accounts
}

// Of a balance.
const (
	// settle is the time in which a job's slices grow by the factor e, for each time
	// as long that it lacks: many steps of a job whose host waits for each, for what it
	// had between two looks depends on where in a step they fall.
	settle = 300 * time.Millisecond
	// mostLack bounds what is made good later.
	mostLack = 500 * time.Millisecond
	// mostGain bounds what slices are multiplied and divided by.
	mostGain = 3.0
	// gainStep is a change of slices that is worth its price: the card loses about 0.4 ms
	// to each (measured on an H200: 15 a second cost 1 % of it).
	gainStep = 0.1
)

// balance makes the parts of jobs that compete for a card equal to their shares,
// where slices in proportion to the shares do not: a job whose host waits for results
// gives up the rest of a slice at each wait. What each lacks of its share of what all
// had is added up, and its slices grow with that; so the sum stays near a level, and
// the rate is exact.
type balance struct {
	jobs map[Key]*balanced
}

type balanced struct {
	lack float64 // nanoseconds of the card
	gain float64 // its logarithm
}

// update sets the gain of every claim on cards where some job's use is watched. used is
// what each had; open says which no budget holds: of the others, slices are not what
// decides how much they get.
func (b *balance) update(claims []Claim, used []usage, open func(Key) bool) {
	type sum struct {
		jobs      int
		cores, ns float64
	}
	sums := map[gpu.UUID]sum{}
	waited := map[gpu.UUID]bool{}
	for card, list := range byCard(claims) {
		for i := range list {
			waited[card] = waited[card] || watched(list, i)
		}
	}
	competes := func(i int) bool {
		return claims[i].Busy > 0 && used[i].exact && waited[claims[i].Card] && open(claims[i].Key)
	}
	for i, c := range claims {
		if competes(i) {
			s := sums[c.Card]
			sums[c.Card] = sum{s.jobs + 1, s.cores + float64(c.Cores), s.ns + used[i].ns}
		}
	}
	// want is what the gains would be if changes were free; due, where they are worth it.
	jobs, want, due := map[Key]*balanced{}, map[Key]float64{}, map[gpu.UUID]bool{}
	for i, c := range claims {
		s := sums[c.Card]
		if !competes(i) || s.jobs < 2 {
			continue
		}
		j := b.jobs[c.Key]
		if j == nil {
			j = &balanced{}
		}
		share := float64(c.Cores) / s.cores
		most := share * float64(mostLack)
		j.lack = max(-most, min(most, j.lack+share*s.ns-used[i].ns))
		gain := j.lack / (share * float64(settle))
		want[c.Key] = max(-math.Log(mostGain), min(math.Log(mostGain), gain))
		due[c.Card] = due[c.Card] || math.Abs(want[c.Key]-j.gain) > gainStep
		jobs[c.Key] = j
	}
	for i, c := range claims {
		j := jobs[c.Key]
		if j == nil {
			continue
		}
		// All of a card at once: one job's gain changes everybody's slices.
		if due[c.Card] {
			j.gain = want[c.Key]
		}
		claims[i].Gain = math.Exp(j.gain)
	}
	b.jobs = jobs
}
