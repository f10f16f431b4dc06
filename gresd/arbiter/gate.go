// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	// mostOver is the time of a card that a job may have beyond its limit before its
	// gate is shut: 0.3 s, at 20 points too much.
	mostOver    = 60 * time.Millisecond
	turnsOver   = 8
	kernelsOver = 10
	// overPart and overPoints are tolerances above the limit: shares need not add up exactly, and
	// switches cost time. A job may also make up for unused time, up to mostMadeGood.
	overPart   = 1.04
	overPoints = 0.01
	// mostMadeGood limits the unused time that a job may make up for.
	mostMadeGood = 500 * time.Millisecond
	// mostUnder is the time of a card that a job may lack while its gate is shut because
	// of its neighbors, beyond what underPart leaves out.
	mostUnder = 30 * time.Millisecond
	underPart = 0.97
	// loadMemory is how long work counts in a load: some of the longest kernels.
	loadMemory = time.Second
	// After a job's gate opened for the first time, its use does not count for beginFor, because
	// programs do not begin at the same moment.
	beginFor = 150 * time.Millisecond
	// Launches must be measured for knownFor before their time counts.
	knownFor = 500 * time.Millisecond
	// leastLoad is the load of a job without work, because 0 means unknown.
	leastLoad = 0.001
)

// gateState is the gate of a job.
//
// A gate opens if busy neighbors leave a job no more than its share. A job that launches counts as
// busy. If it launches little, it leaves most of its share, and a hard job must not have that. So
// gresd watches the use of jobs with open gates.
type gateState struct {
	bits  uint32    // of the gate, in the last poll
	open  bool      // the budget does not hold the job
	since time.Time // the gate holds back, or does not; measures, or does not
	over  float64   // nanoseconds beyond the limit, while the gate was open
	under float64   // nanoseconds that it lacked of it, while the gate was shut
	shut  bool      // its neighbors leave it too much
	// byLoads: it was last opened because of its neighbors' loads. Their work in flight may not be
	// on the card. If the job then had too much, its gate stays shut until it lacks some.
	byLoads  bool
	openPart float64   // of the card that it had when it was open
	opened   time.Time // for the first time
	// Work on its way, and time, that both fade.
	elapsed, time float64
	// load is the part of the time with its work on the card lately, or waiting there for others'
	// slices. 0: unknown.
	load  float64
	lease uint64 // until when its open gate may count on neighbors
}

// gate decides what delays the launches of each job.
func (c *card) gate(p Params, now time.Time, mono uint64) {
	for _, j := range c.list {
		j.setLoad(j.used, now)
	}
	for _, j := range c.list {
		if !j.since.IsZero() {
			c.watch(j, now)
		}
	}
	if c.windows.used {
		for _, j := range c.list {
			j.schedule = c.windowOf(j)
		}
	} else {
		c.setGates(p)
	}
	for _, j := range c.list {
		j.gang()
		j.remember(now)
		j.counts(mono)
	}
}

// measures reports whether a job's own account is known.
func (s *gateState) measures(now time.Time) bool {
	return s.bits != 0 && now.Sub(s.since) >= knownFor
}

// watch checks a job's use of the card. A gate that was shut opens again when the neighbors,
// which are measured meanwhile, are on the card enough to hold the job.
func (c *card) watch(j *job, now time.Time) {
	s, used, limit := &j.gateState, j.used, j.limit
	switch {
	case !j.limited:
		s.over, s.shut = 0, false
	case j.Busy == 0 || j.others == 0:
		// A neighbor that comes for a moment again and again is still the same.
	case s.shut:
		s.over = 0
		// A job whose neighbors leave too much has all of its limit. If it has less, its gate can
		// open.
		if used.exact {
			s.under = max(0, s.under+underPart*float64(limit)/100*float64(used.span)-used.ns)
		}
		lacks := s.under >= float64(mostUnder)
		s.shut = !lacks && (s.byLoads && used.exact || c.leavesTooMuch(j, limit))
		if !s.shut {
			s.byLoads = !lacks
		}
	case s.bits&libvgpu.GateBudget != 0 || !used.exact && !s.measures(now):
		// Not open, or not known.
	case s.opened.IsZero():
		s.opened = now
	case now.Sub(s.opened) < beginFor:
	case used.span > 0:
		s.openPart += (min(1, used.ns/float64(used.span)) - s.openPart) / 3 // some looks
		allowed := (overPart*float64(limit)/100 + overPoints) * float64(used.span)
		s.over = max(-float64(limit)/100*float64(mostMadeGood), s.over+used.ns-allowed)
		s.shut, s.under = s.over > s.mostOver(j.Claim), 0
	}
}

// mostOver is how much a job may have beyond its limit: in turns, which kernels overrun,
// some of these.
func (s *gateState) mostOver(c Claim) float64 {
	if s.bits&libvgpu.GateWindow == 0 {
		return float64(mostOver)
	}
	return max(turnsOver*float64(mostOver), kernelsOver*float64(c.Kernel))
}

// heldPart is by how much neighbors may leave a job more than its limit: shares need not
// add up exactly, and loads are measured to a few points.
const heldPart = 1.1

// leavesTooMuch reports whether a job's neighbors use the card too little to enforce its share, or
// this is unknown.
func (c *card) leavesTooMuch(j *job, limit uint32) bool {
	var list []rival
	for _, other := range c.list {
		if other == j || other.Busy == 0 {
			continue
		}
		if other.load == 0 {
			return true
		}
		list = append(list, rival{slice: float64(other.Cores), load: other.load})
	}
	return ownPart(float64(j.Cores), list) > heldPart*float64(limit)/100
}

// setLoad adds what a job did since the last poll.
func (s *gateState) setLoad(used usage, now time.Time) {
	if s.load = 0; s.bits == 0 { // nobody counts
		s.elapsed, s.time = 0, 0
		return
	}
	fade := math.Exp(-float64(used.look) / float64(loadMemory))
	s.elapsed = s.elapsed*fade + used.elapsed
	s.time = s.time*fade + float64(used.look)
	if s.time > 0 && s.measures(now) {
		s.load = max(leastLoad, min(1, s.elapsed/s.time))
	}
}

// remember keeps the gate for the next poll.
func (j *job) remember(now time.Time) {
	if (j.bits == 0) != (j.schedule.Gate == 0) || j.since.IsZero() {
		j.since = now
	}
	j.bits, j.open = j.schedule.Gate, j.schedule.Gate&libvgpu.GateBudget == 0
}

// An open gate may count on neighbors for leaseFor. gresd renews the lease with less than
// leaseLeft to go. A restarted gresd is there sooner.
const (
	leaseFor  = uint64(4 * time.Second)
	leaseLeft = uint64(3 * time.Second)
)

// counts limits the time that a gate stays open because of busy neighbors: if this gresd dies,
// nothing sees the end of the neighbors.
func (j *job) counts(now uint64) {
	s := &j.schedule
	if !j.limited || s.Others == 0 || s.Gate&^libvgpu.GateMeasure != 0 {
		j.lease = 0
		return
	}
	s.Cores = j.limit // the budget is refilled at that when the lease has run out
	if j.lease < now+leaseLeft {
		j.lease = now + leaseFor
	}
	s.LeaseNS = j.lease
}

// If busy shares sum to at least full, time slices alone enforce a hard limit: 98 of 100, because
// shares need not add up exactly.
const full = 98

// budget reports whether the budget must enforce a job's limit. others are busy, and have
// busyCores with it.
func (j *job) budget(others, busyCores uint32, noSlices bool) (limit uint32, shut bool) {
	if !j.limited {
		return 0, false
	}
	// Next to busy neighbors the hardware gives cores/busyCores of the card. This is at most
	// limit/full if the neighbors are enough, and use their part.
	held := others > 0 && !noSlices && !j.shut && uint64(j.Cores)*full <= uint64(j.limit)*uint64(busyCores)
	return j.limit, !held
}

// setGates sets the schedules of jobs that slices divide.
func (c *card) setGates(p Params) {
	refused, all := false, true // by the driver, of any busy process, or ignored by the card; budgets hold all that are busy
	for _, j := range c.list {
		refused = refused || j.NoSlices
	}
	limits := make([]uint32, len(c.list))
	us := make([]uint32, len(c.list)) // slices
	for i, j := range c.list {
		limit, shut := j.budget(j.others, j.othersCores+j.Cores, refused)
		j.schedule = libvgpu.Schedule{Cores: j.Cores, BusyProcs: j.Busy, Others: j.others}
		if limits[i], us[i] = limit, uint32(j.slice); shut {
			j.schedule.Gate, j.schedule.Cores = libvgpu.GateBudget, limit // the budget is refilled at Cores
		}
		all = all && (shut || j.Busy == 0)
	}
	if all && c.even() {
		c.holdKernels(us, p)
	}
	for i, j := range c.list {
		c.weigh(i, j, us, refused)
	}
	c.measureRivals(us)
	for i, j := range c.list {
		if j.Unsliced && limits[i] > 0 {
			j.schedule.Gate, j.schedule.Cores = libvgpu.GateBudget, limits[i]
		}
	}
}

// weigh sets a job's slice, and its own part of the time with its work on the card.
func (c *card) weigh(i int, j *job, us []uint32, refused bool) {
	s, sum := &j.schedule, 0.0
	for k, other := range c.list {
		if other.Busy > 0 || k == i {
			sum += float64(us[k]) * other.procs
		}
	}
	if len(c.list) > 1 {
		s.SliceUS = us[i]
	}
	s.WeightPPM = uint32(float64(us[i]) * 1e6 / sum)
	s.LeastPPM = s.WeightPPM
	if s.Gate != 0 {
		part := ownPart(float64(us[i]), c.rivalsOf(i, us))
		if j.shut { // that its neighbors leave so much is known
			part = max(part, j.openPart)
			s.LeastPPM = max(s.LeastPPM, uint32(1e6*j.openPart))
		}
		s.WeightPPM = max(s.LeastPPM, uint32(math.Round(part*weightSteps)*(1e6/weightSteps)))
	} else if !refused && j.limited && j.NoRecords && j.Busy > 0 && s.Others > 0 {
		s.Gate = libvgpu.GateMeasure
	}
}

// even reports whether slices are about in proportion to the shares.
func (c *card) even() bool {
	least, most := math.Inf(1), 0.0
	for i, w := range weightsOf(c.list) {
		if j := c.list[i]; j.Busy > 0 && j.Cores > 0 {
			least, most = min(least, w/float64(j.Cores)), max(most, w/float64(j.Cores))
		}
	}
	return most < 2*least
}

// kernelsInSlice is so many that a kernel which begins in a slice usually ends in it.
const kernelsInSlice = 2.5

// holdKernels lengthens slices if budgets enforce all shares. Kernels then run through, and their
// cost is the time that they took. The longest period is the maximum.
func (c *card) holdKernels(us []uint32, p Params) {
	for i, j := range c.list {
		us[i] = max(us[i], uint32(min(kernelsInSlice*float64(j.Kernel)/1000, float64(longest(p)))))
	}
}

// weightSteps rounds published parts, so that few polls publish a change.
const weightSteps = 100

// rivalsOf returns the busy neighbors of a job. An unknown load counts as 1.
func (c *card) rivalsOf(i int, us []uint32) []rival {
	var list []rival
	for k, j := range c.list {
		if k == i || j.Busy == 0 {
			continue
		}
		r := rival{slice: float64(us[k]) * j.procs, load: 1}
		if j.load > 0 {
			r.load = j.load
		}
		list = append(list, r)
	}
	return list
}

// measureRivals measures the neighbors of a job with a shut gate, because they may begin to use
// their share. It also measures the neighbors of a job with kernels longer than its slices,
// because the cost of such kernels depends on them.
func (c *card) measureRivals(us []uint32) {
	for i, j := range c.list {
		if long := j.Kernel/1000 >= us[i]/2; j.schedule.Gate&libvgpu.GateBudget == 0 || j.Busy == 0 || !long && !j.shut {
			continue
		}
		for k, other := range c.list {
			if k != i && other.Busy > 0 && other.schedule.Gate == 0 {
				other.schedule.Gate = libvgpu.GateMeasure
			}
		}
	}
}

// rival is a job that a job may meet on the card.
type rival struct {
	slice float64 // of its processes together
	load  float64 // part of the time with its work on the card
}

// mostRivals are looked at one by one; of more, those with the longest slices.
const mostRivals = 6

// ownPart is a job's average part of the time with its work on the card: slice ÷ (slice + slices
// of the rivals there). A rival is there for the part load of the time, independently of the job.
func ownPart(slice float64, rivals []rival) float64 {
	slices.SortFunc(rivals, func(a, b rival) int { return int(b.slice - a.slice) })
	sum := slice
	for len(rivals) > mostRivals {
		last := rivals[len(rivals)-1]
		sum += last.slice * last.load
		rivals = rivals[:len(rivals)-1]
	}
	return slice * meanInverse(sum, rivals)
}

func meanInverse(sum float64, rivals []rival) float64 {
	if len(rivals) == 0 {
		return 1 / sum
	}
	r, rest := rivals[0], rivals[1:]
	there := 0.0
	if r.load > 0 {
		there = r.load * meanInverse(sum+r.slice, rest)
	}
	if r.load < 1 {
		there += (1 - r.load) * meanInverse(sum, rest)
	}
	return there
}

const (
	// windowPeriod is the time from one window to the next, in microseconds: short
	// enough for a share over 100 ms, long enough for the work of a training step.
	windowPeriod = 50000
	// longestWindowPeriod bounds it where kernels are long.
	longestWindowPeriod = 400000
	// windowQueue limits the work in flight of a process in a window.
	windowQueue = 2000
)

// gang replaces the budget of a job with several cards by windows, open at the same moments on all
// of them. Its processes wait for each other with a kernel on the card (NCCL). With budgets, each
// process would pay for the others' pauses. At 50 %, a job with budgets did 17 % of its work (two
// H200, all-reduces in a loop).
func (j *job) gang() {
	s := &j.schedule
	if j.Cards < 2 || s.Gate != libvgpu.GateBudget || j.Cores == 0 {
		return
	}
	// The period is the same on all cards of the job: a window holds some of its kernels.
	needed := kernelsPerWindow * uint64(j.Longest) / 1000 * 100 / uint64(max(1, s.Cores))
	period := uint32(min(longestWindowPeriod, max(windowPeriod, needed)))
	// Alone, the job has the card in its window. Next to busy neighbors it has its slices' part,
	// so the window is longer.
	part := uint64(s.Cores)
	if s.Others > 0 {
		part = part * uint64(j.othersCores+j.Cores) / uint64(j.Cores)
	}
	s.Gate = libvgpu.GateWindow
	s.Window = libvgpu.Window{
		PeriodUS: period, LengthUS: uint32(min(uint64(period), part*uint64(period)/100)), QueueUS: windowQueue,
	}
}
