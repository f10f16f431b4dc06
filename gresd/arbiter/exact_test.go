// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/cardtime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

type fakeTimes struct {
	account cardtime.Account
	known   bool
	asked   []gpu.UUID
}

func (f *fakeTimes) OnCard(card gpu.UUID) (cardtime.Account, bool) {
	f.asked = append(f.asked, card)
	return f.account, f.known
}

func (f *fakeTimes) pass(span time.Duration, parts map[uint32]float64) {
	had := map[uint32]time.Duration{}
	for pid, before := range f.account.Had {
		had[pid] = before
	}
	for pid, part := range parts {
		had[pid] += time.Duration(part * float64(span))
	}
	f.account = cardtime.Account{Had: had, At: f.account.At + span}
}

func notNeeded(gpu.UUID) bool { return false }

func TestACardIsAskedOnlyWhereSomebodyMustWait(t *testing.T) {
	interactiveJob := claim(1, 30, hard, 1)
	interactiveJob.Interactive = true
	for _, c := range []struct {
		name   string
		claims []Claim
		want   bool
	}{
		{"alone", []Claim{interactiveJob}, false},
		{"two busy soft ones", []Claim{claim(1, 30, soft, 1), claim(2, 70, soft, 1)}, false},
		{"two busy hard ones, of which one may leave the other too much", []Claim{claim(1, 30, hard, 1), claim(2, 70, hard, 1)}, true},
		{"an interactive one beside an idle one", []Claim{interactiveJob, claim(2, 70, hard, 0)}, false},
		{"an interactive one beside a busy one", []Claim{interactiveJob, claim(2, 70, hard, 1)}, true},
		{"of different priorities", []Claim{high(claim(1, 30, hard, 1)), claim(2, 70, hard, 1)}, true},
	} {
		times := &fakeTimes{}
		e := exact{times: times}
		e.ask(c.claims, notNeeded)
		e.look()
		if got := slices.Contains(times.asked, "A"); got != c.want {
			t.Errorf("%s: asked %v, want %v", c.name, got, c.want)
		}
		e.ask([]Claim{claim(1, 30, hard, 1)}, notNeeded)
		times.asked = nil
		if e.look(); len(times.asked) != 0 {
			t.Errorf("%s: asked on when all had gone", c.name)
		}
	}
	var none exact // no records on this node
	none.ask([]Claim{interactiveJob, claim(2, 70, hard, 1)}, notNeeded)
	none.look()
}

// A process that the card's account has forgotten begins anew.
func TestWhoWasForgottenHadNothingBefore(t *testing.T) {
	times := &fakeTimes{known: true, account: cardtime.Account{At: time.Hour, Had: map[uint32]time.Duration{90: 5 * time.Second}}}
	s := newSampler()
	s.exact = exact{times: times, cards: map[gpu.UUID]*cardAccount{gpu.UUID(oneCard[0].UUID): {}}}
	s.jobs[jobKey{7, 0}] = jobState{pids: []uint32{90}}
	card := s.exact.cards[gpu.UUID(oneCard[0].UUID)]
	s.exact.look()
	for range 2 { // what is from when the card was last asked does not count
		times.pass(time.Second, map[uint32]float64{90: 0.5})
		s.exact.look()
	}
	if got := card.had[90]; got != 500*time.Millisecond {
		t.Fatalf("had %v, want 500 ms", got)
	}
	times.account.Had = nil
	times.pass(time.Second, map[uint32]float64{90: 0.25})
	if u := s.hadOf(jobKey{7, 0}, card, times.account); u.ns != 0.25e9 {
		t.Errorf("a peek tells %v of 1 s, want 250 ms", time.Duration(u.ns))
	}
	s.exact.look()
	if got := card.had[90]; got != 250*time.Millisecond {
		t.Errorf("a look tells %v of 1 s, want 250 ms", got)
	}
}

// What a job had is what the card says of its processes on the host, whatever they say
// of themselves; of a process that cannot be found there, nothing is known.
func TestWhatTheCardSaysCounts(t *testing.T) {
	const tick = 20 * time.Millisecond
	for _, c := range []struct {
		name   string
		pid    uint32 // on the host
		onHost bool
		known  bool
		want   float64 // part of the time
		exact  bool
	}{
		{"the card says 0.4, the process 0.1", 90, true, true, 0.4, true},
		{"another process has the card", 91, true, true, 0, true},
		{"of another pid namespace, not found", 90, false, true, 0.1, false},
		{"no records", 90, true, false, 0.1, false},
	} {
		times := &fakeTimes{known: c.known, account: cardtime.Account{At: time.Hour}}
		s, now := newSampler(), time.Now()
		s.exact = exact{times: times, cards: map[gpu.UUID]*cardAccount{gpu.UUID(oneCard[0].UUID): {}}}
		var sum, span float64
		for i := range 50 {
			v := slot(1, uint64(i+1), 0)
			v.HostPID, v.OnHost = c.pid, c.onHost
			v.Cards[0].GPUNS = uint64(float64(i) * 0.1 * float64(tick))
			if i%5 != 4 { // the driver is late at times
				times.pass(tick*5/4, map[uint32]float64{90: 0.4, 92: 0.5})
			}
			s.exact.look()
			u := s.look(7, view(v), oneCard, now.Add(time.Duration(i)*tick))[0].used
			if i < 2 {
				continue
			}
			sum, span = sum+u.ns, span+float64(u.span)
			if u.exact != c.exact {
				t.Fatalf("%s: exact %v, want %v", c.name, u.exact, c.exact)
			}
			if c.exact && u.span > 0 && math.Abs(u.all-0.9) > 0.001 {
				t.Errorf("%s: all had %.3f, want 0.9", c.name, u.all)
			}
		}
		if got := sum / span; math.Abs(got-c.want) > 0.01 {
			t.Errorf("%s: had %.3f of the time, want %.3f", c.name, got, c.want)
		}
	}
}

// A job whose use the card tells need not measure itself: its launches stay free.
func TestNobodyMeasuresItselfWhereTheCardTells(t *testing.T) {
	for _, measured := range []bool{false, true} {
		claims := []Claim{waiting(claim(1, 30, hard, 1)), claim(2, 70, hard, 1)}
		claims[0].Measured = measured
		want := uint32(measure)
		if measured {
			want = 0
		}
		if got := Plan(claims, params)[claims[0].Key].Gate; got != want {
			t.Errorf("measured %v: gate %d, want %d", measured, got, want)
		}
	}
}

// Jobs that come, go or sleep take no old account with them.
func TestABalanceForgetsWhoDoesNotCompete(t *testing.T) {
	var b balance
	waits := func(busy uint32) []Claim {
		list := []Claim{claim(1, 50, hard, busy), claim(2, 50, hard, 1)}
		list[0].Interactive, list[1].Interactive = true, true
		return list
	}
	claims := waits(1)
	lacking := []usage{{ns: 10e6, span: 50 * time.Millisecond, exact: true, all: 1}, {ns: 40e6, span: 50 * time.Millisecond, exact: true, all: 1}}
	for range 5 {
		b.update(claims, lacking, allOpen)
	}
	if claims[0].Gain < 1.2 || claims[1].Gain > 0.85 {
		t.Fatalf("gains %.2f and %.2f of one that lacks and one that had too much", claims[0].Gain, claims[1].Gain)
	}
	for range 200 {
		b.update(claims, lacking, allOpen)
	}
	if claims[0].Gain > mostGain+0.1 || claims[1].Gain < 1/mostGain-0.1 {
		t.Errorf("gains %.2f and %.2f: not bounded", claims[0].Gain, claims[1].Gain)
	}
	idle := waits(0)
	b.update(idle, lacking, allOpen)
	if idle[0].Gain != 0 || idle[1].Gain != 0 || len(b.jobs) != 0 {
		t.Errorf("gains %.2f and %.2f with nobody to compete with", idle[0].Gain, idle[1].Gain)
	}
	claims = waits(1)
	b.update(claims, []usage{{ns: 1}, lacking[1]}, allOpen)
	if claims[1].Gain != 0 {
		t.Error("balanced against a job of which nothing is known")
	}
}

// Where what members had is not seen from outside, beside work without an end and with
// several processes, what they are due follows the card's records in the end. Switches
// and pauses are nobody's, and what was had alone is not to be paid for.
func TestTurnsFollowTheCardsRecords(t *testing.T) {
	const second = int64(time.Second)
	for _, c := range []struct {
		name    string
		endless bool
		procs   uint32
		alone   int64
		follows bool
	}{
		{name: "one process each", procs: 1},
		{name: "work without an end", procs: 1, endless: true, follows: true},
		{name: "several processes", procs: 4, follows: true},
		{name: "several processes, one alone lately", procs: 4, alone: 10*second - recordsLate/2},
	} {
		a, b := &member{Claim: claim(1, 50, hard, c.procs), wants: true, endless: c.endless}, &member{Claim: claim(2, 50, hard, 1), wants: true}
		d := &dealer{members: []*member{a, b}, alone: c.alone}
		a.charge(10e6)
		b.charge(10e6)
		had := map[Key]float64{a.Key: 1.08e7, b.Key: 0.72e7} // 60 and 40 % of 18 of 20 ms
		d.correct(had, 10*second)
		if first := -a.due - 10e6; c.follows && (first <= 0 || first >= 1e6) {
			t.Errorf("%s: the first look moved %d of 2000000 ns", c.name, first)
		}
		for range 100 {
			d.correct(map[Key]float64{a.Key: 1, b.Key: 1}, 10*second)
		}
		wantA, wantB := 10e6, 10e6
		if c.follows {
			wantA, wantB = 12e6, 8e6
		}
		if math.Abs(float64(a.due)+wantA) > 100 || math.Abs(float64(b.due)+wantB) > 100 || a.charged != 0 {
			t.Errorf("%s: due %d and %d, want %.0f and %.0f less", c.name, a.due, b.due, wantA, wantB)
		}
	}
}

// A card that is asked again first tells of a time in which nobody asked. A process that
// was on it all that time and did nothing is not charged for it.
func TestTimeInWhichNobodyAskedIsNobodys(t *testing.T) {
	const tick = 15 * time.Millisecond
	waits := claim(1, 30, hard, 1)
	waits.Interactive = true
	competing := []Claim{waits, claim(2, 70, hard, 1)}
	times := &fakeTimes{known: true, account: cardtime.Account{At: time.Hour}}
	e := exact{times: times}
	for _, pause := range []time.Duration{0, 900 * time.Millisecond, 900 * time.Millisecond} {
		e.ask([]Claim{waits}, notNeeded) // its neighbour has gone
		e.look()
		e.ask(competing, notNeeded)
		e.look() // it is told what was read before the pause
		times.pass(pause, map[uint32]float64{90: 1})
		spans := 0
		for range 10 {
			times.pass(tick, map[uint32]float64{90: 0.3, 91: 0.6})
			e.look()
			c := e.cards["A"]
			if c.span > tick || c.had[90] > tick/2 || c.all > 0.91 {
				t.Fatalf("after %v: %v of %v, want at most 0.3 of %v", pause, c.had[90], c.span, tick)
			}
			if c.span > 0 {
				spans++
			}
		}
		if spans < 8 {
			t.Errorf("after %v: %d of 10 looks told something", pause, spans)
		}
	}
}

// A change of slices costs the card time: small ones wait, and one that is due takes the
// others of the card with it, for one job's gain changes everybody's slices.
func TestGainsOfACardChangeTogether(t *testing.T) {
	claims := func() []Claim {
		list := []Claim{claim(1, 30, hard, 1), claim(2, 70, hard, 1)}
		list[0].Interactive, list[1].Interactive = true, true
		return list
	}
	const look = 50 * time.Millisecond
	lacks := func(ms float64) []usage { // by job 1; had by job 2
		return []usage{{ns: 15e6 - ms*1e6, span: look, exact: true, all: 1}, {ns: 35e6 + ms*1e6, span: look, exact: true, all: 1}}
	}
	var b balance
	small := claims()
	b.update(small, lacks(6), allOpen) // e^0.07 for job 1
	if small[0].Gain != 1 || small[1].Gain != 1 {
		t.Errorf("gains %.3f and %.3f after a small lack, want 1", small[0].Gain, small[1].Gain)
	}
	due := claims()
	b.update(due, lacks(6), allOpen) // 12 ms in all: e^0.13 and e^-0.06
	if due[0].Gain < 1.1 || due[1].Gain < 0.92 || due[1].Gain > 0.96 {
		t.Errorf("gains %.3f and %.3f, want 1.14 and 0.94", due[0].Gain, due[1].Gain)
	}
}
