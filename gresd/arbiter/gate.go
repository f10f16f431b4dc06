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
	// overPart and overPoints are what is not counted as beyond it: shares that need
	// not add up exactly, and switches. What it did not take before is not counted
	// either, up to mostMadeGood.
	overPart   = 1.04
	overPoints = 0.01
	// mostMadeGood bounds, as time in which it took nothing, what a job may make good.
	mostMadeGood = 500 * time.Millisecond
	// mostUnder is the time of a card that a job may lack while its gate is shut because
	// of its neighbors, beyond what underPart leaves out.
	mostUnder = 30 * time.Millisecond
	underPart = 0.97
	// loadMemory is how long work counts in a load: some of the longest kernels.
	loadMemory = time.Second
	// beginFor is how long what a job has does not count after its gate opened for the first
	// time: those who start together do not begin together.
	beginFor = 150 * time.Millisecond
	// knownFor is how long launches must be measured for what they say to count.
	knownFor = 500 * time.Millisecond
	// leastLoad is what a job without work has: 0 would say that nothing is known.
	leastLoad = 0.001
)

// gateState is what gate a job has.
//
// A gate opens where busy neighbors leave a job no more than its share. Busy is who
// launches; one that launches little leaves most of its share, and a hard job must not
// have that. So where a gate is open, what the job has is watched.
type gateState struct {
	bits  uint32    // of the gate, in the last poll
	open  bool      // the budget does not hold the job
	since time.Time // the gate holds back, or does not; measures, or does not
	over  float64   // nanoseconds beyond the limit, while the gate was open
	under float64   // nanoseconds that it lacked of it, while the gate was shut
	shut  bool      // its neighbors leave it too much
	// byLoads says that it was last opened because of its neighbors' loads. Work that is on its way may
	// not be on the card: a job that had too much all the same is held until it lacks some.
	byLoads  bool
	openPart float64   // of the card that it had when it was open
	opened   time.Time // for the first time
	// Work on its way, and time, that both fade.
	elapsed, time float64
	// load is the part of the time in which its work was on the card lately, or waited
	// there for others' slices; of several processes, at most all of it. 0: not known.
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

// measures says that a job's own account is known.
func (s *gateState) measures(now time.Time) bool {
	return s.bits != 0 && now.Sub(s.since) >= knownFor
}

// watch looks at what a job had of the card. A gate that was shut opens again when the neighbors,
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
		// Whom neighbors leave too much has all of its limit. Less says that they do not,
		// or that the job does not want more: no gate is needed.
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

// leavesTooMuch says that a job's neighbors are not on the card enough to hold it, or
// that this is not known.
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

// An open gate may count on neighbors for leaseFor; it is told anew with less than
// leaseLeft to go. A gresd that is started again is there sooner.
const (
	leaseFor  = uint64(4 * time.Second)
	leaseLeft = uint64(3 * time.Second)
)

// counts limits the time for which the gate of a job with a limit stays open because busy
// neighbors hold it: should this gresd die, the neighbors may end unseen.
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

// full is the sum of busy shares from which the hardware holds a hard job by
// itself: 98 of 100, because shares need not add up exactly.
const full = 98

// budget says whether the budget must hold a job, and at how much of the card. others are busy, and
// have busyCores with it.
func (j *job) budget(others, busyCores uint32, noSlices bool) (limit uint32, shut bool) {
	if !j.limited {
		return 0, false
	}
	// Beside busy neighbors the hardware gives cores/busyCores of the card.
	// That is at most limit/full when the neighbors are enough, and take their part.
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

// weigh sets a job's slice, and which part of the time for which its work is on the card is its own.
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

// even says that no job goes before another one: their slices are about as their shares are.
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

// holdKernels lengthens slices that budgets make needless, so that kernels run through:
// what they cost is then simply the time that they took. Up to the longest period.
func (c *card) holdKernels(us []uint32, p Params) {
	for i, j := range c.list {
		us[i] = max(us[i], uint32(min(kernelsInSlice*float64(j.Kernel)/1000, float64(longest(p)))))
	}
}

// weightSteps is how finely parts are told, so that not every look has something to tell.
const weightSteps = 100

// rivalsOf are the busy neighbors of a job. What is not known of them is taken for all.
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

// measureRivals measures the neighbors of a job that is held because they leave it too
// much, which may change, and of one whose kernels are longer than its slices: what these
// cost is known only by when its neighbors are on the card.
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
	load  float64 // part of the time in which it is there
}

// mostRivals are looked at one by one; of more, those with the longest slices.
const mostRivals = 6

// ownPart is the part that a job has, on the average, of the time for which its work is
// on the card: slice ÷ (slice + slices of those who are there too). For rivals that are
// always there that is the rule of the card; one that its budget holds, or that has
// little work, is there for its load, whatever the job does.
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
	// windowQueue is what a process may have in flight in a window.
	windowQueue = 2000
)

// gang replaces the budget of a job with several cards by windows, open at
// the same moments on all of them. Its processes wait for each other with a kernel
// on the card (NCCL): budgets that run dry at different moments would make each
// pay for the others' pauses, and one held at 50 % does 17 % of its work
// (measured: two H200, all-reduces in a loop).
func (j *job) gang() {
	s := &j.schedule
	if j.Cards < 2 || s.Gate != libvgpu.GateBudget || j.Cores == 0 {
		return
	}
	// The period is the same on all cards of the job: a window holds some of its kernels.
	needed := kernelsPerWindow * uint64(j.Longest) / 1000 * 100 / uint64(max(1, s.Cores))
	period := uint32(min(longestWindowPeriod, max(windowPeriod, needed)))
	// Alone the job has the card in its window; beside busy neighbors its
	// slices' part of it, and the window is longer for that.
	part := uint64(s.Cores)
	if s.Others > 0 {
		part = part * uint64(j.othersCores+j.Cores) / uint64(j.Cores)
	}
	s.Gate = libvgpu.GateWindow
	s.Window = libvgpu.Window{
		PeriodUS: period, LengthUS: uint32(min(uint64(period), part*uint64(period)/100)), QueueUS: windowQueue,
	}
}
