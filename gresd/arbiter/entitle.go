// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"slices"
	"time"
)

// entitle gives competing jobs their entitlements (docs/adr/0006). Slices in proportion to the
// shares do that only for jobs that use up their slices. If a job's host waits for results, the
// job leaves the card at each wait, and then waits for all others' slices. So gresd compares each
// job's time with its entitlement. The gain, a logarithm, sums up the differences, and multiplies
// the share. A job that lacks time has longer slices, and its neighbors have shorter ones, until
// it lacks nothing, or its neighbors' slices cannot be shorter. Nothing needs to be known of the
// work. Jobs without records of the card take no part: a process's own account can be a third off
// next to others.
func (c *card) entitle() {
	c.leaveOutIdle()
	rivals := c.rivals()
	if c.young = false; len(rivals) < 2 {
		c.fade()
		c.contest = contest{}
		return
	}
	entitle(rivals)
	if c.contest.rivals != len(rivals) {
		c.contest = contest{rivals: len(rivals), unknown: unknown(rivals)}
	}
	if c.contest.looks++; c.contest.looks > firstLooks {
		settle(rivals)
	}
	c.young = c.contest.unknown && c.contest.looks <= youngLooks
}

// contest is of jobs that compete for a card.
type contest struct {
	rivals int // how many
	looks  int // polls with so many rivals
	// unknown: nothing was known of them when they began to compete.
	unknown bool
}

// standing compares a job with its neighbors.
type standing struct {
	gain     float64 // logarithm
	part     float64 // of the card that it had lately
	turn     float64 // how long its last turns were, in nanoseconds; 0: not known
	entitled float64 // in the last poll, nanoseconds
	trial    trial
}

const (
	// A gain grows by 1 in a certain time if a job gets nothing of its entitlement. A job's use in a
	// poll has an error of up to one turn, because polls and turns are not aligned. So that time is
	// surePart times its turn, divided by its entitlement in the poll, within these bounds.
	surePart    = time.Second
	fastBalance = 75 * time.Millisecond
	slowBalance = 400 * time.Millisecond
	turnLooks   = 3 // that a mean turn covers
	// The first polls of a contest do not count, because programs do not begin at the same moment.
	firstLooks = 5
	// fades is how fast a gain is forgotten that nothing renews, and restFades how fast while
	// jobs do not compete: other work than before may come after a pause. A request comes sooner.
	fades     = 20 * time.Second
	restFades = 3 * time.Second
	// If a budget throttles a job that has this part of its limit, the job needs no longer slices. Its
	// gain falls, by 1 in heldPace.
	heldFrom = 0.97
	heldPace = time.Second
	// mostGain bounds the logarithm.
	mostGain = 6.0
	// gainStep is the smallest change worth its price. The card loses about 0.4 ms to each change of
	// slices (measured on an H200: 15 changes a second cost 1 % of it).
	gainStep = 0.1
	// A gain above knownGain shows a job's needs. While nothing is known, slices are short for
	// youngLooks polls.
	knownGain  = 0.3
	youngLooks = 8
	// partMemory is how long what a job had counts in its part.
	partMemory = 500 * time.Millisecond
)

// unknown reports whether no job has a gain that shows its needs.
func unknown(rivals []*job) bool {
	return !slices.ContainsFunc(rivals, func(r *job) bool { return math.Abs(r.gain) > knownGain })
}

// rivals returns the jobs that compete for the card. One that sleeps keeps its gain.
func (c *card) rivals() (list []*job) {
	for _, j := range c.list {
		j.follow(j.used)
		j.trial.look(j.used, j.first)
		if u := j.used; j.Busy > 0 && u.span > 0 && u.exact && u.wants >= leastWanted {
			list = append(list, j)
		}
	}
	return list
}

// fade lets the gains of jobs fade that do not compete.
func (c *card) fade() {
	span := time.Duration(0)
	for _, j := range c.list {
		span = max(span, j.used.span)
	}
	for _, j := range c.list {
		j.gain *= math.Exp(-float64(span) / float64(restFades))
	}
}

// leaveOutIdle subtracts the parts without work from each job's time. If a turn is as long as the
// slice, this is its end, else its beginning.
func (c *card) leaveOutIdle() {
	for _, j := range c.list {
		u := &j.used
		if !u.exact || u.turns == 0 || j.slice == 0 {
			continue
		}
		whole := min(1, u.ns/1000/float64(u.turns)/j.slice)
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

// pace is the time until the gain of a job that lacks all grows by 1.
func (r *job) pace() time.Duration {
	if r.turn == 0 {
		return slowBalance
	}
	unsure := r.turn / max(1, r.entitled)
	return max(fastBalance, min(slowBalance, time.Duration(unsure*float64(surePart))))
}

// A job competes for the card from this part of the time with or waiting for it. A job that has
// just ended still counts as busy.
const leastWanted = 0.05

// settle compares each job's time with its entitlement.
func settle(rivals []*job) {
	mean, cores := 0.0, 0.0
	for _, r := range rivals {
		fade := math.Exp(-float64(r.used.span) / float64(partMemory))
		r.part = r.part*fade + r.used.ns/float64(r.used.span)*(1-fade)
		// In parts of its share. Use above twice its share is not paid back.
		lack := (r.entitled - r.used.ns) / (float64(r.Cores) / 100 * float64(r.used.span))
		change := max(-1, lack) * float64(r.used.span) / float64(r.pace())
		if r.limited && !r.open && r.part > heldFrom*float64(r.limit)/100 {
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

// entitle divides the time of all jobs by their shares. A job is entitled to no more than its
// limit, and not to time without work. If its neighbors' slices cannot be shorter, it is entitled
// to the time that it had, because it can take no more. The others have the rest, by their shares.
func entitle(rivals []*job) {
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

// weight is a job's share, times its part of the time with or waiting for the card. Next to
// several others, which all switch more often for it, each wait counts at most one turn of theirs.
func (r *job) weight() float64 {
	waited := r.used.wants*float64(r.used.span) - r.used.ns
	if r.rest > 0 { // one wait has begun in the look before, or goes on in the next
		waited = min(waited, float64(r.used.turns+1)*float64(r.rest))
	}
	return float64(r.Cores) * max(0.001, min(1, (r.used.ns+waited)/float64(r.used.span)))
}

// most is the maximum of its entitlement.
func (r *job) most() float64 {
	most := math.Inf(1)
	if r.limited {
		most = float64(r.limit) / 100 * float64(r.used.span)
	}
	if r.first {
		most = min(most, r.used.ns)
	}
	return most
}

// trial finds the shortest good slice for a job's only neighbor. The launches of the job's host up
// to its next wait either fit between two turns of the neighbor, or the job waits for one turn
// more. Then a longer slice may serve both. Hosts differ, so gresd tries both lengths, and keeps
// the length with more waits, so with more steps.
type trial struct {
	longer bool    // what holds
	trying bool    // since the last window
	rate   float64 // waits a second with the better length so far
	rests  int     // windows without a trial
	pause  int     // for how many it is after the next trial

	looks int // of this window; below 0: such as do not count
	span  time.Duration
	waits uint64
	turns uint64
}

const (
	// If a job needs brokenFrom turns or more for each wait, its neighbor's slice seems too short.
	// (PyTorch's inference needs 1.2 with any slice on an H100.)
	brokenFrom = 1.45
	// trialLooks polls are a window. trialWaits is the number of a host's waits that make a window
	// meaningful. After a trial there are firstRests windows without one. The pause doubles after
	// each next trial, up to trialRests. If the host waits less often than fallenTo of its earlier
	// rate, the next trial need not wait for the pause.
	trialLooks = 10
	trialWaits = 40
	firstRests = 2
	trialRests = 20
	fallenTo   = 0.75
)

// look adds a poll of a job. brief: its neighbors' slices are as short as they get.
func (t *trial) look(u usage, brief bool) {
	t.looks++
	if !brief || t.looks <= 0 {
		t.begin(min(t.looks, 0))
		return
	}
	t.span, t.waits, t.turns = t.span+u.span, t.waits+u.waits, t.turns+u.turns
	if t.looks < trialLooks {
		return
	}
	rate := float64(t.waits) / t.span.Seconds()
	broken := float64(t.turns) > brokenFrom*float64(t.waits)
	told := t.waits >= trialWaits
	t.begin(0)
	switch {
	case t.trying && rate < t.rate:
		t.change()
		t.rest()
	case t.trying:
		t.rate = rate
		t.rest()
	case t.rests > 0 && rate > fallenTo*t.rate:
		t.rests--
	case told && (broken || t.longer):
		if t.rests > 0 { // the host does something else
			t.pause = 0
		}
		t.change()
		t.trying, t.rate = true, rate
	}
}

// rest ends a trial.
func (t *trial) rest() {
	t.pause = max(firstRests, min(2*t.pause, trialRests))
	t.trying, t.rests = false, t.pause
}

// change takes the other length. The poll in progress does not count, so the next poll shows the
// new length.
func (t *trial) change() {
	t.longer = !t.longer
	t.begin(-1)
}

// begin begins a window.
func (t *trial) begin(looks int) { t.looks, t.span, t.waits, t.turns = looks, 0, 0, 0 }
