// SPDX-License-Identifier: Apache-2.0

package place

import (
	"fmt"
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// candidate is one card that can serve the request now.
type candidate struct {
	card  gpu.Card
	grant request.Grant
	// What stays free after the grant: units, and memory in 1/10000 of the
	// card, whole numbers so that ties are exact.
	units, memory int
	idle          bool // no job is on it now
}

// Choose picks cards (placement = "gresd") by req.Policy; "" is binpack. The
// request must have its defaults filled in and a share. The units taken on
// each card are the request's dominant share there.
//
// Sets of cards are compared by the criteria of the policy ([criteria]), the
// first difference decides, and the highest indexes where there is none: Slurm
// gives out whole cards from the lowest on, and shares keep out of their way.
// Every set is looked at up to 8 of 16 cards.
//
// Errors: [*NoCardError] (ErrNoCard) when even the empty node could not serve
// it, [*NoRoomError] (ErrNoRoom) when it can once other jobs end, or a
// [*request.Error]; the decision then has no placement, but still a verdict on
// each card.
func Choose(cards []gpu.Card, inUse InUse, req request.Request, distances Distances) (Decision, error) {
	cards = byIndex(cards)
	d, fitting, err := assess(cards, inUse, req)
	if err != nil {
		return d, err
	}
	slices.Reverse(cards) // the first of equals wins
	slices.Reverse(fitting)
	s := newSearch(cards, inUse, fitting, max(1, req.Cards), req.Policy, distances)
	best := s.best()
	slices.Sort(best)
	for i, c := range fitting {
		v := &d.Verdicts[slices.IndexFunc(d.Verdicts, func(v Verdict) bool { return v.UUID == c.card.UUID })]
		if slices.Contains(best, i) {
			v.Reason = Taken
			d.Placement.Cards = append(d.Placement.Cards, shareOf(c.card, c.grant))
		} else {
			v.Reason = s.worse(best, i)
		}
	}
	slices.SortFunc(d.Placement.Cards, func(a, b CardShare) int { return a.Index - b.Index })
	return d, nil
}

// assess holds the request against each card. It returns those that can serve
// it now, or an error when they are too few.
func assess(cards []gpu.Card, inUse InUse, req request.Request) (d Decision, fitting []candidate, err error) {
	if request.Dominant(req, 1) == 0 {
		err = &request.Error{Option: "--gres=vgpu", Want: "want a share, for example --gres=vgpu:30"}
	}
	want, usable := max(1, req.Cards), 0
	full := &NoRoomError{Cards: want}
	var refused error
	sick := false // a card that is out of use could serve the request
	for _, card := range cards {
		v := newVerdict(card, inUse)
		if v.Reason == "" {
			v.Reason = oneOfMIG(card, want)
		}
		switch {
		case err == nil && v.Reason == Unhealthy:
			ifWell := v
			sick = sick || ifWell.assess(card, req) == nil
		case err != nil && v.Reason == "":
			v.Reason = BadRequest
		case v.Reason == "":
			usable++
			if why := v.assess(card, req); why != nil {
				refused = why
				break
			}
			// The message names one amount; cards of one node rarely differ.
			if len(full.Free) == 0 {
				full.Units, full.Memory = v.Want.Units, v.Want.Memory
			}
			full.Free = append(full.Free, v.Free)
			if v.Reason == Fits {
				fitting = append(fitting, newCandidate(card, v))
			}
		}
		d.Verdicts = append(d.Verdicts, v)
	}
	if len(fitting) < want {
		d.give(Fits, TooFew)
	}
	switch {
	case err != nil || len(fitting) >= want:
	case len(full.Free) >= want:
		err = full
	case refused != nil && sick:
		err = &NoCardError{Why: refused.Error()}
	case refused != nil:
		err = refused
	default:
		err = &NoCardError{Why: fmt.Sprintf("want %s, this node can share %d of its %d", count(want), usable, len(cards))}
	}
	return d, fitting, err
}

// assess fills in what the request takes of the card and whether it fits. The
// error is a [*request.Error]: not even the empty card can serve it.
func (v *Verdict) assess(card gpu.Card, req request.Request) error {
	units := req.DominantOnCard(card.Memory)
	// OnCard has the better words for what is too large for the card.
	grant, err := req.OnCard(min(units, gpu.FullCard), card)
	if err != nil {
		v.Reason = BadRequest
		if units > gpu.FullCard {
			v.Reason = TooSmall
		}
		return err
	}
	v.Want = grant
	withoutMemory := req
	withoutMemory.Memory = request.Memory{}
	v.Reason = v.room(withoutMemory.DominantOnCard(card.Memory))
	switch {
	case v.Reason == "":
		v.Reason = Fits
	case req.Policy == gpu.Exclusive && v.Jobs > 0:
		v.Reason = Occupied
	}
	return nil
}

func newCandidate(card gpu.Card, v Verdict) candidate {
	c := candidate{card: card, grant: v.Want, units: int(v.Free.Units - v.Want.Units), idle: v.Jobs == 0}
	if card.Memory != 0 {
		// A float has room enough: the result is only compared, never summed up
		// into an amount, and the same input gives the same number.
		c.memory = int(float64(v.Free.Memory-v.Want.Memory) / float64(card.Memory) * 10000)
	}
	return c
}
