// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	// minWindow, in microseconds: the period grows until each window is this long. A hand-over
	// costs the card about 0.2 ms. shortestWindow, in nanoseconds, is worth a hand-over.
	minWindow      = 2000
	shortestWindow = 500e3
	// minWindowPeriod is the shortest period, in microseconds.
	minWindowPeriod = 5000
	// A window holds at least kernelsPerWindow of its job's kernels, so a kernel that runs over
	// its end is a small part of it. If the longest period is too short, windows hold
	// longKernelsPerWindow.
	kernelsPerWindow     = 4
	longKernelsPerWindow = 2
	// longestExclusive is the longest period in microseconds: a job that waits for its window gives no
	// sign of work, and stays busy for [hold].
	longestExclusive = 200000
	// lateKernels is which part of a kernel remains free after a window of long ones.
	lateKernels = 32
	// wantsFor is how long a launch that waited counts: a waiting launch notes that each millisecond.
	wantsFor = 4 * time.Millisecond
	// burstyFor is how long a job counts as one with pauses after it had one.
	burstyFor = time.Second
	// The next window of a job grows by this part of its due time.
	repaid = 0.25
	// debtMax limits what a job owes: it must come to the card again.
	debtMax = float64(time.Second)
	// exclusiveQueue is the work that a job may have in flight, in microseconds, and
	// leastQueue what each of its processes needs to have no gaps.
	exclusiveQueue = 4000
	leastQueue     = 500
	// closedPeriods are the periods after which a job without a window has one, if gresd is gone by then.
	closedPeriods = 8
	// Longer kernels of a limited job do not begin in the window of another job.
	longKernel = 4 * time.Millisecond
)

// windows divides the time of a card without time slices: one job at a time may launch, each in
// its window of every period. The lengths follow the shares. If kernels run over the end of a
// window, the next windows of their job are shorter.
type windows struct {
	used   bool      // the card is divided by windows
	begin  int64     // of the first period with these lengths, CLOCK_MONOTONIC
	period int64     // nanoseconds
	since  time.Time // when the lengths were set
}

type window struct {
	wants  bool
	paused time.Time // when it last wanted nothing
	takes  bool      // it takes part in the division
	due    float64   // nanoseconds of the card that it lacks; negative: it had too much
	did    float64   // nanoseconds of the card since the lengths were set
	length float64   // nanoseconds; 0: it has had so much that it has no window for now
	begin  float64   // in the period, nanoseconds
	given  uint64    // windows
}

// endWindows forgets all but the numbers of windows.
func (c *card) endWindows() {
	c.windows = windows{}
	for _, j := range c.list {
		j.window = window{given: j.given}
	}
}

// setWindows compares the jobs with their shares at the end of each period, and sets new windows.
func (c *card) setWindows(p Params, now time.Time, mono int64) {
	w := &c.windows
	wanting, changed := c.wanting(now)
	passed := int64(0)
	if w.used {
		passed = max(0, (mono+int64(quickTick)-w.begin)/w.period) // published before the period begins
		if !changed && passed == 0 {
			return
		}
		c.settle(float64(now.Sub(w.since)), uint64(passed))
	}
	if w.begin += passed * w.period; changed || !w.used {
		w.begin = mono
	}
	w.since, w.used = now, true
	w.period = c.layOut(wanting, p, now)
}

// wanting returns the jobs with work for the card, and whether this list has changed.
func (c *card) wanting(now time.Time) (wanting []*job, changed bool) {
	for _, j := range c.list {
		j.did += j.used.ns
		wants := j.Busy > 0 && j.Cores > 0 && (j.Wants || overlaps(j))
		if changed = changed || wants != j.wants; wants {
			wanting = append(wanting, j)
		} else {
			j.paused = now
		}
		j.wants = wants
	}
	return wanting, changed
}

// settle compares what the jobs had with their shares. Idle time of the card counts for the jobs
// with unused windows.
func (c *card) settle(span float64, passed uint64) {
	idle, gaps, cores, period := span, 0.0, 0.0, float64(c.windows.period)
	gap := func(j *job) float64 { return max(0, j.length/period*span-j.did) }
	for _, j := range c.list {
		if j.takes {
			idle, gaps, cores = idle-j.did, gaps+gap(j), cores+float64(j.Cores)
		}
	}
	lost := min(max(0, idle), gaps)
	for _, j := range c.list {
		if j.takes {
			had, part := j.did+lost*gap(j)/max(1, gaps), float64(j.Cores)/cores
			j.due = max(-debtMax, min(max(part*period, float64(j.Kernel)), j.due+part*(span-idle+lost)-had))
			j.given += passed
		}
		j.did = 0
	}
}

// layOut sets the windows, one after the other, and returns the period. If kernels are long, a
// window holds whole kernels.
func (c *card) layOut(wanting []*job, p Params, now time.Time) int64 {
	cores := uint32(0)
	for _, j := range wanting {
		cores += j.Cores
	}
	period, begin := 1000*float64(windowPeriodOf(wanting, cores, bursty(wanting, now), p)), 0.0
	for _, j := range c.list {
		kernel := float64(j.Kernel)
		if j.takes, j.length = j.wants && len(wanting) > 1, 0; !j.takes {
			continue
		}
		length := float64(j.Cores)/float64(cores)*period + repaid*j.due
		if kernel > float64(longKernel) {
			length = math.Round(length/kernel) * kernel
		}
		if j.window.begin = begin; length < shortestWindow {
			continue
		}
		if j.length = length; kernel > float64(longKernel) { // begins late, so the end is late
			begin += kernel / lateKernels
		}
		begin += length
	}
	if begin == 0 {
		return int64(period)
	}
	return int64(begin)
}

// bursty reports whether a job has pauses, or the priorities differ: the period is short then.
func bursty(wanting []*job, now time.Time) bool {
	return slices.ContainsFunc(wanting, func(j *job) bool {
		return now.Sub(j.paused) < burstyFor || rank(j.Priority) != rank(wanting[0].Priority)
	})
}

// windowPeriodOf is in microseconds. Each hand-over costs the card about a quarter of a millisecond,
// so jobs that always have work get the longest period. If one has pauses, the period is no longer
// than the kernels, the hand-overs and the configuration need.
func windowPeriodOf(wanting []*job, cores uint32, bursty bool, p Params) uint32 {
	most := uint64(longest(p))
	needed, long := uint64(0), most
	for _, c := range wanting {
		kernel := uint64(c.Kernel) / 1000
		needed = max(needed, max(minWindow, kernelsPerWindow*kernel)*uint64(cores)/uint64(c.Cores))
		long = max(long, longKernelsPerWindow*kernel*uint64(cores)/uint64(c.Cores))
	}
	if long > most || !bursty {
		return uint32(min(long, longestExclusive))
	}
	return uint32(min(most, max(needed, minWindowPeriod, 2*minWindow*uint64(len(wanting)))))
}

// overlaps reports whether a job needs a window although it wants nothing now: a limited job with
// long kernels. Its kernels would overlap another job's window for long, and the budget would be
// charged for all of that time.
func overlaps(j *job) bool {
	return j.limited && j.limit < 100 && time.Duration(j.Kernel) > longKernel
}

// windowOf is the schedule of a job. If it wants nothing, it finds the card open and may begin at once.
func (c *card) windowOf(j *job) libvgpu.Schedule {
	s := libvgpu.Schedule{Gate: libvgpu.GateWindow, Cores: j.Cores, BusyProcs: j.Busy, WeightPPM: 1e6}
	cores := j.Cores
	for _, other := range c.list {
		if other != j && other.wants {
			s.Others++
			cores += other.Cores
		}
	}
	s.Window = libvgpu.Window{PeriodUS: 1, LengthUS: 1, QueueUS: max(leastQueue, exclusiveQueue/max(1, j.Busy))}
	if w := c.windows; j.takes {
		period, begin, length := w.period, w.begin+int64(j.window.begin), j.length
		if length == 0 {
			begin, period, length = begin+closedPeriods/2*period, closedPeriods*period, minWindow*1000
		}
		s.Window.PeriodUS, s.Window.LengthUS, s.Window.BeginNS = uint32(period/1000), uint32(length/1000), uint64(begin)
	}
	// Windows divide the whole card: if a job may not have its whole window, the budget enforces its limit.
	if limit, shut := j.budget(s.Others, cores, false); shut {
		s.Gate |= libvgpu.GateBudget
		s.Cores = limit
	}
	return s
}
