// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// crowd is the rule for cards with several jobs at the same time (engine concurrent,
// docs/adr/0013). Time on the card does not measure a job's use there. The measure is the job's
// work: the cost of its launches on a card without other jobs. All jobs run freely, with one
// exception. The budget limits a job ahead of its share while another job, without a limit, has
// less than its entitlement.
type crowd struct {
	jobs   map[Key]*party
	lacked time.Time // when a job last lacked something
	quiet  quiet
}

// party is one job among them.
type party struct {
	// Work, time for which it was on its way, and the time of both; they fade.
	work, elapsed, time float64
	// longer is how much longer work is on its way than it costs, where nobody else is on the card.
	longer float64
	limit  float64   // part of the card at which it is held, so that others have theirs; 0: it is not
	held   time.Time // when launches last waited for its budget
	// When it is to be without company again, and how long after that once more.
	next  time.Time
	pause time.Duration
	// Of its processes one after the other is. asked counts them, and left says how many are to
	// come before the pause.
	asked, left int
}

// quiet is a moment in which a process of a job is alone on the card, so that it learns what its
// launches cost. First all are held and end what they have begun: of what was launched before, it does
// not see how long that took without company.
type quiet struct {
	job     Key    // zero: there is none
	process uint64 // the owner of its slot; 0: the job has one only
	alone   bool
	until   time.Time // of the part that has begun
	work    float64   // in the part in which it is alone
	elapsed float64
	lease   uint64 // of the gates of those that are held
}

const (
	// besideMemory is how long what a job had counts.
	besideMemory = 500 * time.Millisecond
	// lacksFrom is the part of what it is entitled to below which a job lacks some of it, and
	// keptBeside is the part that it is entitled to of what it would have alone.
	lacksFrom  = 0.985
	keptBeside = 0.85
	// lateHost is how much longer work is on its way than it costs, without company, from which a job
	// leaves the card at times although it always has work on its way: between kernels it waits for
	// its host.
	lateHost = 1.5
	// growth is how fast the limit of a job grows while nobody lacks anything, in parts of it for
	// each second; after some seconds faster, and where company makes nobody's work longer by roomy,
	// as fast as roomyGrowth.
	growth      = 0.05
	roomy       = 1.03
	roomyGrowth = 2.0
	// knownBeside is for how long a job must have been looked at for what it had to count.
	knownBeside = 150 * time.Millisecond
	// heldBeside is for how long a job whose launches waited for its budget counts as held.
	heldBeside = 500 * time.Millisecond
	// atLimit is the part of its limit from which a job counts as at it; below overLimit the limit is of
	// no use.
	atLimit   = 0.93
	overLimit = 0.9
	// A job is without company for quietFor, soon after it has some for the first time, then after
	// firstPause, then after pausesGrow times as long, and so on up to lastPause. Meanwhile gresd
	// looks each quietTick.
	quietFor   = 40 * time.Millisecond
	quietSoon  = 200 * time.Millisecond
	quietTick  = 5 * time.Millisecond
	firstPause = 2 * time.Second
	pausesGrow = 4
	lastPause  = 32 * time.Second
	// mostAsked processes of a job are, one after the other, before a pause; then the next ones.
	mostAsked = 8
	// quietKernels are so many of its launches that it lasts at least; longestQuiet bounds that, and
	// the time in which all work must end that is on its way.
	quietKernels = 2.5
	longestQuiet = 500 * time.Millisecond
	mostLonger   = 10.0
)

// sideBySide divides a card on which work runs side by side. mono is the time by the clock of grants.
func (c *card) sideBySide(now time.Time, mono uint64) {
	var claims []Claim
	var used []usage
	for _, j := range c.list {
		claims, used = append(claims, j.Claim), append(used, j.used)
	}
	plan := map[Key]libvgpu.Schedule{}
	c.crowd.look(claims, used, now, mono, plan)
	for _, j := range c.list {
		j.schedule = plan[j.Key]
	}
}

func (c *crowd) look(claims []Claim, used []usage, now time.Time, mono uint64, plan map[Key]libvgpu.Schedule) {
	if c.lacked.IsZero() {
		c.lacked = now
	}
	jobs, busy := map[Key]*party{}, uint32(0)
	for i, claim := range claims {
		m := c.jobs[claim.Key]
		if m == nil {
			m = &party{longer: 1, pause: firstPause}
		}
		jobs[claim.Key] = m
		if claim.Busy > 0 {
			busy++
		}
		if c.quiet.job != (Key{}) {
			continue
		}
		if m.follow(used[i]); used[i].held {
			m.held = now
		}
	}
	c.jobs = jobs
	if busy > 1 {
		c.keepQuiet(claims, used, now, mono)
		c.steer(claims, used, now)
	} else {
		c.quiet = quiet{}
		for _, m := range jobs {
			m.limit, m.next = 0, time.Time{}
		}
	}
	for _, claim := range claims {
		others := busy
		if claim.Busy > 0 {
			others--
		}
		plan[claim.Key] = c.schedule(claim, others)
	}
}

// follow adds what a job had in a look.
func (m *party) follow(u usage) {
	if u.span <= 0 {
		return
	}
	fade := math.Exp(-float64(u.span) / float64(besideMemory))
	m.work = m.work*fade + u.ns
	m.time = m.time*fade + float64(u.span)
	// What is measured of work is told when that has ended, so of several looks at once.
	m.elapsed = min(m.elapsed*fade+u.elapsed, m.time)
}

// part is the part of the card's work that it had lately.
func (m *party) part() float64 {
	if m.time == 0 {
		return 0
	}
	return m.work / m.time
}

// alone is what it would have had without company: less time would have passed while its work was
// on its way.
func (m *party) alone() float64 {
	if m.time == 0 {
		return 0
	}
	waited := max(0, m.elapsed-m.work*m.longer) / m.time
	return m.part() / max(0.05, 1-waited)
}

// isHeld says that its budget held the job lately: of what it wants is not known how much it is.
// Launches wait at that gate for work that is on its way, too; so it must have had about its limit.
func (m *party) isHeld(claim Claim, now time.Time) bool {
	most := math.Inf(1)
	if limit, limited := limitOf(claim); limited {
		most = float64(limit) / 100
	}
	if m.limit > 0 {
		most = min(most, m.limit)
	}
	return now.Sub(m.held) <= heldBeside && m.part() >= atLimit*most
}

// steer decides who is held, and at how much.
func (c *crowd) steer(claims []Claim, used []usage, now time.Time) {
	if c.quiet.job != (Key{}) {
		return
	}
	entitled, lacks, room := c.entitled(claims, now), false, true
	for i, claim := range claims {
		m := c.jobs[claim.Key]
		if claim.Busy == 0 || m.isHeld(claim, now) || m.time < float64(knownBeside) {
			continue
		}
		lacks = lacks || m.part() < lacksFrom*entitled[i]
		room = room && m.elapsed < roomy*m.longer*m.work
	}
	if lacks {
		c.lacked = now
	}
	for i, claim := range claims {
		m, share := c.jobs[claim.Key], float64(claim.Cores)/100
		switch {
		case claim.Busy == 0 || claim.Mode == libvgpu.ModeOff || m.part() < overLimit*m.limit:
			m.limit = 0
		case lacks && (m.limit > 0 || m.part() > entitled[i]):
			if m.limit == 0 && m.part() <= share { // it has no more than is its own
				continue
			}
			m.limit = max(share, entitled[i])
		case m.limit > 0:
			grows := growth * (1 + now.Sub(c.lacked).Seconds())
			if room {
				grows = roomyGrowth
			}
			m.limit *= math.Exp(grows * used[i].span.Seconds())
			if m.limit > 1 && !m.isHeld(claim, now) {
				m.limit = 0
			}
		}
	}
}

// entitled divides what all had by the shares. Nobody is entitled to more than its limit, nor to
// more than it would have alone; what one does not take is the others'.
func (c *crowd) entitled(claims []Claim, now time.Time) []float64 {
	most, weights, all := make([]float64, len(claims)), make([]float64, len(claims)), 0.0
	for i, claim := range claims {
		m := c.jobs[claim.Key]
		if claim.Busy == 0 {
			continue
		}
		all += m.part()
		weights[i], most[i] = float64(claim.Cores), math.Inf(1)
		if !m.isHeld(claim, now) {
			// Who leaves the card at times has no more with its share alone, whatever others have.
			most[i] = min(keptBeside*m.alone(), float64(claim.Cores)/100)
			if m.alone() > 0 && m.elapsed > 0.9*m.time && m.longer < lateHost { // it wants all
				most[i] = m.alone()
			}
		}
		if limit, limited := limitOf(claim); limited {
			most[i] = min(most[i], float64(limit)/100)
		}
	}
	return fill(all, weights, most)
}

// keepQuiet begins, leads and ends moments in which a job is alone.
func (c *crowd) keepQuiet(claims []Claim, used []usage, now time.Time, mono uint64) {
	q, inflight := &c.quiet, false
	for _, u := range used {
		inflight = inflight || u.inflight
	}
	for i, claim := range claims {
		m := c.jobs[claim.Key]
		if claim.Busy == 0 {
			continue
		}
		if m.next.IsZero() {
			m.next = now.Add(quietSoon)
		}
		if q.job == (Key{}) && !now.Before(m.next) && mayBeQuiet(claims, i) {
			*q = quiet{job: claim.Key, until: now.Add(longestQuiet), lease: mono + uint64(3*longestQuiet)}
			q.process = m.process(used[i].procs)
			return
		}
		if q.job != claim.Key {
			continue
		}
		if q.alone {
			q.work, q.elapsed = q.work+used[i].ns, q.elapsed+used[i].elapsed
		}
		over := !now.Before(q.until)
		if !q.alone && !inflight {
			kernels := time.Duration(quietKernels * float64(claim.Kernel))
			q.alone, q.until = true, now.Add(min(longestQuiet, max(quietFor, kernels)))
			return
		}
		if !over {
			return
		}
		if m.pause == firstPause { // what it had is not what was counted up to now
			m.work, m.elapsed, m.time = 0, 0, 0
		}
		if q.work > 0 {
			m.longer = max(1, min(mostLonger, q.elapsed/q.work))
		}
		if m.left > 0 {
			m.next = now.Add(quietSoon)
		} else {
			m.next, m.pause = now.Add(m.pause), min(pausesGrow*m.pause, lastPause)
		}
		*q = quiet{}
		return
	}
	if q.job != (Key{}) && !isBusy(claims, q.job) {
		*q = quiet{}
	}
}

// process is the next one that is to be alone.
func (m *party) process(owners []uint64) uint64 {
	if len(owners) < 2 {
		m.left = 0
		return 0
	}
	if m.left == 0 {
		m.left = min(len(owners), mostAsked)
	}
	m.left--
	m.asked++
	return owners[m.asked%len(owners)]
}

// mayBeQuiet says whether all others can be held.
func mayBeQuiet(claims []Claim, i int) bool {
	return !slices.ContainsFunc(claims, func(other Claim) bool {
		return other.Key != claims[i].Key && other.Busy > 0 && other.Mode == libvgpu.ModeOff
	})
}

func isBusy(claims []Claim, key Key) bool {
	return slices.ContainsFunc(claims, func(c Claim) bool { return c.Key == key && c.Busy > 0 })
}

// schedule is what a job is told.
func (c *crowd) schedule(claim Claim, others uint32) libvgpu.Schedule {
	s := libvgpu.Schedule{Cores: claim.Cores, BusyProcs: claim.Busy, Others: others, WeightPPM: 1e6, LeastPPM: 1e6}
	most, m := math.Inf(1), c.jobs[claim.Key]
	if limit, limited := limitOf(claim); limited {
		most = float64(limit)
	}
	switch q := c.quiet; {
	case q.job == claim.Key && q.alone:
		s.Others = 0
		if q.process != 0 {
			s.Solo, s.LeaseNS, s.Gate = q.process, q.lease, libvgpu.GateShut
		}
	case q.job == (Key{}) && m.limit > 0:
		most = min(most, max(1, math.Round(100*m.limit)))
	case q.job != (Key{}) && claim.Mode != libvgpu.ModeOff:
		s.Gate, s.LeaseNS = libvgpu.GateShut, q.lease
		return s
	}
	switch {
	case !math.IsInf(most, 1):
		s.Gate, s.Cores = s.Gate|libvgpu.GateBudget, uint32(most)
	case others > 0:
		s.Gate |= libvgpu.GateMeasure
	}
	return s
}
