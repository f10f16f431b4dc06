// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Times of a dealer, in nanoseconds.
const (
	lead    = int64(400 * time.Microsecond) // a turn is fixed this long before it begins
	looksIn = int64(3 * time.Millisecond)   // between two looks while somebody is idle
	looksAt = int64(12 * time.Millisecond)  // while nobody is
	// idleAfter without a sign the one whose turn it is has nothing to do;
	// awayAfter nobody waits for a turn any more (a wait gives a sign each
	// millisecond).
	idleAfter = int64(1500 * time.Microsecond)
	awayAfter = int64(4 * time.Millisecond)
	// drainMax is how long the others wait for work that runs over its turn. A
	// claim is not more than that: its process may have been killed.
	drainMax     = int64(60 * time.Millisecond)
	endlessAfter = int64(500 * time.Millisecond)
	// shortest turn that is worth a hand-over.
	shortest   = int64(500 * time.Microsecond)
	lateMax    = int64(10 * time.Millisecond)
	pauseAfter = int64(10 * time.Millisecond)
	// burstyFor a job counts as one with pauses after it had one.
	burstyFor = int64(time.Second)
	// shortQueue is the work in flight of a turn that may be cut. Else it is as
	// much as the library can measure (16 batches of half a millisecond, some of
	// them not full), so that a late host does not leave the card idle.
	shortQueue = int64(2 * time.Millisecond)
	longQueue  = int64(4 * time.Millisecond)
	// sharedQueue is for turns in which the card is shared all the same: who runs
	// dry loses the rest of its slice.
	sharedQueue = int64(8 * time.Millisecond)
	// recordsLate is how old what the card's records tell may be.
	recordsLate = int64(200 * time.Millisecond)
	// correctOver looks a difference to the records is made good: a look's own difference
	// is mostly that records and turns are not of the same moment.
	correctOver = 8
	// longKernel is one that is a good part of a turn.
	longKernel = int64(4 * time.Millisecond)
	// still is by how much a turn may move without being told.
	still = 20 * time.Microsecond
)

// leastQueueUS is what a process needs in flight to have no gaps, in microseconds.
const leastQueueUS = 500

// member is a job that takes turns on a card.
type member struct {
	Claim
	plan    libvgpu.Schedule // as the plan has it
	quantum int64            // its part of a period
	// due is time that it may have, below 0 what it has had too much: what runs
	// over the end of a turn is taken from the next, and what a job could not
	// use because the card was not free is not.
	due     int64
	state   libvgpu.TurnState
	wants   bool
	early   bool   // its last turn was ended before its end
	passed  bool   // its turn was given to another: it had nothing to do
	rested  int64  // when it last had nothing on the card
	over    int64  // time since then in which its work ran outside its turns
	endless bool   // that is more than drainMax, and its work has run for endlessAfter
	turns   uint64 // given, and not yet counted elsewhere
	paused  int64  // when it last had nothing to do for longer than a late host explains
	charged int64  // since the last correction
	lacks   int64  // what it had less than it was charged, not yet made good
}

// charge takes time that the member had from what is due to it.
func (m *member) charge(time int64) {
	m.due = max(-debtMax, m.due-time)
	m.charged += time
}

// nextDue is what a member is due when it is next in the round: the rest of a
// turn that was ended early, or a quantum more.
func (m *member) nextDue() int64 {
	if m.early && m.due >= shortest {
		return m.due
	}
	return m.due + m.quantum
}

// most is the longest turn: what was left of the last is added, but the others do
// not wait much longer for it.
func (m *member) most() int64 { return m.quantum + m.quantum/4 }

// debtMax bounds what a job owes: it must come to the card again.
const debtMax = int64(time.Second)

// runs says whether work of the member was on the card at a moment. Work that
// takes longer than was estimated still runs, but its claim grows old: its
// process may have been killed.
func (m *member) runs(at int64) bool {
	late := at - int64(m.state.UntilNS)
	return late < 0 || m.state.InflightNS > 0 && late < lateMax
}

// watch notes whether work is without an end, such as a persistent kernel. What the
// library takes it for does not tell: nothing of its kind was ever measured.
func (m *member) watch(now, since int64, itsTurn bool) {
	switch {
	case !m.runs(now):
		m.rested, m.over, m.endless = now, 0, false
	case !itsTurn:
		m.over += min(since, looksAt)
		m.endless = m.endless || m.over > drainMax && now-m.rested > endlessAfter
	}
}

// dealer deals the time of one card to its members, turn by turn, by deficit
// round robin. It has no clock and reads nothing: step is told both. The hand-over
// is checked in tests/model/turns.pml.
type dealer struct {
	members []*member
	period  int64
	cur     *member // whose turn it is; nil: nobody wants one
	begin   int64   // of its turn
	end     int64   // when it must have launched its last
	counted int64   // up to here the time was counted
	looked  int64   // when it last looked at the jobs
	alone   int64   // when fewer than two last wanted the card
}

// update takes over what the plan says of the jobs of the card. Who stays keeps
// what is due to it.
func (d *dealer) update(claims []Claim, plan map[Key]libvgpu.Schedule, now int64) {
	old := d.members
	d.members = make([]*member, 0, len(claims))
	for _, c := range claims {
		s := plan[c.Key]
		m := &member{paused: now - burstyFor - 1, rested: now}
		if i := slices.IndexFunc(old, func(m *member) bool { return m.Key == c.Key }); i >= 0 {
			m = old[i]
		}
		m.Claim, m.plan = c, s
		m.quantum = int64(s.Turn.LengthUS) * 1000
		d.period = int64(s.Turn.PeriodUS) * 1000
		d.members = append(d.members, m)
	}
	if !slices.Contains(d.members, d.cur) {
		d.cur = nil // it has gone
	}
}

// step looks at the jobs, moves the turns, and returns when it wants to be
// called again. now is CLOCK_MONOTONIC.
func (d *dealer) step(now int64, look func(Key) libvgpu.TurnState) (next int64) {
	for _, m := range d.members {
		m.state = look(m.Key)
		m.watch(now, now-d.looked, m == d.cur)
		m.wants = m.runs(now) || now-int64(m.state.WantedNS) < awayAfter
		if now-int64(max(m.state.UntilNS, m.state.WantedNS)) > pauseAfter {
			m.paused = now
		}
	}
	d.looked = now
	d.count(now)
	if d.cur != nil && now >= d.begin && d.mustCut() {
		d.end, d.cur.early = min(d.end, now), true
	}
	switch {
	case d.cur == nil:
		d.deal(now)
	case now < d.begin: // fixed, not begun
	case !d.cur.runs(now) && now-int64(d.cur.state.WantedNS) > idleAfter && now-d.begin > idleAfter:
		d.cur.early = true
		d.deal(now)
	case now >= d.end-lead:
		if free := d.free(now); free-now <= lead || d.wanting() < 2 && now >= d.end {
			d.deal(max(min(free, now+lead), now))
		} else {
			return d.wake(now, free-lead)
		}
	}
	return d.wake(now, d.end-lead)
}

func (d *dealer) wanting() (n int) {
	for _, m := range d.members {
		if m.wants {
			n++
		}
	}
	return n
}

// free is when the card will be free for the next. Nobody waits for work without an
// end, such as a persistent kernel: the hardware divides the card between it and
// whose turn it is, and it is charged for that. So nobody waits for what runs over a
// turn beside it either: mostly it is the same job's turn again.
func (d *dealer) free(now int64) int64 {
	if d.cur.endless || d.beside(d.cur) {
		return d.end
	}
	until := int64(d.cur.state.UntilNS)
	if d.cur.state.InflightNS > 0 && until <= now && d.cur.runs(now) {
		until = now + 2*lead // it is late: look again
	}
	return max(d.end, min(until, d.end+drainMax))
}

func (d *dealer) wake(now, at int64) int64 {
	looks := looksAt
	for _, m := range d.members {
		if !m.wants || now-m.paused < burstyFor {
			looks = looksIn
		}
	}
	if d.cur == nil {
		return now + looksIn
	}
	return max(now+lead/4, min(at, now+looks))
}

// count charges the time since the last look to those whose work was on the
// card: the one whose turn it was, and those who ran over theirs.
func (d *dealer) count(now int64) {
	from := max(d.counted, now-int64(time.Second)) // the first look, or gresd was stopped
	if from >= now {
		return
	}
	var on []*member
	var running uint64 // processes: where the hardware divides, it is among them
	for _, m := range d.members {
		if m == d.cur && now > d.begin || m.runs(from) && m.runs(now) {
			on = append(on, m)
			running += procs(m.Claim)
		}
	}
	alone := d.wanting() < 2
	if alone {
		d.alone = now
	}
	for _, m := range on {
		if alone {
			continue // what nobody else wants costs nothing
		}
		m.charge((now - from) * int64(procs(m.Claim)) / int64(running))
	}
	for _, m := range d.members {
		// Who waits is paid by the round; who has nothing to do, by the clock, but
		// saves up no more than one turn.
		if !m.wants && m.due < m.quantum {
			m.due = min(m.quantum, m.due+(now-from)*m.quantum/d.period)
		}
	}
	d.counted = now
}

// mustCut says whether somebody who wants the card need not wait for the end of
// this turn: its own turn was lent, or it is above in priority.
func (d *dealer) mustCut() bool {
	for _, m := range d.members {
		if m == d.cur || !m.wants || m.due < shortest {
			continue
		}
		if m.passed || rank(m.Priority) > rank(d.cur.Priority) {
			return true
		}
	}
	return false
}

// deal gives the turn that begins at that time to the next member that wants
// one and is due some time.
func (d *dealer) deal(at int64) {
	// What is fixed ahead is counted ahead.
	if d.cur != nil && at > d.counted && d.wanting() > 1 {
		d.cur.charge(at - max(d.counted, min(d.begin, at)))
		d.counted = at
	}
	start := 0
	if d.cur != nil {
		start = slices.Index(d.members, d.cur) + 1
	}
	d.cur = nil
	for _, m := range d.members {
		m.passed = !m.wants
	}
	next := d.urgent()
	if next == nil {
		next = d.inTurn(start)
	}
	if next == nil {
		return
	}
	next.due = min(next.due, next.most())
	d.cur, d.begin, d.end = next, at, at+next.due*d.slower(next)
	next.early = false
	next.turns++
}

// inTurn is the next member that wants the card and is due some time.
func (d *dealer) inTurn(start int) *member {
	if !slices.ContainsFunc(d.members, func(m *member) bool { return m.wants }) {
		return nil
	}
	for i := start; ; i++ {
		m := d.members[i%len(d.members)]
		if !m.wants {
			continue
		}
		if m.due = m.nextDue(); m.due >= shortest {
			return m
		}
	}
}

// urgent is who goes first because of its priority: it wants the card, is due
// time already, and is above all others that want it.
func (d *dealer) urgent() *member {
	var best *member
	for _, m := range d.members {
		if m.wants && (best == nil || rank(m.Priority) > rank(best.Priority)) {
			best = m
		}
	}
	for _, m := range d.members {
		if m != best && m.wants && rank(m.Priority) < rank(best.Priority) && best.due >= shortest {
			return best
		}
	}
	return nil
}

// schedules returns what to tell the members. Who wants nothing finds the card
// open: it may begin at once, and its turn is made when that is seen.
func (d *dealer) schedules(now int64) map[Key]libvgpu.Schedule {
	out := make(map[Key]libvgpu.Schedule, len(d.members))
	var cores, wanting uint32 // of those that want the card
	period := int64(0)
	for _, m := range d.members {
		if m.wants || m == d.cur {
			wanting++
			cores += m.Cores
			period += m.quantum
		}
	}
	at, start := int64(0), 0
	if d.cur != nil {
		at, start = d.free(now), slices.Index(d.members, d.cur)
		period = max(period, d.end-d.begin)
	}
	for i := range d.members {
		m := d.members[(start+i)%len(d.members)]
		turn := libvgpu.Turn{PeriodUS: 1, LengthUS: 1} // open
		switch {
		case m == d.cur && wanting == 1: // open
		case m == d.cur:
			length := d.end - d.begin
			if d.beside(m) {
				length += sharedQueue // it does not stop before the end
			}
			turn = window(d.begin, length, max(period, length))
		case d.cur != nil && (m.wants || m.due < shortest || overlaps(m)):
			begin, length := at, min(m.nextDue(), m.most())
			if length < shortest {
				begin, length = begin+max(0, period), m.quantum
			} else if m.wants {
				at += length
			}
			turn = window(begin, length, max(period, length))
		}
		turn.QueueUS = uint32(shortQueue / 1000)
		switch {
		case d.beside(m):
			turn.QueueUS = uint32(sharedQueue / 1000)
		case wanting == uint32(len(d.members)) && d.equals():
			turn.QueueUS = uint32(longQueue / 1000)
		}
		// Each process may have so much in flight: together not more than one would.
		turn.QueueUS = max(leastQueueUS, turn.QueueUS/max(1, m.plan.BusyProcs))
		s := m.plan
		s.Turn = turn
		s.Others, s.Gate, s.Cores = wanting, libvgpu.GateTurn, m.Cores
		busy := cores
		if m.wants || m == d.cur {
			s.Others--
		} else {
			busy += m.Cores
		}
		if limit, shut := gate(m.Claim, s.Others, busy, false); shut {
			s.Gate |= libvgpu.GateBudget
			s.Cores = limit
		}
		out[m.Key] = s
	}
	return out
}

// overlaps says whether a member may not begin at once in another's turn, although it
// wants nothing now: its kernels would run for long beside the other's, and how much of that
// time is its own is not known, so a budget would be charged all. It asks for a limit, not
// whether the budget holds just now: a job whose neighbours hold it waits for its window too.
func overlaps(m *member) bool {
	limit, limited := limitOf(m.Claim)
	return limited && limit < 100 && int64(m.Kernel) > longKernel
}

// slower is how many times longer a member's time takes beside work without an end.
func (d *dealer) slower(m *member) int64 {
	own := procs(m.Claim)
	running := own
	for _, o := range d.members {
		if o != m && o.endless {
			running += procs(o.Claim)
		}
	}
	return int64(running / own)
}

// sharing says whether there is work without an end, beside which nobody can say from
// outside how the hardware divides the card.
func (d *dealer) sharing() bool {
	return slices.ContainsFunc(d.members, func(m *member) bool { return m.endless })
}

// crowded says whether some member has several processes on the card. Each of them has
// work in flight at the end of a turn, so more of it runs over than is seen from outside.
func (d *dealer) crowded() bool {
	return slices.ContainsFunc(d.members, func(m *member) bool { return procs(m.Claim) > 1 })
}

// needsRecords says whether what members had is only known by the card's records: where
// they share the card in their turns, or run over them unseen.
func (d *dealer) needsRecords() bool { return d.sharing() || d.crowded() }

// correct divides what was charged since the last call as the members had the card, by
// its records. Switches and pauses are nobody's: they stay with all.
func (d *dealer) correct(had map[Key]float64, now int64) {
	var charged int64
	var sum float64
	known := true
	for _, m := range d.members {
		ns, ok := had[m.Key]
		known = known && ok
		charged += m.charged
		sum += ns
	}
	// Records are some looks late: what was had alone is not to be paid for.
	for _, m := range d.members {
		if known && sum > 0 && d.needsRecords() && now-d.alone > recordsLate {
			m.lacks = max(-debtMax, min(debtMax, m.lacks+m.charged-int64(had[m.Key]*float64(charged)/sum)))
			part := m.lacks / correctOver
			m.lacks -= part
			m.due = max(-debtMax, min(debtMax, m.due+part))
		}
		m.charged = 0
	}
}

// beside says whether a member has its turns beside work without an end.
func (d *dealer) beside(m *member) bool {
	return slices.ContainsFunc(d.members, func(o *member) bool { return o != m && o.endless })
}

// equals says whether no member is above another in priority.
func (d *dealer) equals() bool {
	return !slices.ContainsFunc(d.members, func(m *member) bool {
		return rank(m.Priority) != rank(d.members[0].Priority)
	})
}

func window(begin, length, period int64) libvgpu.Turn {
	us := max(1, length/1000)
	return libvgpu.Turn{
		BeginNS: uint64(begin), LengthUS: uint32(us), PeriodUS: uint32(max(us+1, period/1000)), // a period would be without an end
	}
}

// bursty says whether a member had nothing to do lately.
func (d *dealer) bursty(key Key, now int64) bool {
	for _, m := range d.members {
		if m.Key == key {
			return now-m.paused < burstyFor
		}
	}
	return false
}

// same says whether two schedules differ by less than what is worth telling.
func same(a, b libvgpu.Schedule) bool {
	moved := time.Duration(int64(a.Turn.BeginNS) - int64(b.Turn.BeginNS)).Abs()
	longer := time.Duration(int64(a.Turn.LengthUS)-int64(b.Turn.LengthUS)).Abs() * time.Microsecond
	if moved > still || longer > still {
		return false
	}
	a.Turn.BeginNS, a.Turn.LengthUS = b.Turn.BeginNS, b.Turn.LengthUS
	return a == b
}
