// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const ms = int64(1e6)

// tenant is a job on a model of a card, which runs one kernel after the other in
// the order of their launches and never two at a time.
type tenant struct {
	claim  Claim
	kernel int64 // length
	idle   func(now int64) bool
	killed bool
	// A persistent kernel: it runs all the time, at half speed beside another's.
	endless bool
	got     int64
	state   libvgpu.TurnState
	wait    int64 // longest time that it waited for the card
	since   int64 // it waits; 0: it does not
}

// play lets a dealer deal a model card for a time, in steps of 50 us: each
// tenant launches a kernel when its turn allows one and its last is done. It returns
// how often the dealer looked at them.
func play(t *testing.T, tenants []*tenant, from, d int64, begin int64, each func(now int64)) (looks int) {
	t.Helper()
	var claims []Claim
	for _, x := range tenants {
		claims = append(claims, noSlices(x.claim))
	}
	plan := Plan(claims, params)
	deal := &dealer{}
	deal.update(jobsOfCard(claims, "A", plan), plan, begin)
	look := func(key Key) libvgpu.TurnState {
		for _, x := range tenants {
			if x.claim.Key == key {
				return x.state
			}
		}
		return libvgpu.TurnState{}
	}
	next, free, speed := begin, begin, int64(1)
	if slices.ContainsFunc(tenants, func(x *tenant) bool { return x.endless }) {
		speed = 2 // of the others
	}
	var told map[Key]libvgpu.Schedule
	for now := begin; now < begin+d; now += 50000 {
		if each != nil {
			each(now)
		}
		if now >= next {
			next = deal.step(now, look)
			looks++
			told = deal.schedules(now)
			if next <= now || next > now+int64(200*ms) {
				t.Fatalf("at %d us: next look after %d us", (now-begin)/1000, (next-now)/1000)
			}
		}
		for _, x := range tenants {
			if x.endless {
				// what the library takes for the length of what it never saw end
				x.state = libvgpu.TurnState{UntilNS: uint64(now + ms/5), InflightNS: uint64(ms / 5), WantedNS: uint64(begin)}
				if x.got += 50000; free > now {
					x.got -= 25000
				}
				continue
			}
			if int64(x.state.UntilNS) <= now {
				x.state.InflightNS = 0
			}
			if x.killed || x.since == 0 && x.idle != nil && x.idle(now) {
				continue // who waits goes on waiting
			}
			x.state.WantedNS = uint64(now)
			if x.since == 0 {
				x.since = now
			}
			turn := told[x.claim.Key].Turn
			start := max(now, int64(x.state.UntilNS))
			at, length := start-int64(turn.BeginNS), int64(turn.LengthUS)*1000
			open := turn.LengthUS >= turn.PeriodUS
			if start > now+2*ms || at < 0 || !open && at >= length {
				continue
			}
			// The card may still have another's kernel on it.
			begins := max(start, free)
			free = begins + x.kernel*speed
			x.state.UntilNS, x.state.InflightNS = uint64(free), uint64(x.kernel)
			x.wait, x.since = max(x.wait, begins-x.since), 0
			if now-begin > from {
				x.got += x.kernel
			}
		}
	}
	return looks
}

func TestTurnsDivideTheCardByShare(t *testing.T) {
	us := int64(1000)
	for _, c := range []struct {
		shares  []uint32
		kernels []int64
	}{
		{[]uint32{30, 70}, []int64{50 * us}},
		{[]uint32{50, 50}, []int64{200 * us}},
		{[]uint32{50, 50}, []int64{5 * ms}},
		{[]uint32{30, 70}, []int64{50 * ms}},
		{[]uint32{30, 70}, []int64{50 * us, 20 * ms}},
		{[]uint32{30, 70}, []int64{20 * ms, 50 * us}},
		{[]uint32{10, 30, 60}, []int64{200 * us}},
		{[]uint32{10, 30, 60}, []int64{5 * ms}},
		{[]uint32{10, 30, 60}, []int64{50 * ms, 50 * us, ms}},
		{[]uint32{25, 25, 25, 25}, []int64{ms}},
		{[]uint32{25, 25, 25, 25}, []int64{50 * ms}},
		{[]uint32{1, 99}, []int64{200 * us}},
	} {
		t.Run(fmt.Sprint(c.shares, c.kernels), func(t *testing.T) {
			var tenants []*tenant
			for i, s := range c.shares {
				tenants = append(tenants, &tenant{claim: claim(uint32(i+1), s, hard, 1), kernel: c.kernels[i%len(c.kernels)]})
			}
			const d = 20000 * ms
			play(t, tenants, 0, d, 1e12, nil)
			for i, x := range tenants {
				got, want := float64(x.got)/float64(d), float64(c.shares[i])/100
				if math.Abs(got-want) > 0.02 {
					t.Errorf("job %d: %.3f of the card, want %.2f +- 0.02", i+1, got, want)
				}
			}
		})
	}
}

// A persistent kernel never hands the card over. Who has a turn beside it has half of
// the card, and that counts for both.
// What turns cost gresd is how often it looks; a look takes less than 0.1 ms (BenchmarkLook).
func TestTurnsOfEightJobsNeedFewLooks(t *testing.T) {
	var tenants []*tenant
	for i, s := range []uint32{13, 13, 12, 12, 13, 13, 12, 12} {
		tenants = append(tenants, &tenant{claim: claim(uint32(i+1), s, soft, 1), kernel: ms})
	}
	if looks := play(t, tenants, 0, 10000*ms, 1e12, nil); looks > 4000 {
		t.Errorf("%d looks in 10 s, want at most 4000", looks)
	}
}

func TestTurnsBesideAPersistentKernel(t *testing.T) {
	for _, c := range []struct{ share, want uint32 }{{50, 50}, {70, 70}, {30, 50}} {
		a := &tenant{claim: claim(1, c.share, hard, 1), endless: true}
		b := &tenant{claim: claim(2, 100-c.share, hard, 1), kernel: 50000}
		const d = 20000 * ms
		play(t, []*tenant{a, b}, 0, d, 1e12, nil)
		if got, want := float64(a.got)/float64(d), float64(c.want)/100; math.Abs(got-want) > 0.02 {
			t.Errorf("%d beside %d: the persistent kernel has %.3f of the card, want %.2f", c.share, 100-c.share, got, want)
		}
		if got, want := float64(b.got)/float64(d), 1-float64(c.want)/100; math.Abs(got-want) > 0.02 {
			t.Errorf("%d beside %d: the other has %.3f of the card, want %.2f", c.share, 100-c.share, got, want)
		}
	}
}

// What a job does not use others have; it has the card back when it wants it.
func TestAnIdleJobsTurnIsLentAndComesBack(t *testing.T) {
	a := &tenant{claim: claim(1, 50, soft, 1), kernel: 200000}
	b := &tenant{claim: claim(2, 50, soft, 1), kernel: 200000}
	b.idle = func(now int64) bool { return now/(100*ms)%10 != 0 } // works 100 ms of each second
	play(t, []*tenant{a, b}, 0, 10000*ms, 1e12, nil)
	if got := float64(a.got) / 1e10; got < 0.92 {
		t.Errorf("the busy job had %.3f of the card, want what the other left", got)
	}
	if got := float64(b.got) / 1e10; got < 0.045 {
		t.Errorf("the other had %.3f, want half of the time in which it works", got)
	}
}

func TestAJobKilledInItsTurnDoesNotKeepIt(t *testing.T) {
	a := &tenant{claim: claim(1, 50, soft, 1), kernel: 200000}
	b := &tenant{claim: claim(2, 50, soft, 1), kernel: 200000}
	const begin, at = int64(1e12), int64(1e12) + 1030*ms // in its turn
	before := int64(0)
	play(t, []*tenant{a, b}, 0, 1130*ms, begin, func(now int64) {
		if now == at {
			b.killed, before = true, a.got
			// Its last words: an hour of work.
			b.state = libvgpu.TurnState{UntilNS: uint64(now + 3600*1000*ms), InflightNS: 1, WantedNS: uint64(now)}
		}
	})
	if got := a.got - before; got < 20*ms {
		t.Errorf("the other had %d us of the 100 ms after the kill", got/1000)
	}
}

// A job that works a little now and then takes the card when it wants it, and its
// neighbour keeps its share.
func TestShortBurstsDoNotWaitForTurns(t *testing.T) {
	for _, pause := range []int64{5, 8, 20, 60} {
		a := &tenant{claim: claim(1, 30, soft, 1), kernel: 200000}
		a.idle = func(now int64) bool { return now/ms%(pause+2) >= 2 }
		b := &tenant{claim: claim(2, 70, soft, 1), kernel: 200000}
		play(t, []*tenant{a, b}, 0, 5000*ms, 1e12, nil)
		t.Logf("pauses of %d ms: longest wait %d us", pause, a.wait/1000)
		if a.wait > int64(params.MaxPeriod)*1000+2*ms {
			t.Errorf("pauses of %d ms: waited %d us, want at most a period", pause, a.wait/1000)
		}
		if got := float64(b.got) / 5e9; got < 0.68 {
			t.Errorf("pauses of %d ms: its neighbour had %.3f of the card, want at least 0.68", pause, got)
		}
	}
}

// A turn ends for who is above in priority and due some time, and for nobody else.
func TestAHighJobEndsTheTurnOfALowerOne(t *testing.T) {
	for _, c := range []struct {
		name     string
		priority uint32
		due      int64
		cut      bool
	}{
		{"high and due", libvgpu.PrioHigh, 5 * ms, true},
		{"high, had its time", libvgpu.PrioHigh, 0, false},
		{"normal and due", libvgpu.PrioNormal, 5 * ms, false},
	} {
		now := int64(1e12)
		a, b := claim(1, 30, soft, 1), claim(2, 70, soft, 1)
		a.Priority = c.priority
		claims := []Claim{noSlices(a), noSlices(b)}
		plan := Plan(claims, params)
		d := &dealer{counted: now}
		d.update(jobsOfCard(claims, "A", plan), plan, now)
		d.members[0].due = c.due
		d.cur, d.begin, d.end = d.members[1], now-10*ms, now+20*ms
		d.step(now, func(Key) libvgpu.TurnState { return libvgpu.TurnState{WantedNS: uint64(now)} })
		if cut := d.cur == d.members[0]; cut != c.cut {
			t.Errorf("%s: ended the turn %v, want %v", c.name, cut, c.cut)
		}
	}
}

// Who is shut out of others' turns is never shut out for good.
func TestTheLastWordsOfADeadGresdLetEverybodyOnTheCard(t *testing.T) {
	claims := []Claim{noSlices(claim(1, 30, hard, 1)), claim(2, 70, hard, 1)}
	plan := Plan(claims, params)
	d := &dealer{}
	d.update(jobsOfCard(claims, "A", plan), plan, 1e12)
	busy := func(Key) libvgpu.TurnState { return libvgpu.TurnState{WantedNS: 1e12} }
	d.step(1e12, busy)
	var end uint64
	for key, s := range d.schedules(1e12) {
		if s.Turn.LengthUS == 0 || s.Turn.PeriodUS != 50000 || s.Turn.LengthUS > 35000 {
			t.Errorf("job %d: %+v", key.JobID, s.Turn)
		}
		end = max(end, s.Turn.BeginNS+uint64(s.Turn.LengthUS)*1000)
	}
	if end != 1e12+50e6 {
		t.Errorf("the turns end after %d us, want one period", (end-1e12)/1000)
	}
}

// A job that waits for its budget wants nothing, and finds the card open; but where its
// kernels are long, its window begins when the other's turn is over.
func TestLongKernelsUnderABudgetDoNotBeginInAnothersTurn(t *testing.T) {
	for _, c := range []struct {
		kernel time.Duration
		shares []uint32
		open   bool
	}{
		{20 * time.Millisecond, []uint32{30, 50}, false},
		{time.Millisecond, []uint32{30, 50}, true},
		{20 * time.Millisecond, []uint32{100, 100}, true}, // no budget holds them
	} {
		var claims []Claim
		for i, share := range c.shares {
			x := noSlices(claim(uint32(i+1), share, hard, 1))
			x.Kernel = uint32(c.kernel)
			claims = append(claims, x)
		}
		plan := Plan(claims, params)
		d := &dealer{}
		begin := 1000 * ms
		d.update(jobsOfCard(claims, "A", plan), plan, begin)
		states := map[Key]libvgpu.TurnState{claims[0].Key: {UntilNS: uint64(begin + 20*ms), InflightNS: uint64(20 * ms), WantedNS: uint64(begin)}}
		d.step(begin, func(k Key) libvgpu.TurnState { return states[k] })
		if d.cur == nil || d.cur.Key != claims[0].Key {
			t.Fatalf("%v, shares %d: it is not the turn of who runs", c.kernel, c.shares)
		}
		turn := d.schedules(begin)[claims[1].Key].Turn
		if open := turn.LengthUS >= turn.PeriodUS; open != c.open || !open && int64(turn.BeginNS) < d.end {
			t.Errorf("%v, shares %d: open %v, want %v; begins at %d, the turn ends at %d", c.kernel, c.shares, open, c.open, turn.BeginNS, d.end)
		}
	}
}

// A job's user can write into its cache that the driver refuses slices. If the card obeyed slices in
// gresd's own test, the report changes no schedule of another job.
func TestAForgedRefusalChangesNoNeighbor(t *testing.T) {
	schedules := func(verdict probe.Verdict, flags, others uint32) (own, neighbor libvgpu.Schedule, turns bool) {
		f := newFakeGrants()
		r := NewRunner(f, params, time.Millisecond, slog.New(slog.DiscardHandler))
		r.Measure(&fakeTimes{known: true})
		r.Slices(func(gpu.UUID) probe.Verdict { return verdict })
		for job, cores := range map[uint32]uint32{1: 30, 2: others} {
			s := slot(job, 1, 9)
			s.OnHost = true
			s.Cards[0].TypicalNS = 20e6 // longer than its slices
			if job == 1 {
				s.Flags = flags
			}
			f.add(job, cores, view(s))
		}
		r.step(time.Now())
		own, neighbor = f.schedule(1), f.schedule(2)
		own.LeaseNS, neighbor.LeaseNS = 0, 0 // they are times
		return own, neighbor, r.dealers["A"] != nil
	}
	for _, others := range []uint32{70, 50} { // slices enforce the shares, or budgets do
		_, before, _ := schedules(probe.Obeyed, 0, others)
		own, neighbor, turns := schedules(probe.Obeyed, libvgpu.SlotSlicesRefused, others)
		if neighbor != before || neighbor.SliceUS == 0 || turns {
			t.Errorf("the neighbor has %+v, turns %v; want %+v", neighbor, turns, before)
		}
		if own.Gate != libvgpu.GateBudget || own.Cores != 30 {
			t.Errorf("the job itself has %+v, want its budget", own)
		}
	}
	for verdict, flags := range map[probe.Verdict]uint32{probe.Unknown: libvgpu.SlotSlicesRefused, probe.Ignored: 0} {
		if _, _, turns := schedules(verdict, flags, 70); !turns {
			t.Errorf("verdict %q: want turns", verdict)
		}
	}
}
