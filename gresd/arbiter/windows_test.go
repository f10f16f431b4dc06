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
	// A persistent kernel: it runs all the time, at half speed next to another persistent kernel.
	endless bool
	got     int64
	had     int64 // got at the last poll
	until   int64 // when its launched work will be done
	wanted  int64 // when a launch last went or waited
	wait    int64 // longest time that it waited for the card
	since   int64 // it waits; 0: it does not
}

// closed reports whether the library would delay a launch.
func (x *tenant) closed(s libvgpu.Schedule, now int64) bool {
	period, length := int64(s.Window.PeriodUS)*1000, int64(s.Window.LengthUS)*1000
	if period == 0 || length >= period {
		return false
	}
	at := ((now-int64(s.Window.BeginNS))%period + period) % period
	if first := x.until <= now; !first || at >= length/8 {
		at += max(0, x.until-now) + x.kernel/2
	}
	return at >= length
}

// play lets windows divide a model card for a time, in steps of 50 us: each
// tenant launches a kernel when its window allows one and its last is done. It returns
// how often the jobs were polled.
func play(tenants []*tenant, from, d int64, begin int64, each func(now int64)) (polls int) {
	const poll = 50 * ms / 3
	var c card
	next, free, speed := begin, begin, int64(1)
	if slices.ContainsFunc(tenants, func(x *tenant) bool { return x.endless }) {
		speed = 2 // of the others
	}
	told := map[Key]libvgpu.Schedule{}
	for now := begin; now < begin+d; now += 50000 {
		if each != nil {
			each(now)
		}
		if now >= next {
			var claims []Claim
			var used []usage
			for _, x := range tenants {
				claim := noSlices(x.claim)
				claim.Kernel = uint32(x.kernel)
				claim.Wants = x.until > now || x.wanted > next-poll
				claims, used = append(claims, claim), append(used, usage{ns: float64(x.got - x.had)})
				x.had = x.got
			}
			c.found(claims, used)
			c.setWindows(params, time.Unix(0, now), now)
			for _, j := range c.list {
				told[j.Key] = c.windowOf(j)
			}
			polls++
			next += poll
		}
		for _, x := range tenants {
			if x.endless {
				x.until, x.wanted = now+ms/5, begin
				if x.got += 50000; free > now {
					x.got -= 25000
				}
				continue
			}
			if x.killed || x.since == 0 && x.idle != nil && x.idle(now) {
				continue // a job that waits goes on waiting
			}
			x.wanted = now
			if x.since == 0 {
				x.since = now
			}
			if start := max(now, x.until); start > now+2*ms || x.closed(told[x.claim.Key], now) {
				continue
			}
			// The card may still have another's kernel on it.
			begins := max(now, x.until, free)
			free = begins + x.kernel*speed
			x.until = free
			x.wait, x.since = max(x.wait, begins-x.since), 0
			if now-begin >= from {
				x.got += x.kernel
			}
		}
	}
	return polls
}

func TestWindowsDivideTheCardByShare(t *testing.T) {
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
			play(tenants, 0, d, 1e12, nil)
			for i, x := range tenants {
				got, want := float64(x.got)/float64(d), float64(c.shares[i])/100
				t.Logf("job %d: %.4f of the card, want %.2f", i+1, got, want)
				if math.Abs(got-want) > 0.02 {
					t.Errorf("job %d: %.3f of the card, want %.2f +- 0.02", i+1, got, want)
				}
			}
		})
	}
}

// Windows cost gresd its polls; a poll takes less than 0.1 ms (BenchmarkLook).
func TestWindowsOfEightJobsNeedFewPolls(t *testing.T) {
	var tenants []*tenant
	for i, s := range []uint32{13, 13, 12, 12, 13, 13, 12, 12} {
		tenants = append(tenants, &tenant{claim: claim(uint32(i+1), s, soft, 1), kernel: ms})
	}
	if polls := play(tenants, 0, 10000*ms, 1e12, nil); polls > 4000 {
		t.Errorf("%d polls in 10 s, want at most 4000", polls)
	}
}

// A persistent kernel never leaves the card. A job with a window next to it has half of the card,
// and that counts for both.
func TestWindowsBesideAPersistentKernel(t *testing.T) {
	for _, c := range []struct{ share, want uint32 }{{50, 50}, {70, 70}, {30, 50}} {
		a := &tenant{claim: claim(1, c.share, hard, 1), endless: true}
		b := &tenant{claim: claim(2, 100-c.share, hard, 1), kernel: 50000}
		const d = 20000 * ms
		play([]*tenant{a, b}, 0, d, 1e12, nil)
		if got, want := float64(a.got)/float64(d), float64(c.want)/100; math.Abs(got-want) > 0.02 {
			t.Errorf("%d beside %d: the persistent kernel has %.3f of the card, want %.2f", c.share, 100-c.share, got, want)
		}
		if got, want := float64(b.got)/float64(d), 1-float64(c.want)/100; math.Abs(got-want) > 0.02 {
			t.Errorf("%d beside %d: the other has %.3f of the card, want %.2f", c.share, 100-c.share, got, want)
		}
	}
}

// Other jobs use the unused time of a job. The job gets the card back with its next work.
func TestAnIdleJobsWindowIsLentAndComesBack(t *testing.T) {
	a := &tenant{claim: claim(1, 50, soft, 1), kernel: 200000}
	b := &tenant{claim: claim(2, 50, soft, 1), kernel: 200000}
	b.idle = func(now int64) bool { return now/(100*ms)%10 != 0 } // works 100 ms of each second
	play([]*tenant{a, b}, 0, 10000*ms, 1e12, nil)
	if got := float64(a.got) / 1e10; got < 0.92 {
		t.Errorf("the busy job had %.3f of the card, want what the other left", got)
	}
	if got := float64(b.got) / 1e10; got < 0.045 {
		t.Errorf("the other had %.3f, want half of the time in which it works", got)
	}
}

func TestAJobKilledInItsWindowDoesNotKeepIt(t *testing.T) {
	a := &tenant{claim: claim(1, 50, soft, 1), kernel: 200000}
	b := &tenant{claim: claim(2, 50, soft, 1), kernel: 200000}
	const begin, at = int64(1e12), int64(1e12) + 1030*ms // in its window
	before := int64(0)
	play([]*tenant{a, b}, 0, 1130*ms, begin, func(now int64) {
		if now == at {
			b.killed, before = true, a.got
			b.until = now + 3600*1000*ms // its last words: an hour of work
		}
	})
	if got := a.got - before; got < 20*ms {
		t.Errorf("the other had %d us of the 100 ms after the kill", got/1000)
	}
}

// A job with a little work now and then gets the card for each burst, and its neighbor keeps its
// share.
func TestShortBurstsDoNotWaitForWindows(t *testing.T) {
	for _, pause := range []int64{5, 8, 20, 60} {
		a := &tenant{claim: claim(1, 30, soft, 1), kernel: 200000}
		a.idle = func(now int64) bool { return now/ms%(pause+2) >= 2 }
		b := &tenant{claim: claim(2, 70, soft, 1), kernel: 200000}
		play([]*tenant{a, b}, 0, 5000*ms, 1e12, nil)
		t.Logf("pauses of %d ms: longest wait %d us, neighbor %.3f", pause, a.wait/1000, float64(b.got)/5e9)
		if a.wait > int64(params.MaxPeriod)*1000+2*ms {
			t.Errorf("pauses of %d ms: waited %d us, want at most a period", pause, a.wait/1000)
		}
		if got := float64(b.got) / 5e9; got < 0.68 {
			t.Errorf("pauses of %d ms: its neighbor had %.3f of the card, want at least 0.68", pause, got)
		}
	}
}

// windowsOf are the windows of jobs that are polled once.
func windowsOf(claims ...Claim) map[Key]libvgpu.Schedule {
	for i := range claims {
		claims[i].NoSlices = true
	}
	return planOf(claims)
}

func wants(c Claim) Claim { c.Wants = true; return c }

// If gresd dies, each job has its window in every period.
func TestTheLastWordsOfADeadGresdLetEverybodyOnTheCard(t *testing.T) {
	var end uint64
	for key, s := range windowsOf(wants(claim(1, 30, hard, 1)), wants(claim(2, 70, hard, 1))) {
		if s.Window.LengthUS == 0 || s.Window.PeriodUS != 50000 || s.Window.LengthUS > 35000 {
			t.Errorf("job %d: %+v", key.JobID, s.Window)
		}
		end = max(end, s.Window.BeginNS+uint64(s.Window.LengthUS)*1000)
	}
	if end != 1e12+50e6 {
		t.Errorf("the windows end after %d us, want one period", (end-1e12)/1000)
	}
}

// A job that waits for its budget wants nothing, and finds the card open; but if its
// kernels are long, it has a window of its own.
func TestLongKernelsUnderABudgetDoNotBeginInAnothersWindow(t *testing.T) {
	for _, c := range []struct {
		kernel time.Duration
		shares []uint32
		open   bool
	}{
		{20 * time.Millisecond, []uint32{30, 50}, false},
		{time.Millisecond, []uint32{30, 50}, true},
		{20 * time.Millisecond, []uint32{100, 100}, true}, // no budget holds them
	} {
		a, b := wants(claim(1, c.shares[0], hard, 1)), claim(2, c.shares[1], hard, 1)
		a.Kernel, b.Kernel = uint32(c.kernel), uint32(c.kernel)
		plan := windowsOf(a, b)
		first, second := plan[a.Key].Window, plan[b.Key].Window
		end := first.BeginNS + uint64(first.LengthUS)*1000
		if open := second.LengthUS >= second.PeriodUS; open != c.open || !open && second.BeginNS < end {
			t.Errorf("%v, shares %d: open %v, want %v; begins at %d, the other's window ends at %d", c.kernel, c.shares, open, c.open, second.BeginNS, end)
		}
	}
}

// If one job is above another in priority, it does not wait for a long period.
func TestPrioritiesHaveShortPeriods(t *testing.T) {
	for _, c := range []struct {
		first Claim
		want  uint32
	}{{claim(1, 50, soft, 1), 50000}, {high(claim(1, 50, soft, 1)), 8000}, {low(claim(1, 50, soft, 1)), 8000}} {
		if got := windowsOf(wants(c.first), wants(claim(2, 50, soft, 1)))[c.first.Key].Window.PeriodUS; got != c.want {
			t.Errorf("priority %d: a period of %d us, want %d", c.first.Priority, got, c.want)
		}
	}
}

// A job that had far too much has no window, and if gresd dies it has one after eight periods.
func TestAJobInDebtHasNoWindowForNow(t *testing.T) {
	var c card
	begin, period := int64(1e12), 50*ms
	for i, used := range []float64{0, 300e6} {
		a, b := noSlices(wants(claim(1, 30, soft, 1))), wants(claim(2, 70, soft, 1))
		c.found([]Claim{a, b}, []usage{{ns: used}, {}})
		c.setWindows(params, time.Unix(0, begin+int64(i)*period), begin+int64(i)*period)
	}
	first, second := c.windowOf(c.list[0]).Window, c.windowOf(c.list[1]).Window
	if wait := int64(first.BeginNS) - begin - 2*period; wait < 2*period || wait > 8*period || first.LengthUS == 0 || first.PeriodUS > 8*50000 {
		t.Errorf("%+v: its window begins in %d us", first, wait/1000)
	}
	if second.LengthUS != 35000+8750 { // its share, and a quarter of the most that it can be due
		t.Errorf("the other's window: %+v", second)
	}
}

// Windows divide the whole card. If a job may not have its whole window, its budget enforces its limit.
func TestGatesOfWindows(t *testing.T) {
	window := libvgpu.GateWindow
	for _, c := range []struct {
		name   string
		claims []Claim
		gates  []uint32
		others []uint32
	}{
		{"a refused slice", []Claim{wants(claim(1, 30, hard, 1)), wants(claim(2, 70, hard, 1))}, []uint32{window, window}, []uint32{1, 1}},
		{"shares that do not fill the card", []Claim{wants(claim(1, 30, hard, 1)), wants(claim(2, 50, hard, 1))}, []uint32{window | 1, window | 1}, []uint32{1, 1}},
		{"one that wants nothing", []Claim{wants(claim(1, 30, hard, 1)), claim(2, 70, hard, 1)}, []uint32{window | 1, window}, []uint32{0, 1}},
	} {
		plan := windowsOf(c.claims...)
		for i, claim := range c.claims {
			s := plan[claim.Key]
			if s.Gate != c.gates[i] || s.SliceUS != 0 || s.WeightPPM != 1e6 || s.Others != c.others[i] || s.Cores != claim.Cores || s.BusyProcs != 1 {
				t.Errorf("%s, job %d: %+v, want gate %d", c.name, claim.JobID, s, c.gates[i])
			}
		}
	}
}

// A job's user can write into its cache that the driver refuses slices. If the card obeyed slices in
// gresd's own test, the report changes no schedule of another job.
func TestAForgedRefusalChangesNoNeighbor(t *testing.T) {
	schedules := func(verdict probe.Verdict, flags, others uint32) (own, neighbor libvgpu.Schedule, windows bool) {
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
		return own, neighbor, r.cards[cardKey{uuid: "A"}].windows.used
	}
	for _, others := range []uint32{70, 50} { // slices enforce the shares, or budgets do
		_, before, _ := schedules(probe.Obeyed, 0, others)
		own, neighbor, windows := schedules(probe.Obeyed, libvgpu.SlotSlicesRefused, others)
		if neighbor != before || neighbor.SliceUS == 0 || windows {
			t.Errorf("the neighbor has %+v, windows %v; want %+v", neighbor, windows, before)
		}
		if own.Gate != libvgpu.GateBudget || own.Cores != 30 {
			t.Errorf("the job itself has %+v, want its budget", own)
		}
	}
	for verdict, flags := range map[probe.Verdict]uint32{probe.Unknown: libvgpu.SlotSlicesRefused, probe.Ignored: 0} {
		if _, _, windows := schedules(verdict, flags, 70); !windows {
			t.Errorf("verdict %q: want windows", verdict)
		}
	}
}
