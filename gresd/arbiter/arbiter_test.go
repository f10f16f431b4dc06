// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

var params = Params{Period: 20000, MaxPeriod: 50000, MinSlice: 500}

const (
	off  = libvgpu.ModeOff
	soft = libvgpu.ModeSoft
	hard = libvgpu.ModeHard
)

// claim is one job on card A.
func claim(job, cores, mode, busy uint32) Claim {
	return Claim{Key: Key{job, "A"}, Cores: cores, Mode: mode, Busy: busy}
}

func withCeiling(c Claim, ceiling uint32) Claim { c.Ceiling = ceiling; return c }

const (
	measure = libvgpu.GateMeasure
)

func high(c Claim) Claim { c.Priority = libvgpu.PrioHigh; return c }

func low(c Claim) Claim { c.Priority = libvgpu.PrioLow; return c }

func noSlices(c Claim) Claim { c.NoSlices = true; return c }

func TestPlan(t *testing.T) {
	type want struct{ slice, gate, weight, others uint32 }
	for _, c := range []struct {
		name   string
		claims []Claim
		want   []want
	}{
		{"one hard job alone", []Claim{claim(1, 30, hard, 1)}, []want{{0, 1, 1000000, 0}}},
		{"one soft job alone", []Claim{claim(1, 30, soft, 1)}, []want{{0, 0, 1000000, 0}}},
		{"one job of the whole card", []Claim{claim(1, 100, hard, 1)}, []want{{0, 0, 1000000, 0}}},
		{"one job alone of 4 processes", []Claim{claim(1, 30, hard, 4)}, []want{{0, 1, 1000000, 0}}},
		{
			"30 and 70, both busy",
			[]Claim{claim(1, 30, hard, 1), claim(2, 70, hard, 1)},
			[]want{{6000, 0, 300000, 1}, {14000, 0, 700000, 1}},
		},
		{
			"30 and 70, only 70 busy",
			[]Claim{claim(1, 30, hard, 0), claim(2, 70, hard, 1)},
			[]want{{6000, 0, 300000, 1}, {14000, 1, 1000000, 0}},
		},
		{
			"30 and 70, none busy",
			[]Claim{claim(1, 30, hard, 0), claim(2, 70, hard, 0)},
			[]want{{6000, 1, 1000000, 0}, {14000, 1, 1000000, 0}},
		},
		{
			"30 and 50 do not fill the card",
			[]Claim{claim(1, 30, hard, 1), claim(2, 50, hard, 1)},
			[]want{{7500, 1, 380000, 1}, {12500, 1, 630000, 1}},
		},
		{
			"33, 33 and 32 count as full",
			[]Claim{claim(1, 33, hard, 1), claim(2, 33, hard, 1), claim(3, 32, hard, 1)},
			[]want{{6734, 0, 336733, 2}, {6734, 0, 336733, 2}, {6530, 0, 326532, 2}},
		},
		{
			"4 busy processes divide their job's slice",
			[]Claim{claim(1, 70, hard, 4), claim(2, 30, hard, 1)},
			[]want{{5250, 0, 175000, 1}, {9000, 0, 300000, 1}},
		},
		{
			"soft beside hard",
			[]Claim{claim(1, 30, soft, 1), claim(2, 30, hard, 1)},
			[]want{{10000, 0, 500000, 1}, {10000, 1, 500000, 1}},
		},
		{"soft with a ceiling, alone", []Claim{withCeiling(claim(1, 30, soft, 1), 80)}, []want{{0, 1, 1000000, 0}}},
		{
			"soft with a ceiling that a neighbour holds",
			[]Claim{withCeiling(claim(1, 30, soft, 1), 80), claim(2, 30, soft, 1)},
			[]want{{10000, 0, 500000, 1}, {10000, 0, 500000, 1}},
		},
		{
			"soft with a ceiling above a small neighbour",
			[]Claim{withCeiling(claim(1, 60, soft, 1), 70), claim(2, 10, soft, 1)},
			[]want{{17142, 1, 860000, 1}, {2857, 0, 142857, 1}},
		},
		{"soft with a ceiling of 100", []Claim{withCeiling(claim(1, 30, soft, 1), 100)}, []want{{0, 0, 1000000, 0}}},
		{
			"off is never held and others still get theirs",
			[]Claim{claim(1, 20, off, 1), claim(2, 80, hard, 1)},
			[]want{{4000, 0, 200000, 1}, {16000, 0, 800000, 1}},
		},
		{
			"a refused slice of a job whose neighbor is idle",
			[]Claim{noSlices(claim(1, 30, hard, 1)), claim(2, 70, hard, 0)},
			[]want{{6000, 1, 1000000, 0}, {14000, 1, 700000, 1}},
		},
		{
			"a share of 1 stretches the period",
			[]Claim{claim(1, 1, hard, 1), claim(2, 99, hard, 1)},
			[]want{{500, 0, 10000, 1}, {49500, 0, 990000, 1}},
		},
		{
			"a small share stretches as far as needed",
			[]Claim{claim(1, 2, hard, 1), claim(2, 98, hard, 1)},
			[]want{{500, 0, 20000, 1}, {24500, 0, 980000, 1}},
		},
		{
			"a high job waits for slices that are as short as they get",
			[]Claim{high(claim(1, 30, hard, 1)), claim(2, 70, hard, 1)},
			[]want{{19180, 0, 958904, 1}, {822, 0, 41095, 1}},
		},
		{
			"the period has an end",
			[]Claim{claim(1, 1, hard, 2), claim(2, 99, hard, 1)},
			[]want{{250, 0, 5000, 1}, {49500, 0, 990000, 1}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan := planOf(c.claims)
			for i, claim := range c.claims {
				s := plan[claim.Key]
				if got := (want{s.SliceUS, s.Gate, s.WeightPPM, s.Others}); got != c.want[i] {
					t.Errorf("job %d: got %+v, want %+v", claim.JobID, got, c.want[i])
				}
				cores := claim.Cores
				if claim.Mode == soft && s.Gate == 1 {
					cores = claim.Ceiling // what the budget holds the job at
				}
				if s.Cores != cores || s.BusyProcs != claim.Busy {
					t.Errorf("job %d: cores %d, busy %d; want %d and %d", claim.JobID, s.Cores, s.BusyProcs, cores, claim.Busy)
				}
			}
		})
	}
}

func TestPlanKeepsCardsApart(t *testing.T) {
	a, b := claim(1, 30, hard, 1), claim(2, 70, hard, 1)
	b.Card = "B"
	plan := planOf([]Claim{a, b})
	for key, s := range plan {
		if s.SliceUS != 0 || s.Others != 0 || s.Gate != 1 {
			t.Errorf("%v: %+v, want a job alone on its card", key, s)
		}
	}
}

// Whatever the jobs, the slices must fit the longest period and divide in
// proportion to the shares.
func TestPlanProperties(t *testing.T) {
	for a := uint32(1); a <= 99; a += 7 {
		for b := uint32(1); a+b <= 100; b += 5 {
			for busy := uint32(0); busy <= 8; busy += 2 {
				plan := planOf([]Claim{claim(1, a, hard, busy), claim(2, b, hard, 1)})
				one, two := plan[Key{1, "A"}], plan[Key{2, "A"}]
				jobOne := one.SliceUS * max(1, busy)
				if jobOne+two.SliceUS > params.MaxPeriod {
					t.Fatalf("%d/%d/%d: %d + %d us is above the longest period", a, b, busy, jobOne, two.SliceUS)
				}
				got, want := float64(jobOne)/float64(jobOne+two.SliceUS), float64(a)/float64(a+b)
				if diff := got - want; diff > 0.01 || diff < -0.01 {
					t.Fatalf("%d/%d/%d: job 1 gets %.3f of the slices, want %.3f", a, b, busy, got, want)
				}
				if open := one.Gate == 0; open != (a+b >= full) {
					t.Fatalf("%d/%d/%d: gate open %v beside a busy job", a, b, busy, open)
				}
			}
		}
	}
}

func slot(pid uint32, launches, inflight uint64) libvgpu.SlotView {
	return libvgpu.SlotView{PID: pid, StartTime: 5, Alive: true, Cards: []libvgpu.SlotCard{{Launches: launches, InflightNS: inflight}}}
}

func view(slots ...libvgpu.SlotView) libvgpu.CacheView {
	return libvgpu.CacheView{Cards: make([]libvgpu.CacheCard, 1), Slots: slots}
}

// oneCard is the grant of a job with 30 % of one card.
var oneCard = []libvgpu.GrantCard{{UUID: "A", Cores: 30}}

func TestSampler(t *testing.T) {
	s := newSampler()
	start := time.Now()
	for i, c := range []struct {
		name  string
		after time.Duration
		view  libvgpu.CacheView
		want  uint32
	}{
		{"a process that did nothing yet", 0, view(slot(1, 0, 0)), 0},
		{"its first launch", 50, view(slot(1, 1, 0)), 1},
		{"still busy inside the hold time", 250, view(slot(1, 1, 0)), 1},
		{"idle after the hold time", 301, view(slot(1, 1, 0)), 0},
		{"one long kernel in flight", 350, view(slot(1, 1, 9)), 1},
		{"the kernel goes on", 2000, view(slot(1, 1, 9)), 1},
		{"the kernel has ended", 2100, view(slot(1, 1, 0)), 1},
		{"and some time passed", 2300, view(slot(1, 1, 0)), 0},
		{"two processes", 2350, view(slot(1, 2, 0), slot(2, 1, 0)), 2},
		{"one process left", 2400, view(slot(2, 1, 0)), 1},
		{"a dead process with work in flight", 2450, view(libvgpu.SlotView{PID: 3, Cards: []libvgpu.SlotCard{{InflightNS: 9}}}), 0},
	} {
		acts := s.look(7, c.view, oneCard, start.Add(c.after*time.Millisecond))
		if acts[0].busy != c.want {
			t.Errorf("%d, %s: %d busy, want %d", i, c.name, acts[0].busy, c.want)
		}
	}
	s.end(start.Add(time.Hour), nil)
	if len(s.procs) != 0 {
		t.Errorf("%d processes remembered for ever", len(s.procs))
	}
}

// Work in flight of a process that is suspended is none: it has ended, and nobody has looked.
func TestSamplerBelievesInWorkOfTheLivingOnly(t *testing.T) {
	s := newSampler()
	now := time.Now()
	works := slot(1, 1, 9)
	busy := func(after time.Duration) bool {
		now = now.Add(after)
		return s.look(7, view(works), oneCard, now)[0].busy == 1
	}
	for range 10 { // a long kernel
		works.HeartbeatNS += 1e9
		if !busy(time.Second) {
			t.Fatal("a process with work in flight that lives is not busy")
		}
	}
	if !busy(silence) || busy(time.Second) || busy(time.Hour) {
		t.Error("a process without a sign of life is busy for ever, or for less than it is believed in")
	}
	works.HeartbeatNS++
	if !busy(time.Second) {
		t.Error("it goes on, and is not busy")
	}
	works.Flags = libvgpu.SlotUnwatched // it gives none while it waits for its work
	if !busy(time.Hour) {
		t.Error("a process without a thread for signs of life is not busy")
	}
}

func TestSamplerSeesRefusedSlicesOfBusyProcessesOnly(t *testing.T) {
	s := newSampler()
	idle, busy := slot(1, 0, 0), slot(2, 1, 0)
	idle.Flags = libvgpu.SlotSlicesRefused
	if acts := s.look(7, view(idle, busy), oneCard, time.Now()); acts[0].noSlices {
		t.Error("an idle process shuts the gates")
	}
	busy.Flags = libvgpu.SlotSlicesRefused
	if acts := s.look(7, view(idle, busy), oneCard, time.Now()); !acts[0].noSlices {
		t.Error("a busy process without slices is not seen")
	}
}

// fakeGrants is a node with jobs of one card each.
type fakeGrants struct {
	mu    sync.Mutex
	specs map[uint32]libvgpu.GrantSpec
	views map[uint32]libvgpu.CacheView
	errs  map[uint32]error
	sched map[uint32]libvgpu.Schedule
	looks int
}

func newFakeGrants() *fakeGrants {
	return &fakeGrants{
		specs: map[uint32]libvgpu.GrantSpec{}, views: map[uint32]libvgpu.CacheView{},
		errs: map[uint32]error{}, sched: map[uint32]libvgpu.Schedule{},
	}
}

func (f *fakeGrants) add(job, cores uint32, v libvgpu.CacheView) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.specs[job] = libvgpu.GrantSpec{JobID: job, Cards: []libvgpu.GrantCard{{UUID: "A", Cores: cores, Share: cores, Mode: hard}}}
	f.views[job] = v
}

func (f *fakeGrants) Open() []uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	var ids []uint32
	for id := range f.specs {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (f *fakeGrants) Spec(job uint32) (libvgpu.GrantSpec, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.specs[job]
	return s, ok
}

func (f *fakeGrants) Cache(job uint32, _ time.Duration) (libvgpu.CacheView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.views[job], f.errs[job]
}

func (f *fakeGrants) SetSchedule(job uint32, card int, s libvgpu.Schedule) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if card != 0 || f.sched[job] == s {
		return false
	}
	f.sched[job] = s
	return true
}

func (f *fakeGrants) schedule(job uint32) libvgpu.Schedule {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sched[job]
}

func TestStepJoinAndLeave(t *testing.T) {
	f := newFakeGrants()
	r := NewRunner(f, params, time.Millisecond, slog.New(slog.DiscardHandler))
	r.Measure(&fakeTimes{known: true}) // else open gates measure
	now := time.Now()
	seen := func(pid uint32) libvgpu.CacheView {
		s := slot(pid, 1, 9)
		s.OnHost = true
		return view(s)
	}
	f.add(1, 30, seen(1))
	if n := r.step(now); n != 1 || f.sched[1].SliceUS != 0 || f.sched[1].Gate != 1 {
		t.Errorf("alone: %d jobs, %+v", n, f.sched[1])
	}
	f.add(2, 70, seen(2))
	r.step(now)
	if a, b := f.sched[1], f.sched[2]; a.SliceUS != 6000 || a.Gate != 0 || b.SliceUS != 14000 || b.Gate != 0 {
		t.Errorf("joined: %+v, %+v", a, b)
	}
	delete(f.specs, 2)
	r.step(now)
	if a := f.sched[1]; a.SliceUS != 0 || a.Gate != 1 {
		t.Errorf("alone again: %+v", a)
	}
}

func TestStepWithACacheThatItsOwnerBroke(t *testing.T) {
	f := newFakeGrants()
	r := NewRunner(f, params, time.Millisecond, slog.New(slog.DiscardHandler))
	f.add(1, 30, view(slot(1, 1, 9)))
	f.add(2, 70, view(slot(2, 1, 9)))
	f.errs[2] = errors.New("cut")
	r.step(time.Now())
	if got, want := f.sched[1], (libvgpu.Schedule{SliceUS: 6000, Gate: 1, WeightPPM: 1000000, LeastPPM: 1000000, BusyProcs: 1, Cores: 30}); !reflect.DeepEqual(got, want) {
		t.Errorf("its neighbour: %+v, want %+v", got, want)
	}
	if got := f.sched[2]; got.SliceUS != 14000 {
		t.Errorf("itself: %+v, want its slice", got)
	}
}

func TestRunSleepsWithoutJobs(t *testing.T) {
	f := newFakeGrants()
	r := NewRunner(f, params, time.Millisecond, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	time.Sleep(60 * time.Millisecond)
	f.mu.Lock()
	looks := f.looks
	f.mu.Unlock()
	if looks > 2 {
		t.Errorf("%d looks in 60 ms without a job", looks)
	}
	f.add(1, 30, view(slot(1, 1, 9)))
	r.Wake()
	for deadline := time.Now().Add(5 * time.Second); f.schedule(1).Cores != 30; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the job was not scheduled after Wake")
		}
	}
	cancel()
	<-done
}

// Of jobs that have ended nothing stays, also of those whose caches could not be read.
func TestOfEndedJobsNothingStays(t *testing.T) {
	grants := newFakeGrants()
	r := NewRunner(grants, params, time.Second, slog.New(slog.DiscardHandler))
	for job := uint32(1); job <= 100; job++ {
		grants.add(job, 10, libvgpu.CacheView{})
		grants.errs[job] = errors.New("cut off")
		r.step(time.Now())
		delete(grants.specs, job)
	}
	r.step(time.Now())
	if n := len(r.broken) + len(r.sampler.jobs) + len(r.cards); n != 0 {
		t.Errorf("%d things are remembered of jobs that have ended: %v", n, r.broken)
	}
}
