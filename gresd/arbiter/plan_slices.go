// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// division is how the time of a card is divided by slices.
type division struct {
	// slices are those of each process of each claim, in microseconds. They are in proportion
	// to the shares times the gains. One that waits for results has a long slice with a large
	// gain, and ends it by itself; its neighbours have short ones, so that it begins soon.
	slices []uint32
	// brief is how short the slice of each gets.
	brief []float64
	// rest is what a turn of all takes beside a job's own slices: how long it waits at most.
	rest []float64
}

func divide(claims []Claim, p Params) division {
	n := len(claims)
	d := division{slices: make([]uint32, n), brief: make([]float64, n), rest: make([]float64, n)}
	period, weights, cores, sum := float64(periodOf(claims, p)), weightsOf(claims), 0.0, 0.0
	for i, c := range claims {
		cores, sum = cores+float64(c.Cores), sum+weights[i]
	}
	brief, turn := briefOf(claims, weights), 0.0
	for i, c := range claims {
		plain := float64(c.Cores) * period / max(1, cores) / float64(procs(c))
		// Never so short that the card does nothing but switch.
		d.brief[i] = min(plain, max(brief(c), float64(p.MinSlice)))
		us := max(1, d.brief[i], weights[i]*period/max(1, sum)/float64(procs(c)))
		d.slices[i] = uint32(us)
	}
	d.shorten(claims, longest(p))
	for i, c := range claims {
		turn += (float64(d.slices[i]) + switchUS + preemptUS) * float64(c.Busy)
	}
	for i, c := range claims {
		d.rest[i] = turn - (float64(d.slices[i])+preemptUS)*float64(c.Busy)
	}
	return d
}

// shorten takes from the longest slice what a turn of all has too much, because others' could
// not be shorter.
func (d division) shorten(claims []Claim, most uint32) {
	sum, longest := uint32(0), 0
	for i, c := range claims {
		sum += d.slices[i] * c.Busy
		if d.slices[i]*c.Busy > d.slices[longest]*claims[longest].Busy {
			longest = i
		}
	}
	if busy := claims[longest].Busy; sum > most && busy > 0 {
		d.slices[longest] -= min(d.slices[longest]/2, (sum-most)/busy)
	}
}

// othersAreBrief says whether the slices of all busy neighbours of a job are as short as they
// get.
func (d division) othersAreBrief(claims []Claim, i int) bool {
	others := false
	for k, c := range claims {
		if k == i || c.Busy == 0 {
			continue
		}
		if !d.isBrief(k) {
			return false
		}
		others = true
	}
	return others
}

// isBrief says whether a slice is about as short as it gets: a change of less than gainStep is
// not made.
func (d division) isBrief(i int) bool {
	return float64(d.slices[i]) <= d.brief[i]*(1+gainStep)+1
}

// ahead is by how much, as a logarithm, the slices of a job of higher priority are longer:
// its neighbours' slices then are as short as they get, until it has had more than its share.
const ahead = 4.0

// weightsOf are what the slices of jobs are in proportion to.
func weightsOf(claims []Claim) []float64 {
	busy, top := uint32(0), math.MinInt
	for _, c := range claims {
		busy += c.Busy
	}
	// Beside one process alone short slices cost nothing while the job that they are for
	// sleeps: nobody switches. Several would.
	counts := func(c Claim) bool { return c.Busy > 0 || busy <= 1 }
	for _, c := range claims {
		if counts(c) {
			top = max(top, rank(c.Priority))
		}
	}
	weights := make([]float64, len(claims))
	for i, c := range claims {
		weights[i] = float64(c.Cores)
		if counts(c) {
			weights[i] *= math.Exp(c.Gain + ahead*float64(rank(c.Priority)-top))
		}
	}
	return weights
}

// What a turn costs beside what it is for, in microseconds (measured on an H100): the card is
// nobody's while it switches, a process that is switched from with work to do stays on it a while
// longer, and one that comes back after it had none does nothing there for a while.
const (
	switchUS  = 83
	beginUS   = 80
	preemptUS = 130
)

const (
	// keptOf is the part of its share that is left to a job whose slices are short for
	// another one, should that use turns of turnUS.
	keptOf = 0.8
	turnUS = 350
	// briefSlice is how short the slice of one process gets. Measured on an H100 beside
	// inference of 1.3 ms a step: at 1000 us the inference does 70 % of what it does alone and
	// the training 72, at 700 90 and 60, at 500 77 and 52: what the host launches for a step
	// then does not fit between two turns (see [Claim.Fit]: hosts differ).
	briefSlice = 750
	roomySlice = 1400
	// briefAmongSeveral is the same for several processes, which switch among themselves all
	// the time; and briefBelow for several that are below one of higher priority, whose own
	// needs may be small.
	briefAmongSeveral = 650
	briefBelow        = 1000
)

// briefOf returns how short the slices of jobs get beside the one that has most for its
// share, in microseconds: so that turns of that and switches leave them the part keptOf of
// their shares. With slices in proportion to the shares s, and o for all else in a round, a
// job has f / (sum of all f + o) of the card, and f = s × keptOf × o / (1 - keptOf × sum of
// all s).
func briefOf(claims []Claim, weights []float64) func(Claim) float64 {
	first, procsOfOthers, coresOfOthers := -1, 0.0, 0.0
	for i, c := range claims {
		if c.Busy == 0 {
			continue
		}
		procsOfOthers += float64(c.Busy)
		coresOfOthers += float64(c.Cores)
		if first < 0 || weights[i]*float64(claims[first].Cores) > weights[first]*float64(c.Cores) {
			first = i
		}
	}
	if first >= 0 {
		procsOfOthers -= float64(claims[first].Busy)
		coresOfOthers -= float64(claims[first].Cores)
	}
	o := procsOfOthers*preemptUS + (procsOfOthers+1)*switchUS + turnUS
	left := max(1-keptOf, 1-keptOf*coresOfOthers/100)
	return func(c Claim) float64 {
		us := float64(c.Cores) / 100 * keptOf * o / left / float64(procs(c))
		switch {
		case procsOfOthers <= 1 && first >= 0 && claims[first].Roomy:
			return max(us, roomySlice)
		case procsOfOthers <= 1:
			return max(us, briefSlice)
		case first >= 0 && rank(c.Priority) < rank(claims[first].Priority):
			return max(us, briefBelow)
		}
		return max(us, briefAmongSeveral)
	}
}

// periodOf is how long one turn of all jobs is, in microseconds: long enough for the
// smallest slice, and for a good one of each busy process on the average, up to the longest
// that is allowed. A switch between two contexts costs the same whatever the slice.
func periodOf(claims []Claim, p Params) uint32 {
	cores, busy, most := uint64(0), uint64(0), uint64(longest(p))
	for _, c := range claims {
		cores += uint64(c.Cores)
		busy += uint64(c.Busy)
	}
	us := max(uint64(p.Period), busy*goodSlice)
	if len(claims) > 0 && claims[0].Young {
		us = busy * youngSlice
	}
	for _, c := range claims {
		if c.Cores == 0 {
			return uint32(most)
		}
		us = max(us, (uint64(p.MinSlice)*cores*procs(c)+uint64(c.Cores)-1)/uint64(c.Cores))
	}
	return uint32(min(us, most))
}

// goodSlice is the slice from which switching costs less than 3 % of the card, in
// microseconds (measured on an H200: 96.9 % of solo work are left at 6000, 95.2 at
// 3000, 92.1 at 1500).
const goodSlice = 6000

// youngSlice is the same where jobs have just begun to compete: 2 ms are what the driver sets, so
// that one that waits for results waits no longer than without gresd.
const youngSlice = 2000

// longest is the longest period.
func longest(p Params) uint32 { return max(p.Period, p.MaxPeriod) }

// rank orders priorities.
func rank(priority uint32) int {
	switch priority {
	case libvgpu.PrioHigh:
		return 2
	case libvgpu.PrioLow:
		return 0
	}
	return 1
}
