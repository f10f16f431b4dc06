// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// share is a job's part of the time of its card.
type share struct {
	told  float64 // the gain of the slices in force
	roomy bool    // the same of [trial]: the slice of its only neighbor must be longer than the shortest
	slice float64 // of each of its processes, in microseconds
	// first: its neighbors' slices are as short as they get. last: its own slice is.
	first, last bool
	// rest is how long it waits for its turn at most; 0: for as long as it is away.
	rest time.Duration
}

// divide sets the slices of all jobs at once, because one job's gain changes all slices. It
// changes them only if that is worth its price. On a card without time slices it sets windows.
func (c *card) divide(p Params, now time.Time, mono int64) {
	before, d, busy := make([]share, len(c.list)), c.slices(p), uint32(0)
	for i, j := range c.list {
		before[i] = j.share
		j.told, j.roomy = j.gain, j.trial.longer
		busy += j.Busy
	}
	if other := c.slices(p); worthIt(d.slices, other.slices) {
		d = other
	} else {
		for i, j := range c.list {
			j.share = before[i]
		}
	}
	for i, j := range c.list {
		j.slice = float64(d.slices[i])
		j.first, j.last = d.othersAreBrief(c.list, i), d.isBrief(i)
		if j.rest = 0; busy > 2 {
			j.rest = time.Duration(d.rest[i]) * time.Microsecond
		}
	}
	if c.unsliced {
		c.setWindows(p, now, mono)
	} else if c.windows.used {
		c.endWindows()
	}
}

// worthIt reports whether a slice changes by more than gainStep.
func worthIt(before, after []uint32) bool {
	for i := range before {
		if math.Abs(math.Log(float64(after[i])/float64(before[i]))) > gainStep {
			return true
		}
	}
	return false
}

// division is how the time of a card is divided by slices.
type division struct {
	// slices has the slice of each process of a job, in microseconds. They are in proportion to the
	// shares times the gains. One that waits for results has a long slice with a large gain, and ends
	// it by itself; its neighbors have short ones, so that it begins soon.
	slices []uint32
	// brief is how short the slice of each gets.
	brief []float64
	// rest is a job's longest wait: a turn of all, less its own slices.
	rest []float64
}

func (c *card) slices(p Params) division {
	jobs, n := c.list, len(c.list)
	d := division{slices: make([]uint32, n), brief: make([]float64, n), rest: make([]float64, n)}
	period, weights, cores, sum := float64(c.period(p)), weightsOf(jobs), 0.0, 0.0
	for i, j := range jobs {
		cores, sum = cores+float64(j.Cores), sum+weights[i]
	}
	brief, turn := briefOf(jobs, weights), 0.0
	for i, j := range jobs {
		plain := float64(j.Cores) * period / max(1, cores) / j.procs
		// Never so short that the card does nothing but switch.
		d.brief[i] = min(plain, max(brief(j), float64(p.MinSlice)))
		us := max(1, d.brief[i], weights[i]*period/max(1, sum)/j.procs)
		d.slices[i] = uint32(us)
	}
	d.shorten(jobs, longest(p))
	for i, j := range jobs {
		turn += (float64(d.slices[i]) + switchUS + preemptUS) * float64(j.Busy)
	}
	for i, j := range jobs {
		d.rest[i] = turn - (float64(d.slices[i])+preemptUS)*float64(j.Busy)
	}
	return d
}

// shorten takes from the longest slice what a turn of all has too much, because others' could
// not be shorter.
func (d division) shorten(jobs []*job, most uint32) {
	sum, longest := uint32(0), 0
	if len(jobs) == 0 { // something else divides the card
		return
	}
	for i, j := range jobs {
		sum += d.slices[i] * j.Busy
		if d.slices[i]*j.Busy > d.slices[longest]*jobs[longest].Busy {
			longest = i
		}
	}
	if busy := jobs[longest].Busy; sum > most && busy > 0 {
		d.slices[longest] -= min(d.slices[longest]/2, (sum-most)/busy)
	}
}

// othersAreBrief reports whether the slices of all busy neighbors of a job are as short as they
// get.
func (d division) othersAreBrief(jobs []*job, i int) bool {
	others := false
	for k, j := range jobs {
		if k == i || j.Busy == 0 {
			continue
		}
		if !d.isBrief(k) {
			return false
		}
		others = true
	}
	return others
}

// isBrief reports whether a slice is about as short as it gets. Changes below gainStep are not
// made.
func (d division) isBrief(i int) bool {
	return float64(d.slices[i]) <= d.brief[i]*(1+gainStep)+1
}

// ahead is added to the gain of a job for each step of priority. Its neighbors' slices then are as
// short as they get, until it has had more than its share.
const ahead = 4.0

// weightsOf returns the weights of the jobs: slices are in proportion to them.
func weightsOf(jobs []*job) []float64 {
	busy, top := uint32(0), math.MinInt
	for _, j := range jobs {
		busy += j.Busy
	}
	// Next to a single process, short slices for a job that sleeps cost nothing, because the card does
	// not switch. Several processes would.
	counts := func(j *job) bool { return j.Busy > 0 || busy <= 1 }
	for _, j := range jobs {
		if counts(j) {
			top = max(top, rank(j.Priority))
		}
	}
	weights := make([]float64, len(jobs))
	for i, j := range jobs {
		weights[i] = float64(j.Cores)
		if counts(j) {
			weights[i] *= math.Exp(j.told + ahead*float64(rank(j.Priority)-top))
		}
	}
	return weights
}

// The costs of a turn in microseconds (measured on an H100): the card serves no process during a
// switch. A process with work stays on the card for some time after its slice. A process that had
// no work does nothing at first.
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
	// briefSlice is the shortest slice of one process. Measured on an H100 for a training next to
	// inference of 1.3 ms a step. The results are percentages of solo work: 72 and 70 at 1000 us, 60
	// and 90 at 700 us, 52 and 77 at 500 us. At 500 us, the launches of a step do not fit between
	// two turns (see
	// [trial]: hosts differ).
	briefSlice = 750
	roomySlice = 1400
	// briefAmongSeveral is the same for several processes, which switch among themselves all the
	// time. briefBelow is for several below a higher priority, because that job may need little.
	briefAmongSeveral = 650
	briefBelow        = 1000
)

// briefOf returns the shortest slices of jobs in microseconds. Next to the job with the most weight
// for its share, they leave each job the part keptOf of its share. Let the slices be in proportion
// to the shares s, and let o be all other time in a round. Then a job has f / (sum of all f + o) of
// the card. The solution is f = s × keptOf × o / (1 - keptOf × sum of all s).
func briefOf(jobs []*job, weights []float64) func(*job) float64 {
	first, procsOfOthers, coresOfOthers := -1, 0.0, 0.0
	for i, j := range jobs {
		if j.Busy == 0 {
			continue
		}
		procsOfOthers += float64(j.Busy)
		coresOfOthers += float64(j.Cores)
		if first < 0 || weights[i]*float64(jobs[first].Cores) > weights[first]*float64(j.Cores) {
			first = i
		}
	}
	if first >= 0 {
		procsOfOthers -= float64(jobs[first].Busy)
		coresOfOthers -= float64(jobs[first].Cores)
	}
	o := procsOfOthers*preemptUS + (procsOfOthers+1)*switchUS + turnUS
	left := max(1-keptOf, 1-keptOf*coresOfOthers/100)
	return func(j *job) float64 {
		us := float64(j.Cores) / 100 * keptOf * o / left / j.procs
		switch {
		case procsOfOthers <= 1 && first >= 0 && jobs[first].roomy:
			return max(us, roomySlice)
		case procsOfOthers <= 1:
			return max(us, briefSlice)
		case first >= 0 && rank(j.Priority) < rank(jobs[first].Priority):
			return max(us, briefBelow)
		}
		return max(us, briefAmongSeveral)
	}
}

// period returns the length of one turn of all jobs, in microseconds. It is long enough for the
// smallest slice, and for a good average slice of each busy process, up to the longest allowed
// length. A switch between two contexts costs the same with any slice.
func (c *card) period(p Params) uint32 {
	cores, busy, most := uint64(0), uint64(0), uint64(longest(p))
	for _, j := range c.list {
		cores += uint64(j.Cores)
		busy += uint64(j.Busy)
	}
	us := max(uint64(p.Period), busy*goodSlice)
	if c.young {
		us = busy * youngSlice
	}
	for _, j := range c.list {
		if j.Cores == 0 {
			return uint32(most)
		}
		us = max(us, (uint64(p.MinSlice)*cores*uint64(max(1, j.Busy))+uint64(j.Cores)-1)/uint64(j.Cores))
	}
	return uint32(min(us, most))
}

// With goodSlice, in microseconds, switches cost about 3 % of the card. An H200 did 96.9 % of solo
// work at 6000, 95.2 at 3000, 92.1 at 1500.
const goodSlice = 6000

// youngSlice is the same for jobs that have just begun to compete. The driver sets 2 ms, so a job
// that waits for results waits no longer than without gresd.
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
