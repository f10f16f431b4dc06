// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
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
	// of its neighbours, beyond what underPart leaves out.
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

// gates remembers what gate every job has, and shuts those that should not be open.
//
// A gate opens where busy neighbours leave a job no more than its share. Busy is who
// launches; one that launches little leaves most of its share, and a hard job must not
// have that. So where a gate is open, what the job has is watched.
type gates struct {
	jobs map[Key]*gateState
}

type gateState struct {
	gate  uint32
	since time.Time // the gate holds back, or does not; measures, or does not
	over  float64   // nanoseconds beyond the limit, while the gate was open
	under float64   // nanoseconds that it lacked of it, while the gate was shut
	shut  bool      // its neighbours leave it too much
	// byLoads says that it was last opened because of its neighbours' loads. Work that is on its way may
	// not be on the card: a job that had too much all the same is held until it lacks some.
	byLoads bool
	part    float64   // of the card that it had when it was open
	opened  time.Time // for the first time
	// Work on its way, and time, that both fade.
	elapsed, time float64
}

// open says that the budget does not hold a job.
func (g *gates) open(k Key) bool {
	s := g.jobs[k]
	return s != nil && s.gate&libvgpu.GateBudget == 0
}

// measures says that a job's own account is known.
func (s *gateState) measures(now time.Time) bool {
	return s.gate != 0 && now.Sub(s.since) >= knownFor
}

// update sets what is known of each claim's use, and which must be held. used is what
// each had since the last look. A gate that was shut opens again when the neighbours,
// which are measured meanwhile, are on the card enough to hold the job.
func (g *gates) update(claims []Claim, used []usage, now time.Time) {
	cards := map[gpu.UUID][]int{}
	for i, c := range claims {
		cards[c.Card] = append(cards[c.Card], i)
	}
	for _, jobs := range cards {
		list := make([]Claim, len(jobs))
		for n, i := range jobs {
			if s := g.jobs[claims[i].Key]; s != nil {
				claims[i].Load = s.load(used[i], now)
			}
			list[n] = claims[i]
		}
		for n, i := range jobs {
			if s := g.jobs[claims[i].Key]; s != nil {
				s.watch(list, n, used[i], now)
				claims[i].Capped, claims[i].OpenPart = s.shut, s.part
			}
		}
	}
}

// watch looks at what the i-th job of a card had of it.
func (s *gateState) watch(claims []Claim, i int, used usage, now time.Time) {
	limit, limited := limitOf(claims[i])
	switch {
	case !limited:
		s.over, s.shut = 0, false
	case claims[i].Busy == 0 || !busyOthers(claims, i):
		// A neighbour that comes for a moment again and again is still the same.
	case s.shut:
		s.over = 0
		// Whom neighbours leave too much has all of its limit. Less says that they do not,
		// or that the job does not want more: no gate is needed.
		if used.exact {
			s.under = max(0, s.under+underPart*float64(limit)/100*float64(used.span)-used.ns)
		}
		lacks := s.under >= float64(mostUnder)
		s.shut = !lacks && (s.byLoads && used.exact || leavesTooMuch(claims, i, limit))
		if !s.shut {
			s.byLoads = !lacks
		}
	case s.gate&libvgpu.GateBudget != 0 || !used.exact && !s.measures(now):
		// Not open, or not known.
	case s.opened.IsZero():
		s.opened = now
	case now.Sub(s.opened) < beginFor:
	case used.span > 0:
		s.part += (min(1, used.ns/float64(used.span)) - s.part) / 3 // some looks
		allowed := (overPart*float64(limit)/100 + overPoints) * float64(used.span)
		s.over = max(-float64(limit)/100*float64(mostMadeGood), s.over+used.ns-allowed)
		s.shut, s.under = s.over > s.mostOver(claims[i]), 0
	}
}

// mostOver is how much a job may have beyond its limit: in turns, which kernels overrun,
// some of these.
func (s *gateState) mostOver(c Claim) float64 {
	if s.gate&libvgpu.GateWindow == 0 {
		return float64(mostOver)
	}
	return max(turnsOver*float64(mostOver), kernelsOver*float64(c.Kernel))
}

// heldPart is by how much neighbours may leave a job more than its limit: shares need not
// add up exactly, and loads are measured to a few points.
const heldPart = 1.1

// leavesTooMuch says that a job's neighbours are not on the card enough to hold it, or
// that this is not known.
func leavesTooMuch(claims []Claim, i int, limit uint32) bool {
	var list []rival
	for k, c := range claims {
		if k == i || c.Busy == 0 {
			continue
		}
		if c.Load == 0 {
			return true
		}
		list = append(list, rival{slice: float64(c.Cores), load: c.Load})
	}
	return ownPart(float64(claims[i].Cores), list) > heldPart*float64(limit)/100
}

// load is the part of the time in which a job's work was on the card lately; of several
// processes, at most all of it. 0: not known.
func (s *gateState) load(used usage, now time.Time) float64 {
	if s.gate == 0 { // nobody counts
		s.elapsed, s.time = 0, 0
		return 0
	}
	fade := math.Exp(-float64(used.look) / float64(loadMemory))
	s.elapsed = s.elapsed*fade + used.elapsed
	s.time = s.time*fade + float64(used.look)
	if s.time == 0 || !s.measures(now) {
		return 0
	}
	return max(leastLoad, min(1, s.elapsed/s.time))
}

// note remembers the gates of a plan, and forgets jobs that are not in it.
func (g *gates) note(plan map[Key]libvgpu.Schedule, now time.Time) {
	jobs := make(map[Key]*gateState, len(plan))
	for key, schedule := range plan {
		s := g.jobs[key]
		if s == nil {
			s = &gateState{}
		}
		if (s.gate == 0) != (schedule.Gate == 0) || s.since.IsZero() {
			s.since = now
		}
		s.gate = schedule.Gate
		jobs[key] = s
	}
	g.jobs = jobs
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
