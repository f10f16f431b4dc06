// SPDX-License-Identifier: Apache-2.0

// Package place decides which cards serve a request: [Check] holds slurmctld's
// choice against what is in use, [Choose] makes the choice itself. Both are
// pure and deterministic, never give out more than a card has, and say of every
// card why it was or was not taken ([Decision]).
package place

import (
	"cmp"
	"errors"
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

// Sentinels for errors.Is.
var (
	// ErrNoRoom: the cards are too full now; the job may fit later.
	ErrNoRoom = errors.New("no room")
	// ErrNoCard: this node cannot serve the request even when it is empty.
	ErrNoCard = errors.New("no such card")
	// ErrChoice is an ErrNoCard of a card that slurmctld chose: the node or the site is at fault, and
	// not the request.
	ErrChoice = errors.New("slurmctld chose a card that cannot be shared")
)

// Free is the free room of one card.
type Free struct {
	Index  int
	Units  gpu.Share
	Memory gpu.Bytes
}

// NoRoomError has the requested room on each card, and the free room.
type NoRoomError struct {
	Cards  int       // number of requested cards
	Units  gpu.Share // on each
	Memory gpu.Bytes // on each
	Free   []Free    // by index: the cards that were considered
}

// Error names the largest free share and the largest free memory, which may be
// on different cards: that is fragmentation, and worth seeing.
func (e *NoRoomError) Error() string {
	want := fmt.Sprintf("want %d %% and %s on each of %s", e.Units, e.Memory, count(e.Cards))
	if e.Cards == 1 {
		want = fmt.Sprintf("want %d %% and %s on one card", e.Units, e.Memory)
	}
	if len(e.Free) == 0 {
		return want + ": no card"
	}
	if len(e.Free) == 1 {
		f := e.Free[0]
		return fmt.Sprintf("%s: card %d has %d %% and %s free", want, f.Index, f.Units, f.Memory)
	}
	units, memory := e.Free[0], e.Free[0]
	for _, f := range e.Free {
		if f.Units > units.Units {
			units = f
		}
		if f.Memory > memory.Memory {
			memory = f
		}
	}
	return fmt.Sprintf("%s: largest free share %d %% (card %d), largest free memory %s (card %d)",
		want, units.Units, units.Index, memory.Memory, memory.Index)
}

// Is makes errors.Is(err, ErrNoRoom) true.
func (e *NoRoomError) Is(target error) bool { return target == ErrNoRoom }

// NoCardError says why this node cannot serve the request.
type NoCardError struct {
	Why    string
	Choice bool // ErrChoice as well
}

func (e *NoCardError) Error() string { return e.Why }

// Is makes errors.Is(err, ErrNoCard) true, and ErrChoice where the choice is wrong.
func (e *NoCardError) Is(target error) bool {
	return target == ErrNoCard || e.Choice && target == ErrChoice
}

func wrongChoice(format string, args ...any) error {
	return &NoCardError{Why: fmt.Sprintf(format, args...), Choice: true}
}

// Distances returns how far cards are from each other, by gpu.Card.Index. Nil means that nothing is
// known: all pairs are then alike.
type Distances interface {
	// Cost is the same both ways; smaller is nearer. Costs are summed up, so
	// they should fit well into 32 bits. Below 0: not known, which counts as
	// much as the farthest pair of the node.
	Cost(i, j int) int
}

// matrix is the cost of each pair of some cards, by position.
type matrix struct {
	cost     [][]int
	farthest int
}

func newMatrix(cards []gpu.Card, d Distances) matrix {
	m := matrix{cost: make([][]int, len(cards))}
	for i := range cards {
		m.cost[i] = make([]int, len(cards))
		for j := range i {
			c := -1
			if d != nil {
				c = d.Cost(cards[i].Index, cards[j].Index)
			}
			m.cost[i][j], m.cost[j][i] = c, c
			m.farthest = max(m.farthest, c)
		}
	}
	for i := range cards {
		for j := range cards {
			if m.cost[i][j] < 0 {
				m.cost[i][j] = m.farthest
			}
		}
	}
	return m
}

// TypicalShares are the request sizes of the fragmentation reports.
var TypicalShares = []gpu.Share{25, 50, 75, gpu.FullCard}

// FreeCard is the free part of one card. Largest is the largest request that fits by share and memory.
type FreeCard struct{ Share, Largest gpu.Share }

// Fragmented returns the part of the free share that a request of this size cannot use. FGD (Weng et
// al., USENIX ATC 2023) defines it. It is unknown if no share is free.
func Fragmented(cards []FreeCard, share gpu.Share) (ratio float64, known bool) {
	var free, unusable gpu.Share
	for _, c := range cards {
		free += c.Share
		if c.Largest < share {
			unusable += c.Share
		}
	}
	return float64(unusable) / float64(max(free, 1)), free > 0
}
