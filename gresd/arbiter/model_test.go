// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// model is a model of a card and of the hosts of its jobs, in virtual time. It gives what an
// H100 was measured to give (TestTheModelIsTheCard), and a gresd of the test's divides it.
type model struct {
	jobs    []*workload
	now     time.Duration
	on      int
	end     time.Duration // of the slice
	changes int           // of slices
}

const (
	switchTime  = 83 * time.Microsecond  // between two processes, by the card's records
	preemptTime = 130 * time.Microsecond // for which one with work stays on beyond its slice
	beginTime   = 80 * time.Microsecond  // for which one that had no work for sleepTime does nothing yet
	sleepTime   = 50 * time.Microsecond
	changeTime  = 400 * time.Microsecond // the card loses to a change of slices
	syncTime    = 24 * time.Microsecond  // from the end of the work to the host that waits for it
	mostAhead   = 1024                   // launches of a host before the card

	mostSaved     = 5 * time.Millisecond  // of a budget
	pollTime      = 20 * time.Microsecond // of a host that is held
	mostHeldAhead = time.Millisecond      // of work on its way while the budget holds
)

// workload is a program: steps of kernels, which its host launches one after the other.
type workload struct {
	share    uint32
	mode     uint32
	priority uint32
	kernels  int           // of a step
	kernel   time.Duration // how long each runs
	launch   time.Duration // what the host takes for each
	gap      time.Duration // what it takes between two steps
	waits    int           // it waits for every so manieth step; 0: never
	pause    time.Duration // of the host, once in pauseOf steps
	pauseOf  int
	ends     time.Duration // nothing is launched from then on; 0: always

	// Its gate: while held, it launches from a budget of its share of the time.
	held     bool
	dry      bool
	budget   time.Duration
	refilled time.Duration

	slice    time.Duration
	queue    []time.Duration // when the kernels that are launched are there
	left     time.Duration   // of the first of them
	host     time.Duration   // what the host has done up to then
	launched int             // kernels of the step
	step     int             // steps launched
	waiting  bool
	done     int // kernels
	steps    []time.Duration
	seen     time.Duration // last sign of work

	had, waited time.Duration
	turns       uint64
	syncs       uint64        // waits of the host that have ended
	away        time.Duration // when it last left the card; <0: it is there
}

// mayLaunch asks the gate, as libvgpu's is: in debt it saves up before it goes on, and while it
// holds little is on its way.
func (j *workload) mayLaunch(now time.Duration) bool {
	j.budget += (now - j.refilled) * time.Duration(j.share) / 100
	j.refilled = now
	if len(j.queue) == 0 || !j.held {
		j.budget = min(j.budget, mostSaved)
	}
	if !j.held { // what it had meanwhile does not count
		j.budget = max(j.budget, -mostSaved)
	}
	if saved := mostSaved * time.Duration(j.share) / 100; j.budget <= 0 || j.budget >= saved {
		j.dry = j.budget <= 0
	}
	onItsWay := time.Duration(len(j.queue)) * j.kernel
	return !j.held || !j.dry && (onItsWay == 0 || onItsWay+j.kernel <= mostHeldAhead)
}

// advance lets the host launch what it can up to a time.
func (j *workload) advance(now time.Duration) {
	for !j.waiting && j.host <= now && len(j.queue) < mostAhead {
		if !j.mayLaunch(now) {
			j.host = now
			return
		}
		if j.ends > 0 && j.host >= j.ends {
			return
		}
		if j.launched < j.kernels {
			if j.host+j.launch > now {
				return
			}
			j.host += j.launch
			j.queue = append(j.queue, j.host)
			j.launched++
			if len(j.queue) == 1 {
				j.left = j.kernel
			}
			continue
		}
		j.launched, j.step = 0, j.step+1
		j.host += j.gap
		if j.pauseOf > 0 && j.step%j.pauseOf == 0 {
			j.host += j.pause
		}
		if j.waits > 0 && j.step%j.waits == 0 && len(j.queue) > 0 {
			j.waiting = true
		}
	}
}

// nextLaunch is when the host does something next.
func (j *workload) nextLaunch() time.Duration {
	if j.waiting || len(j.queue) >= mostAhead || j.ends > 0 && j.host >= j.ends {
		return math.MaxInt64
	}
	if !j.mayLaunch(j.refilled) {
		return j.refilled + pollTime
	}
	return j.host + j.launch
}

func (j *workload) ready(now time.Duration) bool { return len(j.queue) > 0 && j.queue[0] <= now }

// complete ends the kernel that runs.
func (j *workload) complete(now time.Duration) {
	j.queue = j.queue[1:]
	j.budget -= j.kernel
	j.left = j.kernel
	if j.done++; j.done%j.kernels == 0 {
		j.steps = append(j.steps, now)
	}
	if len(j.queue) == 0 && j.waiting {
		j.waiting, j.host = false, max(j.host, now+syncTime)
		j.syncs++
	}
}

// run plays the card up to a time.
func (c *model) run(until time.Duration) {
	for c.now < until {
		for _, j := range c.jobs {
			j.advance(c.now)
			if len(j.queue) > 0 {
				j.seen = c.now
			}
		}
		j := c.jobs[c.on]
		if !j.ready(c.now) || c.now >= c.end {
			next := -1
			for k := 1; k <= len(c.jobs); k++ {
				if n := (c.on + k) % len(c.jobs); c.jobs[n].ready(c.now) {
					next = n
					break
				}
			}
			switch {
			case next < 0: // nobody has work: up to the next launch
				at := until
				for _, j := range c.jobs {
					at = min(at, j.nextLaunch())
				}
				c.pass(max(at-c.now, time.Nanosecond))
				continue
			case next == c.on:
				c.end = c.now + j.slice
			default:
				if j.ready(c.now) {
					c.pass(preemptTime)
				}
				j.away = c.now
				c.now += switchTime
				c.on = next
				j = c.jobs[next]
				if j.away >= 0 {
					j.waited += min(c.now-j.away, 50*time.Millisecond)
				}
				away := j.away
				j.away = -1
				j.turns++
				c.end = c.now + j.slice
				if j.queue[0] > away+sleepTime {
					c.pass(beginTime)
				}
			}
			continue
		}
		dt := min(j.left, c.end-c.now, until-c.now)
		c.pass(max(dt, time.Nanosecond))
		if j.left -= dt; j.left <= 0 {
			j.complete(c.now)
		}
	}
}

// pass is time for which the process that is on the card stays there.
func (c *model) pass(dt time.Duration) {
	c.now += dt
	c.jobs[c.on].had += dt
}

func (j *workload) waitedBy(now time.Duration) time.Duration {
	if j.away < 0 {
		return j.waited
	}
	return j.waited + min(now-j.away, 50*time.Millisecond)
}

// newCard is a card with jobs whose slices are the driver's own.
func newCard(jobs []workload) *model {
	c := &model{}
	for i := range jobs {
		j := jobs[i]
		j.slice, j.seen, j.away = 2090*usec, -time.Hour, -1
		c.jobs = append(c.jobs, &j)
	}
	c.end = c.jobs[0].slice
	return c
}

// solo is how many steps a second a job does alone.
func solo(j workload) float64 {
	c := newCard([]workload{j})
	c.run(3 * time.Second)
	return c.jobs[0].rate(time.Second, 3*time.Second)
}

// alone is the same within its share of the card's time.
func alone(j workload) float64 {
	work := time.Duration(j.kernels) * j.kernel
	return min(solo(j), float64(j.share)/100/work.Seconds())
}

// playOn lets jobs compete for a card that the rule divides, look by look. after is called
// after each one; nil: nothing.
func playOn(jobs []workload, span time.Duration, after func(c *model, slices []uint32)) *model {
	const tick = 50 * time.Millisecond
	c := newCard(jobs)
	claims := make([]Claim, len(jobs))
	used, before := make([]usage, len(jobs)), make([]workload, len(jobs))
	for i, j := range jobs {
		claims[i] = claim(uint32(i+1), j.share, j.mode, 0)
		claims[i].Priority = j.priority
	}
	tell := func(slices []uint32) (changed bool) {
		for i, j := range c.jobs {
			if us := time.Duration(slices[i]) * time.Microsecond; us != j.slice {
				j.slice, changed = us, true
			}
		}
		return changed
	}
	var gresd card
	gresd.found(claims, nil)
	tell(gresd.slices(params).slices)
	for c.now < span {
		from := c.now
		c.run(c.now + tick)
		took := c.now - from
		for i, j := range c.jobs {
			claims[i].Busy = 0
			if c.now-j.seen <= hold {
				claims[i].Busy = 1
			}
			u := usage{ns: float64(j.had - before[i].had), span: took, exact: true, look: took, turns: j.turns - before[i].turns, waits: j.syncs - before[i].syncs}
			u.wants = min(1, (u.ns+float64(j.waitedBy(c.now)-before[i].waited))/float64(took))
			used[i] = u
			before[i] = workload{had: j.had, waited: j.waitedBy(c.now), turns: j.turns, syncs: j.syncs}
		}
		now := time.Unix(1000, 0).Add(c.now)
		gresd.found(claims, used)
		gresd.entitle()
		gresd.divide(params, now, 0)
		gresd.gate(params, now, 0)
		slices := make([]uint32, len(jobs))
		for i, j := range gresd.list {
			slices[i] = j.schedule.SliceUS
			c.jobs[i].held = j.schedule.Gate&libvgpu.GateBudget != 0
		}
		if tell(slices) {
			c.changes++
			c.now += changeTime
		}
		if after != nil {
			after(c, slices)
		}
	}
	return c
}

// rate is how many steps a job did a second.
func (j *workload) rate(from, to time.Duration) float64 {
	n := 0
	for _, at := range j.steps {
		if at >= from && at < to {
			n++
		}
	}
	return float64(n) / (to - from).Seconds()
}

const usec = time.Microsecond

// training and inference are those that were measured on an H100: 62 and 741 steps a second.
func training(share uint32, waits int) workload {
	return workload{share: share, mode: hard, kernels: 330, kernel: 40700 * time.Nanosecond, launch: 42 * usec, gap: 1850 * usec, waits: waits}
}

func inference(share uint32) workload {
	return workload{share: share, mode: hard, kernels: 90, kernel: 3400 * time.Nanosecond, launch: 13300 * time.Nanosecond, gap: 90 * usec, waits: 1}
}

// full keeps its queue full.
func filled(share uint32, kernel time.Duration) workload {
	return workload{share: share, mode: hard, kernels: 1, kernel: kernel, launch: 2 * usec, waits: 0}
}
