// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

type fakeTimes struct {
	account gputime.Account
	known   bool
	asked   []gpu.UUID
}

func (f *fakeTimes) OnCard(card gpu.UUID) (gputime.Account, bool) {
	f.asked = append(f.asked, card)
	return f.account, f.known
}

func (f *fakeTimes) pass(span time.Duration, parts map[uint32]float64) {
	uses := maps.Clone(f.account.Uses)
	if uses == nil {
		uses = map[uint32]gputime.Use{}
	}
	for pid, part := range parts {
		use := uses[pid]
		use.Had += time.Duration(part * float64(span))
		use.Waited += time.Duration((1 - part) * float64(span))
		use.Turns++
		uses[pid] = use
	}
	f.account = gputime.Account{Uses: uses, At: f.account.At + span}
}

// contestedBy returns the cards with several working jobs.
func contestedBy(claims ...Claim) map[gpu.UUID]bool {
	var c card
	c.found(claims, nil)
	return map[gpu.UUID]bool{claims[0].Card: c.compare()}
}

func TestACardIsAskedWhereJobsCompete(t *testing.T) {
	for _, c := range []struct {
		name   string
		claims []Claim
		want   bool
	}{
		{"alone", []Claim{claim(1, 30, hard, 1)}, false},
		{"two that are busy", []Claim{claim(1, 30, soft, 1), claim(2, 70, soft, 1)}, true},
		{"one beside an idle one", []Claim{claim(1, 30, hard, 1), claim(2, 70, hard, 0)}, false},
	} {
		times := &fakeTimes{}
		e := exact{times: times}
		e.ask(contestedBy(c.claims...))
		e.look()
		if got := slices.Contains(times.asked, "A"); got != c.want {
			t.Errorf("%s: asked %v, want %v", c.name, got, c.want)
		}
		e.ask(contestedBy(claim(1, 30, hard, 1)))
		times.asked = nil
		if e.look(); len(times.asked) != 0 {
			t.Errorf("%s: asked on when all had gone", c.name)
		}
	}
	var none exact // no records on this node
	none.ask(contestedBy(claim(1, 30, hard, 1), claim(2, 70, hard, 1)))
	none.look()
}

// A process that the card's account has forgotten begins anew.
func TestWhoWasForgottenHadNothingBefore(t *testing.T) {
	times := &fakeTimes{known: true, account: gputime.Account{At: time.Hour, Uses: map[uint32]gputime.Use{90: {Had: 5 * time.Second}}}}
	card := &cardAccount{}
	e := exact{times: times, cards: map[gpu.UUID]*cardAccount{"A": card}}
	e.look()
	for range 2 { // what is from when the card was last asked does not count
		times.pass(time.Second, map[uint32]float64{90: 0.5})
		e.look()
	}
	if got := card.use[90].Had; got != 500*time.Millisecond {
		t.Fatalf("had %v, want 500 ms", got)
	}
	times.account.Uses = nil
	times.pass(time.Second, map[uint32]float64{90: 0.25})
	e.look()
	if got := card.use[90].Had; got != 250*time.Millisecond {
		t.Errorf("had %v of 1 s, want 250 ms", got)
	}
}

// Records of a host number processes as its first PID namespace does. A gresd that lives in
// another one finds none of its own there; it must not take that for jobs that have nothing.
func TestRecordsThatNumberOtherwiseAreNotBelieved(t *testing.T) {
	const tick = 50 * time.Millisecond
	times := &fakeTimes{known: true, account: gputime.Account{At: time.Hour}}
	s, now := newSampler(), time.Now()
	s.exact = exact{times: times, cards: map[gpu.UUID]*cardAccount{"A": {}}}
	said := 0
	look := func(i int, host map[uint32]float64) activity {
		times.pass(tick, host)
		s.exact.look()
		v := slot(1, uint64(i+1), 0)
		v.HostPID, v.OnHost = 634, true
		act := s.look(7, view(v), oneCard, now.Add(time.Duration(i)*tick))[0]
		if s.exact.judge() {
			said++
		}
		return act
	}
	for i := range 40 {
		act := look(i, map[uint32]float64{1269: 0.5, 1270: 0.4})
		if late := i > 9; late && (act.used.exact || !s.exact.refused("A")) {
			t.Fatalf("look %d: records of processes %v are believed", i, []uint32{1269, 1270})
		}
	}
	look(40, map[uint32]float64{634: 0.5, 1270: 0.4})
	if act := look(41, map[uint32]float64{634: 0.5, 1270: 0.4}); !act.used.exact || s.exact.refused("A") {
		t.Error("records that name the process are not believed")
	}
	if said != 1 {
		t.Errorf("said %d times, want once", said)
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
		{"another process has the card, beside one of ours", 91, true, true, 0, true},
		{"of another pid namespace, not found", 90, false, true, 0.1, false},
		{"no records", 90, true, false, 0.1, false},
	} {
		times := &fakeTimes{known: c.known, account: gputime.Account{At: time.Hour}}
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
		}
		if got := sum / span; math.Abs(got-c.want) > 0.01 {
			t.Errorf("%s: had %.3f of the time, want %.3f", c.name, got, c.want)
		}
	}
}

// Jobs whose use the card tells need not measure themselves: their launches stay free.
func TestNobodyMeasuresItselfWhereTheCardTells(t *testing.T) {
	for _, c := range []struct {
		noRecords bool
		want      uint32
	}{{false, 0}, {true, measure}} {
		claims := []Claim{claim(1, 30, hard, 1), claim(2, 70, hard, 1)}
		claims[0].NoRecords = c.noRecords
		if got := planOf(claims)[claims[0].Key].Gate; got != c.want {
			t.Errorf("no records %v: gate %d, want %d", c.noRecords, got, c.want)
		}
	}
}

// A card that is asked again first tells of a time in which nobody asked. A process that
// was on it all that time and did nothing is not charged for it.
func TestTimeInWhichNobodyAskedIsNobodys(t *testing.T) {
	const tick = 15 * time.Millisecond
	waits := claim(1, 30, hard, 1)
	competing := []Claim{waits, claim(2, 70, hard, 1)}
	times := &fakeTimes{known: true, account: gputime.Account{At: time.Hour}}
	e := exact{times: times}
	for _, pause := range []time.Duration{0, 900 * time.Millisecond, 900 * time.Millisecond} {
		e.ask(contestedBy(waits)) // its neighbour has gone
		e.look()
		e.ask(contestedBy(competing...))
		e.look() // it is told what was read before the pause
		times.pass(pause, map[uint32]float64{90: 1})
		spans := 0
		for range 10 {
			times.pass(tick, map[uint32]float64{90: 0.3, 91: 0.6})
			e.look()
			c := e.cards["A"]
			if c.span > tick || c.use[90].Had > tick/2 {
				t.Fatalf("after %v: %v of %v, want at most 0.3 of %v", pause, c.use[90].Had, c.span, tick)
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

// A kernel of some seconds is one launch. Its process stays busy as long as the card's records show it on
// the card.
func TestALongKernelIsWork(t *testing.T) {
	const tick = 50 * time.Millisecond
	long, other := slot(1, 1, 0), slot(2, 0, 0)
	for i, v := range []*libvgpu.SlotView{&long, &other} {
		v.HostPID, v.OnHost, v.Cards[0].Contexts = uint32(90+i), true, 1
	}
	times := &fakeTimes{known: true, account: gputime.Account{At: time.Hour}}
	s, now := newSampler(), time.Now()
	s.exact.times = times
	busy := func(parts map[uint32]float64) (n int) {
		for range 20 {
			now = now.Add(tick)
			times.pass(tick, parts)
			s.exact.look()
			other.Cards[0].Launches++
			a, b := s.look(7, view(long), oneCard, now)[0], s.look(8, view(other), oneCard, now)[0]
			s.exact.ask(contestedBy(claim(7, 30, soft, a.busy), claim(8, 70, soft, b.busy)))
			n += int(a.busy)
		}
		return n
	}
	if n := busy(map[uint32]float64{90: 0.5, 91: 0.5}); n != 20 {
		t.Errorf("busy at %d of 20 looks with half of the card", n)
	}
	if n := busy(map[uint32]float64{91: 1}); n == 0 || n > 7 {
		t.Errorf("busy at %d of 20 looks after its kernel, want as many as are in %v", n, hold)
	}
}

// A process that works without CUDA launches nothing that is seen: it is busy while the card's
// records say so, and always where there are none.
func TestWorkWithoutCUDA(t *testing.T) {
	const tick = 50 * time.Millisecond
	process := func() libvgpu.SlotView {
		v := slot(1, 0, 0)
		v.HostPID, v.OnHost, v.Flags = 90, true, libvgpu.SlotUngated
		v.Cards[0].Contexts = 1
		return v
	}
	times := &fakeTimes{known: true, account: gputime.Account{At: time.Hour}}
	s, now, doubts := newSampler(), time.Now(), false
	s.exact.times = times
	look := func(v libvgpu.SlotView, parts map[uint32]float64) uint32 {
		now = now.Add(tick)
		times.pass(tick, parts)
		s.exact.look()
		act := s.look(7, view(v), oneCard, now)[0]
		doubts = s.exact.judge() || doubts
		s.exact.ask(contestedBy(claim(1, 30, soft, act.busy)))
		return act.busy
	}
	busy := func(v libvgpu.SlotView, parts map[uint32]float64) (n int) {
		for range 20 {
			n += int(look(v, parts))
		}
		return n
	}
	if n := busy(process(), map[uint32]float64{91: 0.9}); n != 0 {
		t.Errorf("busy at %d of 20 looks without having had the card", n)
	}
	if n := busy(process(), map[uint32]float64{90: 0.5, 91: 0.5}); n != 20 {
		t.Errorf("busy at %d of 20 looks with half of the card", n)
	}
	if n := busy(process(), map[uint32]float64{91: 0.9}); n == 0 || n > 7 {
		t.Errorf("busy at %d of 20 looks after its last work, want as many as are in %v", n, hold)
	}
	if doubts {
		t.Error("the records are doubted for a process that does nothing")
	}
	inContainer := process()
	inContainer.OnHost = false
	if n := busy(inContainer, nil); n != 20 {
		t.Errorf("busy at %d of 20 looks where the records do not name it", n)
	}
	times.known = false
	busy(process(), nil) // until it is clear that there are no records
	if n := busy(process(), nil); n != 20 {
		t.Errorf("busy at %d of 20 looks without records", n)
	}
	gated := process()
	gated.Flags = 0
	busy(gated, nil)
	if n := busy(gated, nil); n != 0 {
		t.Errorf("one whose launches are seen is busy at %d of 20 looks without any", n)
	}
}
