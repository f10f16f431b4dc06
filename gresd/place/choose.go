// SPDX-License-Identifier: Apache-2.0

package place

import (
	"cmp"
	"fmt"
	"math/bits"
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

// exhaustive is the most sets of cards that are all looked at: 8 of 16 are
// 12870, about a millisecond.
const exhaustive = 20000

// criterion is one number of a set of cards; smaller is better.
type criterion int

const (
	unitsLeft   criterion = iota // units that stay free on the set's cards
	unitsTaken                   // the opposite
	memoryLeft                   // memory that stays free there
	memoryTaken                  // the opposite
	weakestPair                  // the largest cost of a pair
	sumOfPairs                   // of their costs
	restOfIdle                   // the sum of pairs among the idle cards that the set leaves free
	numaNodes                    // how many it is on
)

// criteria lists, for each policy, the comparisons of two sets in their order. Memory is counted in
// the units (the dominant
// share), so units decide the room of later jobs, and memory only decides between equal sets.
var criteria = map[gpu.Policy][]criterion{
	gpu.Binpack:   {unitsLeft, memoryLeft, weakestPair, sumOfPairs, restOfIdle, numaNodes},
	gpu.Spread:    {unitsTaken, memoryTaken, weakestPair, sumOfPairs, restOfIdle, numaNodes},
	gpu.Topology:  {weakestPair, sumOfPairs, restOfIdle, numaNodes, unitsLeft, memoryLeft},
	gpu.Exclusive: {weakestPair, sumOfPairs, restOfIdle, numaNodes, unitsLeft, memoryLeft},
}

// worseBy is why a card stays out of a set that it would make worse.
var worseBy = map[criterion]Reason{
	unitsLeft: LeavesMore, memoryLeft: LeavesMore, unitsTaken: LeavesLess, memoryTaken: LeavesLess,
	weakestPair: Farther, sumOfPairs: Farther, restOfIdle: SplitsIdle, numaNodes: MoreNUMA,
}

// search finds the best set of cards. Candidates are named by position.
type search struct {
	from  []candidate
	want  int
	order []criterion
	cost  [][]int // of each pair
	numa  []int   // a number from 0 for each NUMA node; -1: not known

	// All idle cards, candidates or not: their number, the sum of their pairs, and for each
	// candidate the sum of its own pairs.
	idle, idleSum int
	idleOf        []int
	farthest      int
}

func newSearch(cards []gpu.Card, inUse InUse, from []candidate, want int, policy gpu.Policy, d Distances) *search {
	s := &search{from: from, want: want, order: criteria[cmp.Or(policy, gpu.Binpack)], idleOf: make([]int, len(from))}
	// Positions of the idle cards and of the candidates among all cards.
	var idle []int
	at := make([]int, 0, len(from))
	for i, card := range cards {
		if unusable(card) == "" && inUse[card.UUID].Jobs == 0 {
			idle = append(idle, i)
		}
		if len(at) < len(from) && from[len(at)].card.UUID == card.UUID {
			at = append(at, i)
		}
	}
	all := newMatrix(cards, d)
	s.farthest, s.idle = all.farthest, len(idle)
	for n, i := range idle {
		for _, j := range idle[:n] {
			s.idleSum += all.cost[i][j]
		}
	}
	nodes := map[int]int{}
	for c, i := range at {
		row := make([]int, len(from))
		for other, j := range at {
			row[other] = all.cost[i][j]
		}
		s.cost = append(s.cost, row)
		for _, j := range idle {
			if j != i {
				s.idleOf[c] += all.cost[i][j]
			}
		}
		number, node := -1, from[c].card.NUMANode
		if node >= 0 {
			if _, known := nodes[node]; !known {
				nodes[node] = len(nodes)
			}
			number = nodes[node]
		}
		s.numa = append(s.numa, number)
	}
	return s
}

// tally has the sums of a set while it grows card by card.
type tally struct {
	units, memory int
	weakest, sum  int
	idle          int // cards of the set that are idle
	idleSum       int // sum of the pairs with at least one idle card
	nodes         uint64
	noNode        int // cards with an unknown NUMA node
}

// add returns the tally of a set with one more candidate.
func (s *search) add(t tally, set []int, i int) tally {
	c := &s.from[i]
	t.units += c.units
	t.memory += c.memory
	if c.idle {
		t.idle++
		t.idleSum += s.idleOf[i]
	}
	for _, j := range set {
		cost := s.cost[i][j]
		t.weakest = max(t.weakest, cost)
		t.sum += cost
		if c.idle && s.from[j].idle {
			t.idleSum -= cost // both count it
		}
	}
	if n := s.numa[i]; n < 0 {
		t.noNode++
	} else {
		t.nodes |= 1 << (n % 64) // no machine has more
	}
	return t
}

// rest is the sum of pairs among the idle cards that a set leaves free for later jobs. A set that
// takes more idle cards leaves fewer pairs, so
// each pair that it takes away is charged as the farthest one.
func (s *search) rest(t *tally) int {
	left := s.idle - t.idle
	gone := s.idle*(s.idle-1)/2 - left*(left-1)/2
	return s.idleSum - t.idleSum + gone*s.farthest
}

// rank compares sets of equal size; smaller is better, first number first.
type rank [6]int

func (r rank) compare(other rank) int { return slices.Compare(r[:], other[:]) }

func (s *search) rank(t *tally) (r rank) {
	for i, c := range s.order {
		r[i] = s.number(c, t)
	}
	return r
}

// beats stops at the first difference. Most sets need only the first numbers.
func (s *search) beats(t *tally, r *rank) bool {
	for i, c := range s.order {
		if n := s.number(c, t); n != r[i] {
			return n < r[i]
		}
	}
	return false
}

func (s *search) number(c criterion, t *tally) int {
	switch c {
	case unitsLeft:
		return t.units
	case unitsTaken:
		return -t.units
	case memoryLeft:
		return t.memory
	case memoryTaken:
		return -t.memory
	case weakestPair:
		return t.weakest
	case sumOfPairs:
		return t.sum
	case restOfIdle:
		return s.rest(t)
	default: // numaNodes
		return bits.OnesCount64(t.nodes) + t.noNode
	}
}

func (s *search) rankOf(set []int) rank {
	var t tally
	for n, i := range set {
		t = s.add(t, set[:n], i)
	}
	return s.rank(&t)
}

// best returns the best set of want candidates; there must be as many.
func (s *search) best() []int {
	if sets(len(s.from), s.want) > exhaustive {
		return s.climb()
	}
	var best []int
	var bestRank rank
	set := make([]int, 0, s.want)
	var walk func(next int, t tally)
	walk = func(next int, t tally) {
		if len(set) == s.want {
			// Sets come in the order of their indexes: the first of equals wins.
			if best == nil || s.beats(&t, &bestRank) {
				best, bestRank = append(best[:0], set...), s.rank(&t)
			}
			return
		}
		for i := next; i <= len(s.from)-(s.want-len(set)); i++ {
			grown := s.add(t, set, i)
			set = append(set, i)
			walk(i+1, grown)
			set = set[:len(set)-1]
		}
	}
	walk(0, tally{})
	return best
}

// sets is how many sets of k out of n there are, or exhaustive + 1 if more.
func sets(n, k int) int {
	k = min(k, n-k)
	count := 1
	for i := range k {
		if count = count * (n - i) / (i + 1); count > exhaustive {
			return exhaustive + 1
		}
	}
	return count
}

// climb starts a set from each candidate and adds the best card each time. It then exchanges cards
// as long as that makes the set better. It is for nodes with too many cards to compare every set.
func (s *search) climb() []int {
	var best []int
	var bestRank rank
	for i := range s.from {
		set := []int{i}
		for len(set) < s.want {
			next, nextRank := -1, rank{}
			for j := range s.from {
				if slices.Contains(set, j) {
					continue
				}
				if r := s.rankOf(append(set, j)); next < 0 || r.compare(nextRank) < 0 {
					next, nextRank = j, r
				}
			}
			set = append(set, next)
		}
		set, r := s.exchange(set)
		if best == nil || r.compare(bestRank) < 0 {
			best, bestRank = set, r
		}
	}
	return best
}

// exchange ends because every step makes the set better.
func (s *search) exchange(set []int) ([]int, rank) {
	r := s.rankOf(set)
	for {
		next, nextRank := set, r
		for i := range s.from {
			if slices.Contains(set, i) {
				continue
			}
			if other, otherRank := s.swap(set, i); otherRank.compare(nextRank) < 0 {
				next, nextRank = other, otherRank
			}
		}
		if nextRank == r {
			return set, r
		}
		set, r = next, nextRank
	}
}

// swap returns the best set with one card of set exchanged for candidate i.
func (s *search) swap(set []int, i int) (best []int, bestRank rank) {
	for n := range set {
		other := slices.Clone(set)
		other[n] = i
		if r := s.rankOf(other); n == 0 || r.compare(bestRank) < 0 {
			best, bestRank = other, r
		}
	}
	return best, bestRank
}

// worse returns the reason why candidate i is not in the best set. It puts the candidate in the
// place of the card where that harms least, and returns the first criterion that gets worse.
func (s *search) worse(best []int, i int) Reason {
	r := s.rankOf(best)
	_, other := s.swap(best, i)
	for n, c := range s.order {
		if other[n] != r[n] {
			return worseBy[c]
		}
	}
	return LowerIndex
}
