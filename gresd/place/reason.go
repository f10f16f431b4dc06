// SPDX-License-Identifier: Apache-2.0

package place

import (
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// Reason is why a card was or was not taken. The list is fixed: the same words
// are labels of metrics.
type Reason string

// Reasons. Those of the second group compare cards that could all have served
// the request, in the order of [gpu.Policy]; the first difference is given.
const (
	Taken      Reason = "taken"
	Fits       Reason = "fits"        // it could serve the request; nothing was decided
	Unhealthy  Reason = "unhealthy"   // gpu.Card.Healthy is false
	MIG        Reason = "mig"         // gpu.Card.MIG
	OneOfMIG   Reason = "one_of_mig"  // a MIG instance, and the request is for several cards
	OtherType  Reason = "other_type"  // the request names another type of card
	NotNamed   Reason = "not_named"   // slurmctld chose another card
	BadRequest Reason = "bad_request" // the words of the request contradict each other, or the shards held
	SiteLimit  Reason = "site_limit"  // the site allows less of one card
	TooSmall   Reason = "too_small"   // less memory than asked for, even when empty
	Occupied   Reason = "occupied"    // by other jobs, and the request is exclusive
	NoShare    Reason = "no_share"    // too little of its share is free
	NoMemory   Reason = "no_memory"   // too little of its memory is free
	TooFew     Reason = "too_few"     // it fits, but not as many cards as asked for do
	Held       Reason = "held"        // kept free for a job that has waited longer

	LeavesMore Reason = "leaves_more" // binpack: a card was taken of which less stays unused
	LeavesLess Reason = "leaves_less" // spread: an emptier card was taken
	Farther    Reason = "farther"     // the cards taken are nearer to each other
	SplitsIdle Reason = "splits_idle" // the idle cards left to later jobs would be farther apart
	MoreNUMA   Reason = "more_numa"   // the cards taken are on fewer NUMA nodes
	LowerIndex Reason = "lower_index" // equal in all else
)

var reasons = []struct {
	reason Reason
	words  string
}{
	{Taken, "chosen"},
	{Fits, "can serve the request"},
	{Unhealthy, "is not healthy"},
	{MIG, "is in MIG mode, and no instance that gresd shares"},
	{OneOfMIG, "is a MIG instance, of which a program can use one, and the request is for several"},
	{OtherType, "is of another type than the one asked for"},
	{NotNamed, "slurmctld chose another card"},
	{BadRequest, "the request cannot be granted as it is written"},
	{SiteLimit, "this site allows less of one card"},
	{TooSmall, "has less memory than asked for, even when empty"},
	{Occupied, "other jobs are on it, and the request is exclusive"},
	{NoShare, "too little of its share is free"},
	{NoMemory, "too little of its memory is free"},
	{TooFew, "fits, but fewer cards fit than asked for"},
	{Held, "is kept free for a job that has waited longer"},
	{LeavesMore, "more of it would stay unused than of what was taken"},
	{LeavesLess, "less of it is free than of what was taken"},
	{Farther, "farther from the other cards than what was taken"},
	{SplitsIdle, "taking it would leave later jobs worse sets of idle cards"},
	{MoreNUMA, "on another NUMA node than the cards taken"},
	{LowerIndex, "as good as what was taken, which has a higher index"},
}

// Reasons returns every reason, in a fixed order.
func Reasons() []Reason {
	all := make([]Reason, len(reasons))
	for i, r := range reasons {
		all[i] = r.reason
	}
	return all
}

// Words is the reason for people, to be read after the name of the card.
func (r Reason) Words() string {
	for _, known := range reasons {
		if known.reason == r {
			return known.words
		}
	}
	return string(r)
}

// Verdict is what was decided about one card.
type Verdict struct {
	UUID   gpu.UUID
	Index  int
	Reason Reason
	Free   Free // of the card, before the decision
	// Want is what the request takes of this card; zero where that is not known.
	Want request.Grant
	Jobs int // that hold a part of the card
}

// Decision is a placement, and why it is that one.
type Decision struct {
	Placement Placement // no cards where the request was not placed
	Verdicts  []Verdict // every card of the node, by rising index
}

// Refuse takes the placement back, for a reason that lies outside of place. It
// holds as well for the cards that could have been taken instead.
func (d *Decision) Refuse(why Reason) {
	d.LeaveOpen()
	d.give(Fits, why)
}

// HeldBack adds verdicts on cards that could not be chosen, because they are kept
// free for another job.
func (d *Decision) HeldBack(cards []gpu.Card, inUse InUse) {
	for _, card := range cards {
		v := newVerdict(card, inUse)
		v.Reason = Held
		d.Verdicts = append(d.Verdicts, v)
	}
	slices.SortFunc(d.Verdicts, func(a, b Verdict) int { return a.Index - b.Index })
}

// LeaveOpen turns a choice of ours into what another could choose from: every
// card that fits.
func (d *Decision) LeaveOpen() {
	d.Placement = Placement{}
	for _, better := range worseBy {
		d.give(better, Fits)
	}
	d.give(LowerIndex, Fits)
	d.give(Taken, Fits)
}

// give replaces a reason.
func (d *Decision) give(old, reason Reason) {
	for i := range d.Verdicts {
		if d.Verdicts[i].Reason == old {
			d.Verdicts[i].Reason = reason
		}
	}
}

// Given is the decision that a placement stands for, once its reasons are not
// known any more: every other card is told by what is in use now, beside the
// amounts on the first card of the placement. inUse must not count the job.
func Given(cards []gpu.Card, inUse InUse, p Placement) Decision {
	d := Decision{Placement: p}
	for _, card := range byIndex(cards) {
		v := newVerdict(card, inUse)
		i := slices.IndexFunc(p.Cards, func(c CardShare) bool { return c.UUID == card.UUID })
		switch {
		case i >= 0:
			v.Want, v.Reason = request.Grant{Units: p.Cards[i].Share, Cores: p.Cards[i].Cores, Memory: p.Cards[i].Memory}, Taken
		case len(p.Cards) > 0 && v.Reason == "":
			v.Want = request.Grant{Units: p.Cards[0].Share, Cores: p.Cards[0].Cores, Memory: p.Cards[0].Memory}
			v.Reason = v.room(v.Want.Units)
		}
		if v.Reason == "" {
			v.Reason = Fits
		}
		d.Verdicts = append(d.Verdicts, v)
	}
	return d
}
