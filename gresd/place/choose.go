// SPDX-License-Identifier: Apache-2.0

package place

import (
	"fmt"
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// exhaustive is the most candidate cards for which every set is looked at:
// C(16,8) is 12870 sets, a few milliseconds.
const exhaustive = 16

// candidate is one card that can serve the request now.
type candidate struct {
	card  gpu.Card
	grant request.Grant
	// left is what stays free after the grant, as units plus memory, each in
	// 1/10000 of the card: whole numbers, so that ties are exact.
	left int
}

// Choose picks cards (placement = "gresd") by req.Policy; "" is binpack. The
// request must have its defaults filled in and a share. The units taken on
// each card are the request's dominant share there.
//
// Sets are compared by leftover (binpack: least, spread: most), then by the
// weakest pair, the sum of pairs, the pairs among idle cards that stay free,
// the number of NUMA nodes, and the lowest indexes. Topology compares the
// leftover last but for the indexes. For one card there are no pairs, and
// topology prefers the card that is farthest from the idle ones.
//
// Errors: [*NoCardError] (ErrNoCard) when even the empty node could not serve
// it, [*NoRoomError] (ErrNoRoom) when it can once other jobs end, or a
// [*request.Error].
func Choose(cards []gpu.Card, inUse InUse, req request.Request, cost Cost) (Placement, error) {
	want := max(1, req.Cards)
	if request.Dominant(req, 1) == 0 {
		return Placement{}, &request.Error{Option: "--gres=vgpu", Want: "want a share, for example --gres=vgpu:30"}
	}
	fitting, err := candidates(cards, inUse, req, want)
	if err != nil {
		return Placement{}, err
	}
	s := newSearch(cards, inUse, req.Policy, cost)
	best := s.best(fitting, want)
	slices.SortFunc(best, func(a, b candidate) int { return a.card.Index - b.card.Index })
	var placement Placement
	for _, c := range best {
		placement.Cards = append(placement.Cards, shareOf(c.card, c.grant))
	}
	return placement, nil
}

// candidates returns the cards that can serve the request now, by index; an
// error when there are fewer than want.
func candidates(cards []gpu.Card, inUse InUse, req request.Request, want int) ([]candidate, error) {
	var fitting []candidate
	var ever int // cards that could serve it when empty
	var refused error
	full := &NoRoomError{Cards: want}
	cards = slices.Clone(cards)
	slices.SortFunc(cards, func(a, b gpu.Card) int { return a.Index - b.Index })
	usable := 0
	for _, card := range cards {
		if unusable(card) != "" {
			continue
		}
		usable++
		units := req.DominantOnCard(card.Memory)
		// OnCard has the better words for what is too large for the card.
		grant, err := req.OnCard(min(units, gpu.FullCard), card)
		if err != nil {
			refused = err
			continue
		}
		ever++
		left := free(card, inUse)
		// The message names one amount; cards of one node rarely differ.
		if full.Units == 0 {
			full.Units, full.Memory = grant.Units, grant.Memory
		}
		full.Free = append(full.Free, left)
		if left.fits(grant) {
			fitting = append(fitting, candidate{
				card:  card,
				grant: grant,
				left:  leftover(card, left, grant),
			})
		}
	}
	switch {
	case len(fitting) >= want:
		return fitting, nil
	case ever >= want:
		return nil, full
	case refused != nil:
		return nil, refused
	}
	return nil, &NoCardError{fmt.Sprintf("want %s, this node can share %d of its %d", count(want), usable, len(cards))}
}

func leftover(c gpu.Card, f Free, g request.Grant) int {
	const scale = 10000
	units := int(f.Units-g.Units) * (scale / int(gpu.FullCard))
	if c.Memory == 0 {
		return units
	}
	// A float has room enough: the result is only compared, never summed up
	// into an amount, and the same input gives the same number.
	return units + int(float64(f.Memory-g.Memory)/float64(c.Memory)*scale)
}

// search finds the best set of cards.
type search struct {
	cost   Cost
	policy gpu.Policy
	// idle has a bit for each usable card without a job, by index.
	idle map[int]uint64
	// pairs are those among the idle cards; farthest is the largest cost.
	pairs    []pair
	farthest int
}

type pair struct {
	bits uint64 // of both cards
	cost int
}

func newSearch(cards []gpu.Card, inUse InUse, policy gpu.Policy, cost Cost) search {
	s := search{cost: cost, policy: policy, idle: map[int]uint64{}}
	var before []gpu.Card
	for _, c := range cards {
		// 64 idle cards are more than any node has; others would only be left
		// out of a tie-break.
		if unusable(c) != "" || inUse[c.UUID].Jobs != 0 || len(before) == 64 {
			continue
		}
		bit := uint64(1) << len(before)
		for _, other := range before {
			p := pair{bit | s.idle[other.Index], cost.between(other.Index, c.Index)}
			s.pairs = append(s.pairs, p)
			s.farthest = max(s.farthest, p.cost)
		}
		s.idle[c.Index] = bit
		before = append(before, c)
	}
	return s
}

// rank compares sets of equal size; smaller is better, first number first.
type rank [5]int

func (r rank) compare(other rank) int { return slices.Compare(r[:], other[:]) }

// best returns the best set of want candidates; there must be as many.
func (s search) best(from []candidate, want int) []candidate {
	if len(from) > exhaustive {
		return s.greedy(from, want)
	}
	var best []candidate
	var bestRank rank
	set := make([]candidate, 0, want)
	var walk func(next int)
	walk = func(next int) {
		if len(set) == want {
			// Sets come in the order of their indexes: the first of equals wins.
			if r := s.rank(set); best == nil || r.compare(bestRank) < 0 {
				best, bestRank = slices.Clone(set), r
			}
			return
		}
		for i := next; i <= len(from)-(want-len(set)); i++ {
			set = append(set, from[i])
			walk(i + 1)
			set = set[:len(set)-1]
		}
	}
	walk(0)
	return best
}

// greedy starts a set from each candidate and adds the best card each time;
// for nodes with more cards than every set can be looked at.
func (s search) greedy(from []candidate, want int) []candidate {
	var best []candidate
	var bestRank rank
	for i := range from {
		set := []candidate{from[i]}
		rest := slices.Delete(slices.Clone(from), i, i+1)
		for len(set) < want {
			at := 0
			var atRank rank
			for j := range rest {
				if r := s.rank(append(set, rest[j])); j == 0 || r.compare(atRank) < 0 {
					at, atRank = j, r
				}
			}
			set = append(set, rest[at])
			rest = slices.Delete(rest, at, at+1)
		}
		if r := s.rank(set); best == nil || r.compare(bestRank) < 0 {
			best, bestRank = set, r
		}
	}
	return best
}

func (s search) rank(set []candidate) rank {
	left, weakest, sum, nodes := 0, 0, 0, 0
	for i, a := range set {
		left += a.left
		first := true // of its NUMA node
		for _, b := range set[:i] {
			c := s.cost.between(a.card.Index, b.card.Index)
			weakest = max(weakest, c)
			sum += c
			first = first && a.card.NUMANode != b.card.NUMANode
		}
		if first {
			nodes++
		}
	}
	rest := s.rest(set)
	switch s.policy {
	case gpu.Topology:
		return rank{weakest, sum, rest, nodes, left}
	case gpu.Spread:
		left = -left
	}
	return rank{left, weakest, sum, rest, nodes}
}

// rest is the sum of pairs among the idle cards that a set leaves free: what
// later jobs will find. A set that takes more idle cards leaves fewer pairs, so
// each pair that it takes away is charged as the farthest one.
func (s search) rest(set []candidate) int {
	var taken uint64
	for _, c := range set {
		taken |= s.idle[c.card.Index]
	}
	sum := 0
	for _, p := range s.pairs {
		if p.bits&taken != 0 {
			sum += s.farthest
		} else {
			sum += p.cost
		}
	}
	return sum
}
