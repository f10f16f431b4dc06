// SPDX-License-Identifier: Apache-2.0

// Package place decides which cards serve a request: [Check] holds slurmctld's
// choice against what is in use, [Choose] makes the choice itself. Both are
// pure and deterministic, never give out more than a card has, and say of every
// card why it was or was not taken ([Decision]).
package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// CardShare is the share of a job on one card.
type CardShare struct {
	UUID   gpu.UUID  `json:"gpu_uuid"`
	Index  int       `json:"index"`        // at the time of placing, for display
	Share  gpu.Share `json:"share"`        // units (shards) taken from the card
	Cores  gpu.Share `json:"cores"`        // compute share, <= Share
	Memory gpu.Bytes `json:"memory_bytes"` // limit on this card
	// Physical is what of Memory the card has of its own; 0: all of it.
	Physical gpu.Bytes `json:"physical_bytes,omitempty"`
}

// Placement is where a job runs: its cards by rising index.
type Placement struct {
	Cards []CardShare `json:"cards"`
}

// Use is the sum of all shares on one card.
type Use struct {
	Units  gpu.Share `json:"units"`
	Memory gpu.Bytes `json:"memory_bytes"`
	Jobs   int       `json:"jobs"`
}

// InUse is the use of each card; a card that is absent is free.
type InUse map[gpu.UUID]Use

// Add counts a placement as in use.
func (u InUse) Add(p Placement) {
	for _, c := range p.Cards {
		use := u[c.UUID]
		use.Units += c.Share
		use.Memory += c.Memory
		use.Jobs++
		u[c.UUID] = use
	}
}

// CardChoice is one card that slurmctld chose, and its shards there.
type CardChoice struct {
	Index int // Slurm's index, the same as gpu.Card.Index
	Units gpu.Share
}

// Check verifies the cards that slurmctld chose (placement = "slurm"). The
// request must have its defaults filled in. inUse must not count the job
// itself. Errors: [*NoCardError] (ErrNoCard, mostly ErrChoice), [*NoRoomError]
// (ErrNoRoom), or a [*request.Error] for a request that the shards do not cover; the decision
// then has no placement, but still a verdict on each card.
func Check(cards []gpu.Card, inUse InUse, req request.Request, chosen []CardChoice) (Decision, error) {
	var d Decision
	for _, card := range byIndex(cards) {
		v := newVerdict(card, inUse)
		if v.Reason == "" {
			v.Reason = NotNamed
		}
		d.Verdicts = append(d.Verdicts, v)
	}
	if len(chosen) == 0 {
		return d, wrongChoice("slurmctld chose no card")
	}
	// A share that is known also tells how many cards it is for.
	if req.Cards != 0 && req.Cards != len(chosen) && !req.Clamp {
		return d, &request.Error{Option: "--vgpu-cards", Given: fmt.Sprint(req.Cards), Want: fmt.Sprintf(
			"slurmctld gave %s; want as many, for example --vgpu-cards=%d", count(len(chosen)), len(chosen))}
	}
	chosen = slices.Clone(chosen)
	slices.SortFunc(chosen, func(a, b CardChoice) int { return a.Index - b.Index })
	for i, choice := range chosen {
		if i > 0 && chosen[i-1].Index == choice.Index {
			d.Refuse(BadRequest)
			return d, wrongChoice("card %d was chosen twice", choice.Index)
		}
		share, err := d.checkOne(cards, req, choice, len(chosen))
		if err != nil {
			d.Refuse(TooFew)
			return d, err
		}
		d.Placement.Cards = append(d.Placement.Cards, share)
	}
	return d, nil
}

// checkOne also gives the verdict on the card.
func (d *Decision) checkOne(cards []gpu.Card, req request.Request, choice CardChoice, of int) (CardShare, error) {
	i := slices.IndexFunc(cards, func(c gpu.Card) bool { return c.Index == choice.Index })
	if i < 0 {
		return CardShare{}, wrongChoice("card %d is not on this node, which has %s", choice.Index, count(len(cards)))
	}
	card := cards[i]
	v := &d.Verdicts[slices.IndexFunc(d.Verdicts, func(v Verdict) bool { return v.UUID == card.UUID })]
	if why := cmp.Or(unusable(card), oneOfMIG(card, of)); why != "" {
		v.Reason = why
		return CardShare{}, &NoCardError{fmt.Sprintf("card %d (%s) %s", card.Index, card.UUID, why.Words()), why != OneOfMIG}
	}
	v.Reason = BadRequest
	if choice.Units < 1 || choice.Units > gpu.FullCard {
		return CardShare{}, wrongChoice(
			"card %d: want 1 to %d shards on one card, slurmctld gave %d", card.Index, gpu.FullCard, choice.Units)
	}
	if req.Policy == gpu.Exclusive && choice.Units < gpu.FullCard && !req.Clamp {
		return CardShare{}, &request.Error{Option: "--vgpu-policy", Given: string(req.Policy), Want: fmt.Sprintf(
			"slurmctld gave %d of the %d shards of card %d, and may give the rest to others; want --gres=vgpu:%d",
			choice.Units, gpu.FullCard, card.Index, gpu.FullCard)}
	}
	grant, err := req.OnCard(choice.Units, card)
	if err != nil {
		if req.DominantOnCard(card.Memory) > gpu.FullCard {
			v.Reason = TooSmall
		}
		return CardShare{}, err
	}
	v.Want = grant
	if v.Reason = v.room(grant.Units); v.Reason != "" {
		return CardShare{}, &NoRoomError{Cards: 1, Units: grant.Units, Memory: grant.Memory, Free: []Free{v.Free}}
	}
	v.Reason = Taken
	return shareOf(card, grant), nil
}

func shareOf(c gpu.Card, g request.Grant) CardShare {
	share := CardShare{UUID: c.UUID, Index: c.Index, Share: g.Units, Cores: g.Cores, Memory: g.Memory}
	if physical := c.PhysicalPart(g.Memory); physical < g.Memory {
		share.Physical = max(physical, 1) // 0 would be all of it
	}
	return share
}

// oneOfMIG says whether a card is a MIG instance that a job would have beside others, or "":
// a CUDA program sees one, whatever it is given.
func oneOfMIG(c gpu.Card, cards int) Reason {
	if cards > 1 && c.IsInstance() {
		return OneOfMIG
	}
	return ""
}

// unusable says why a card cannot be shared at all, or "".
func unusable(c gpu.Card) Reason {
	switch {
	case !c.Healthy:
		return Unhealthy
	case c.MIG:
		return MIG
	}
	return ""
}

// free never goes below zero: a ledger written for a larger card must not
// wrap around to endless room.
func free(c gpu.Card, inUse InUse) Free {
	use := inUse[c.UUID]
	return Free{
		Index:  c.Index,
		Units:  gpu.FullCard - min(use.Units, gpu.FullCard),
		Memory: c.Memory - min(use.Memory, c.Memory),
	}
}

func (f Free) fits(g request.Grant) bool {
	return g.Units <= f.Units && g.Memory <= f.Memory
}

func count(n int) string {
	if n == 1 {
		return "1 card"
	}
	return fmt.Sprintf("%d cards", n)
}

// newVerdict has a reason where the card cannot be shared at all.
func newVerdict(card gpu.Card, inUse InUse) Verdict {
	return Verdict{
		UUID: card.UUID, Index: card.Index, Reason: unusable(card),
		Free: free(card, inUse), Jobs: inUse[card.UUID].Jobs,
	}
}

// room returns the reason why Want does not fit, or "". compute is the part of the card that the
// request needs without its memory. If that part fits, the reason is memory, although units of the
// card are counted.
func (v Verdict) room(compute gpu.Share) Reason {
	switch {
	case v.Free.fits(v.Want):
		return ""
	case compute > v.Free.Units:
		return NoShare
	}
	return NoMemory
}

// byIndex does not depend on the order of cards.
func byIndex(cards []gpu.Card) []gpu.Card {
	cards = slices.Clone(cards)
	slices.SortFunc(cards, func(a, b gpu.Card) int { return a.Index - b.Index })
	return cards
}
