// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// balance is the rule by which jobs that compete for a card get what they are entitled to
// (docs/adr/0006). Slices in proportion to the shares do that only for jobs that use up their
// slices. One whose host waits for results leaves the card at each wait, and then waits for
// all others' slices. So what each job had is held against what it was entitled to, and the
// logarithm of what its share is multiplied by, its gain, is the sum of the differences: who
// lacks has longer slices, and its neighbours shorter ones, until it lacks nothing, or until
// its neighbours' slices cannot be shorter. Nothing needs to be known of the work.
type balance struct {
	jobs  map[Key]*standing
	cards map[gpu.UUID]contest
}

// contest is of jobs that compete for a card.
type contest struct {
	rivals int // how many
	looks  int // for which they have been so many
	// young says that nothing was known of them when they began to compete.
	young bool
}

// standing is how a job stands beside its neighbours.
type standing struct {
	gain  float64 // logarithm
	told  float64 // the gain by which slices were last set
	roomy bool    // as told
	part  float64 // of the card that it had lately
	// first says that its neighbours' slices are as short as they get, last that its own is.
	first, last bool
	turn        float64 // how long its last turns were, in nanoseconds; 0: not known
	slice       float64 // as told, in microseconds
	trial       trial
	// rest is how long it waits for its turn at most; 0: for as long as it is away.
	rest time.Duration
}

const (
	// A gain grows by 1 in the time in which a job lacks all of what it is entitled to. What a
	// job had in a look is known to one of its turns, as it depends on where in a turn the look
	// falls. So that time is surePart times its turn, in parts of what it was entitled to in
	// the look, within these bounds.
	surePart    = time.Second
	fastBalance = 75 * time.Millisecond
	slowBalance = 400 * time.Millisecond
	turnLooks   = 3 // of which its turn is a mean
	// firstLooks are those of a contest that do not count: programs that start together do not
	// begin together.
	firstLooks = 5
	// fades is how fast a gain is forgotten that nothing renews, and restFades how fast while
	// jobs do not compete: other work than before may come after a pause. A request comes sooner.
	fades     = 20 * time.Second
	restFades = 3 * time.Second
	// heldFrom is the part of its limit from which a job that its budget holds counts as one
	// that has all of it. It needs no longer slices for that: its gain falls, by 1 in heldPace.
	heldFrom = 0.97
	heldPace = time.Second
	// mostGain bounds the logarithm.
	mostGain = 6.0
	// gainStep is a change of slices that is worth its price: the card loses about 0.4 ms
	// to each (measured on an H200: 15 a second cost 1 % of it).
	gainStep = 0.1
	// knownGain is the gain from which it is known what a job needs. Slices are short in the
	// first youngLooks of jobs of which nothing is known.
	knownGain  = 0.3
	youngLooks = 8
	// partMemory is how long what a job had counts in its part.
	partMemory = 500 * time.Millisecond
)

// update sets the gain of every claim. used is what each had: who is not told of by the card's
// records takes no part, for what a process measures of itself beside others may be a third off.
func (b *balance) update(claims []Claim, used []usage, g *gates, p Params) {
	cards := map[gpu.UUID][]int{}
	for i, c := range claims {
		cards[c.Card] = append(cards[c.Card], i)
	}
	jobs, contests := map[Key]*standing{}, map[gpu.UUID]contest{}
	for card, members := range cards {
		if rivals := b.rivals(claims, members, used, g, jobs); len(rivals) > 1 {
			entitle(rivals)
			c := b.cards[card]
			if c.rivals != len(rivals) {
				c = contest{rivals: len(rivals), young: unknown(rivals)}
			}
			c.looks++
			if contests[card] = c; c.looks > firstLooks {
				settle(rivals)
			}
		} else {
			rest(claims, members, used, jobs)
		}
		young := contests[card].young && contests[card].looks <= youngLooks
		for _, i := range members {
			claims[i].Young = young
		}
		b.tell(claims, members, p, jobs)
	}
	b.jobs, b.cards = jobs, contests
}

// unknown says that it is known of no job what it needs.
func unknown(rivals []rivalry) bool {
	for _, r := range rivals {
		if math.Abs(r.gain) > knownGain {
			return false
		}
	}
	return true
}

// rivals returns the jobs of a card that compete for it. What is known of its jobs goes into
// jobs; one that sleeps keeps its gain.
func (b *balance) rivals(claims []Claim, members []int, used []usage, g *gates, jobs map[Key]*standing) (list []rivalry) {
	for _, i := range members {
		s := b.jobs[claims[i].Key]
		if s == nil {
			s = &standing{}
		}
		jobs[claims[i].Key] = s
		s.follow(used[i])
		s.trial.look(used[i], s.first)
		if u := used[i]; claims[i].Busy > 0 && u.span > 0 && u.exact && u.wants >= leastWanted {
			list = append(list, rivalry{claims[i], u, s, g.open(claims[i].Key), 0})
		}
	}
	return list
}

// rest lets the gains of jobs fade that do not compete.
func rest(claims []Claim, members []int, used []usage, jobs map[Key]*standing) {
	span := time.Duration(0)
	for _, i := range members {
		span = max(span, used[i].span)
	}
	for _, i := range members {
		jobs[claims[i].Key].gain *= math.Exp(-float64(span) / float64(restFades))
	}
}

// tell gives the claims of a card their gains: all at once, for one job's gain changes
// everybody's slices, and only if that is worth its price.
func (b *balance) tell(claims []Claim, members []int, p Params, jobs map[Key]*standing) {
	told, due := make([]Claim, len(members)), make([]Claim, len(members))
	for n, i := range members {
		s := jobs[claims[i].Key]
		told[n], due[n] = claims[i], claims[i]
		told[n].Gain, due[n].Gain = s.told, s.gain
		told[n].Roomy, due[n].Roomy = s.roomy, s.trial.longer
	}
	d := divide(told, p)
	if other := divide(due, p); worthIt(d.slices, other.slices) {
		d, told = other, due
	}
	several := busyProcs(told) > 2
	for n, i := range members {
		s := jobs[claims[i].Key]
		s.told, s.roomy = told[n].Gain, told[n].Roomy
		claims[i].Gain, claims[i].Roomy = s.told, s.roomy
		s.slice = float64(d.slices[n])
		s.first, s.last = d.othersAreBrief(told, n), d.isBrief(n)
		if s.rest = 0; several {
			s.rest = time.Duration(d.rest[n]) * time.Microsecond
		}
	}
}

// worked leaves out of what jobs had the time for which they did nothing there: at the end of
// turns from which they were switched, which are about as long as their slices, and at the
// begin of the others.
func (b *balance) worked(claims []Claim, used []usage) {
	for i, c := range claims {
		u, s := &used[i], b.jobs[c.Key]
		if !u.exact || u.turns == 0 || s == nil || s.slice == 0 {
			continue
		}
		whole := min(1, u.ns/1000/float64(u.turns)/s.slice)
		u.ns -= min(u.ns/2, float64(u.turns)*1000*(preemptUS*whole+beginUS*(1-whole)))
	}
}

// follow notes how long a job's turns are.
func (s *standing) follow(u usage) {
	if u.turns == 0 {
		return
	}
	turn := u.ns / float64(u.turns)
	if s.turn == 0 {
		s.turn = turn
	}
	s.turn += (turn - s.turn) / turnLooks
}

// pace is the time in which the gain of a job grows by 1 where it lacks all.
func (r rivalry) pace() time.Duration {
	if r.turn == 0 {
		return slowBalance
	}
	unsure := r.turn / max(1, r.entitled)
	return max(fastBalance, min(slowBalance, time.Duration(unsure*float64(surePart))))
}

// worthIt says whether other slices are worth the price of a change.
func worthIt(before, after []uint32) bool {
	for i := range before {
		if math.Abs(math.Log(float64(after[i])/float64(before[i]))) > gainStep {
			return true
		}
	}
	return false
}

// leastWanted is the part of the time for which a job wants the card from which it competes for
// it: one that has ended a moment ago still counts as busy.
const leastWanted = 0.05

// rivalry is a job that competes for a card, and what it is entitled to, in nanoseconds.
type rivalry struct {
	Claim
	used usage
	*standing
	open     bool
	entitled float64
}

// settle holds what jobs had against what they were entitled to.
func settle(rivals []rivalry) {
	mean, cores := 0.0, 0.0
	for _, r := range rivals {
		fade := math.Exp(-float64(r.used.span) / float64(partMemory))
		r.part = r.part*fade + r.used.ns/float64(r.used.span)*(1-fade)
		// In parts of its share. What is more than twice its share is not paid back.
		lack := (r.entitled - r.used.ns) / (float64(r.Cores) / 100 * float64(r.used.span))
		change := max(-1, lack) * float64(r.used.span) / float64(r.pace())
		if limit, limited := limitOf(r.Claim); limited && !r.open && r.part > heldFrom*float64(limit)/100 {
			change = min(change, -float64(r.used.span)/float64(heldPace))
		}
		if r.last { // shorter it cannot get
			change = max(0, change)
		}
		r.gain = (r.gain + change) * math.Exp(-float64(r.used.span)/float64(fades))
		mean, cores = mean+r.gain*float64(r.Cores), cores+float64(r.Cores)
	}
	for _, r := range rivals { // only differences count
		r.gain = max(-mostGain, min(mostGain, r.gain-mean/cores))
	}
}

// entitle divides what all jobs had by their shares. None is entitled to more than its limit,
// nor to time for which it did not want the card; and whose neighbours' slices cannot be
// shorter, to no more than it had: it has all that it can take. What one does not take is the
// others', by their shares.
func entitle(rivals []rivalry) {
	sum, weights, most := 0.0, make([]float64, len(rivals)), make([]float64, len(rivals))
	for i, r := range rivals {
		sum += r.used.ns
		weights[i], most[i] = r.weight(), r.most()
	}
	for i, entitled := range fill(sum, weights, most) {
		rivals[i].entitled = entitled
	}
}

// fill divides a sum in proportion to weights. No part exceeds its maximum, and the others share the
// remainder. A part without a weight is 0.
func fill(sum float64, weights, most []float64) []float64 {
	parts, full := make([]float64, len(weights)), make([]bool, len(weights))
	for again := true; again; {
		again = false
		open := 0.0
		for i, w := range weights {
			if !full[i] {
				open += w
			}
		}
		for i, w := range weights {
			if full[i] || w <= 0 {
				continue
			}
			parts[i] = sum * w / open
			if most[i] <= parts[i] {
				parts[i], full[i], again = most[i], true, true
				sum -= most[i]
				break
			}
		}
	}
	return parts
}

// weight is what a job's part is in proportion to: its share, for the time for which it wants
// the card. That is while it has it, and while it waits for its turn: beside several others,
// which all switch more often for it, for one turn of theirs each time at most.
func (r rivalry) weight() float64 {
	waited := r.used.wants*float64(r.used.span) - r.used.ns
	if r.rest > 0 { // one wait has begun in the look before, or goes on in the next
		waited = min(waited, float64(r.used.turns+1)*float64(r.rest))
	}
	return float64(r.Cores) * max(0.001, min(1, (r.used.ns+waited)/float64(r.used.span)))
}

// most is what it may be entitled to at most.
func (r rivalry) most() float64 {
	most := math.Inf(1)
	if limit, limited := limitOf(r.Claim); limited {
		most = float64(limit) / 100 * float64(r.used.span)
	}
	if r.first {
		most = min(most, r.used.ns)
	}
	return most
}

func busyProcs(claims []Claim) (n uint32) {
	for _, c := range claims {
		n += c.Busy
	}
	return n
}
