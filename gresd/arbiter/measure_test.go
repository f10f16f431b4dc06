// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// memSlot is a process with a context that announced some bytes.
func memSlot(pid uint32, mem, context uint64, begun, done uint32) libvgpu.SlotView {
	return libvgpu.SlotView{
		PID: pid, HostPID: pid, StartTime: 5, Alive: true, OnHost: true, MemBegun: begun, MemDone: done,
		Cards: []libvgpu.SlotCard{{Mem: mem, Context: context, Contexts: 1}},
	}
}

func TestCompare(t *testing.T) {
	quiet := memSlot(1, 1000, 300, 7, 7)
	for name, c := range map[string]struct {
		before, after libvgpu.SlotView
		counts        map[uint32]gpu.Bytes
		want          int64
		known         bool
	}{
		"the card counts more":         {quiet, quiet, map[uint32]gpu.Bytes{1: 1400}, 400, true},
		"the context was charged high": {quiet, quiet, map[uint32]gpu.Bytes{1: 900}, 0, true},
		"managed memory is elsewhere":  {quiet, quiet, map[uint32]gpu.Bytes{1: 100}, 0, true},
		"it is allocating":             {quiet, memSlot(1, 1000, 300, 8, 7), map[uint32]gpu.Bytes{1: 1400}, 0, false},
		"it allocated meanwhile":       {quiet, memSlot(1, 1000, 300, 8, 8), map[uint32]gpu.Bytes{1: 1400}, 0, false},
		"the card does not list it":    {quiet, quiet, map[uint32]gpu.Bytes{2: 1400}, 0, false},
		"the card does not say":        {quiet, quiet, map[uint32]gpu.Bytes{1: 0}, 0, false},
		"a number no card has":         {quiet, memSlot(1, 1<<63, 1<<63, 7, 7), map[uint32]gpu.Bytes{1: 1400}, 0, false},
	} {
		got, known := compare(&c.before, c.after, 0, c.counts)
		if got != c.want || known != c.known {
			t.Errorf("%s: got %d %v, want %d %v", name, got, known, c.want, c.known)
		}
	}
	if _, known := compare(nil, quiet, 0, map[uint32]gpu.Bytes{1: 1400}); known {
		t.Error("a process that was not there before was compared")
	}
}

type fakeMemory struct {
	*fakeGrants
	outside map[uint32]int64
}

func (f *fakeMemory) SetOutside(job uint32, _ int, bytes int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := f.outside[job] != bytes
	f.outside[job] = bytes
	return changed
}

type fakeCounter struct {
	mu    sync.Mutex
	procs []driver.Process
	err   error
	asked int
	cards map[gpu.UUID]bool // set in tests that check which cards gresd asks
}

func (f *fakeCounter) Processes(card gpu.UUID) ([]driver.Process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if f.cards != nil {
		f.cards[card] = true
		if card != "A" {
			return nil, errors.New("no such card")
		}
	}
	return f.procs, f.err
}

func nothing(gpu.UUID) gpu.Bytes { return 0 }

func memView(slots ...libvgpu.SlotView) libvgpu.CacheView {
	return libvgpu.CacheView{Cards: []libvgpu.CacheCard{{UUID: "A"}}, Slots: slots}
}

func TestMeasureSumsAJob(t *testing.T) {
	f := &fakeMemory{newFakeGrants(), map[uint32]int64{}}
	c := &fakeCounter{procs: []driver.Process{{PID: 1, Memory: 1400}, {PID: 2, Memory: 1100}, {PID: 3, Memory: 500}}}
	m := NewMeasurer(f, c, nothing, slog.New(slog.DiscardHandler))
	f.add(7, 30, memView(memSlot(1, 1000, 0, 1, 1), memSlot(2, 1000, 0, 1, 1)))
	f.add(8, 30, memView(memSlot(3, 500, 0, 1, 1)))
	if n := m.step(); n != 2 || f.outside[7] != 500 || f.outside[8] != 0 || c.asked != 1 {
		t.Errorf("%d jobs, outside %v, asked %d times", n, f.outside, c.asked)
	}
	// While process 2 allocates it keeps its last difference.
	f.add(7, 30, memView(memSlot(1, 1000, 0, 1, 1), memSlot(2, 5000, 0, 2, 1)))
	if m.step(); f.outside[7] != 500 {
		t.Errorf("outside %d while allocating, want 500", f.outside[7])
	}
	// When its slot is gone, so is its difference.
	f.add(7, 30, memView(memSlot(1, 1000, 0, 1, 1)))
	if m.step(); f.outside[7] != 400 {
		t.Errorf("outside %d after one process, want 400", f.outside[7])
	}
	c.err, c.procs = errors.New("lost"), nil
	if m.step(); f.outside[7] != 400 {
		t.Errorf("outside %d when the card does not answer, want 400", f.outside[7])
	}
	// What the card still has of one that has ended counts.
	m.Keeps(func(job uint32, card int) int64 { return map[uint32]int64{7: 900}[job] })
	if m.step(); f.outside[7] != 1300 || f.outside[8] != 0 {
		t.Errorf("outside %v with 900 of an ended process of job 7", f.outside)
	}
}

// A new gresd must not forget what the one before it measured.
func TestMeasureAfterARestart(t *testing.T) {
	f := &fakeMemory{newFakeGrants(), map[uint32]int64{7: 500}}
	c := &fakeCounter{procs: []driver.Process{{PID: 1, Memory: 1400}, {PID: 2, Memory: 1200}}}
	m := NewMeasurer(f, c, nothing, slog.New(slog.DiscardHandler))
	f.add(7, 30, memView(memSlot(1, 1000, 0, 1, 1), memSlot(2, 1000, 0, 2, 1)))
	if m.step(); f.outside[7] != 500 {
		t.Errorf("outside %d while a process was not compared yet, want 500", f.outside[7])
	}
	f.add(7, 30, memView(memSlot(1, 1000, 0, 1, 1), memSlot(2, 1000, 0, 2, 2)))
	if m.step(); f.outside[7] != 600 {
		t.Errorf("outside %d, want 600", f.outside[7])
	}
	foreign := memSlot(1, 1000, 0, 1, 1)
	foreign.OnHost = false // its pid is another process on this host
	if _, known := compare(&foreign, foreign, 0, map[uint32]gpu.Bytes{1: 1400}); known {
		t.Error("a process of another PID namespace was compared")
	}
}

func TestMeasureAsksNobodyWithoutContexts(t *testing.T) {
	f := &fakeMemory{newFakeGrants(), map[uint32]int64{}}
	c := &fakeCounter{}
	m := NewMeasurer(f, c, nothing, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { m.Run(ctx); close(done) }()
	slot := memSlot(1, 1000, 0, 1, 1)
	slot.Cards[0].Contexts = 0
	f.add(7, 30, memView(slot))
	m.Wake()
	time.Sleep(50 * time.Millisecond)
	c.mu.Lock()
	asked := c.asked
	c.mu.Unlock()
	if asked != 0 {
		t.Errorf("asked %d times", asked)
	}
	cancel()
	<-done
}

// What the card takes for a process and counts for nobody is the job's too.
func TestMeasureAddsWhatIsUncounted(t *testing.T) {
	f := &fakeMemory{newFakeGrants(), map[uint32]int64{}}
	c := &fakeCounter{procs: []driver.Process{{PID: 1, Memory: 1400}, {PID: 2, Memory: 1100}, {PID: 3, Memory: 0}}}
	m := NewMeasurer(f, c, func(gpu.UUID) gpu.Bytes { return 9 }, slog.New(slog.DiscardHandler))
	f.add(7, 30, memView(memSlot(1, 1000, 0, 1, 1), memSlot(2, 1000, 0, 1, 1)))
	f.add(8, 30, memView(memSlot(3, 500, 400, 1, 1))) // the driver does not say
	if m.step(); f.outside[7] != 400+100+2*9 || f.outside[8] != 0 {
		t.Errorf("outside %v, want 518 of job 7 and nothing of job 8", f.outside)
	}
}

func TestMeasureFollowsUpAtOnceAndDownSlowly(t *testing.T) {
	f := &fakeMemory{newFakeGrants(), map[uint32]int64{}}
	c := &fakeCounter{}
	m := NewMeasurer(f, c, nothing, slog.New(slog.DiscardHandler))
	f.add(7, 30, memView(memSlot(1, 1000, 0, 1, 1)))
	look := func(counted gpu.Bytes, want int64) {
		t.Helper()
		c.procs = []driver.Process{{PID: 1, Memory: counted}}
		if m.step(); f.outside[7] != want {
			t.Fatalf("the card counts %d: outside %d, want %d", counted, f.outside[7], want)
		}
	}
	look(1400, 400)
	look(1500, 500)
	for range comparisons - 1 {
		look(1200, 500)
	}
	look(1100, 200)
	for range comparisons - 2 {
		look(900, 200)
	}
	look(900, 100)
	look(900, 0) // and not below: what was charged for a context stays
}

// The driver is asked seldom where nothing changes, and at each look where something does.
func TestMeasureAsksSeldomWhereNothingChanges(t *testing.T) {
	f := &fakeMemory{newFakeGrants(), map[uint32]int64{}}
	c := &fakeCounter{procs: []driver.Process{{PID: 1, Memory: 1400}}}
	m := NewMeasurer(f, c, nothing, slog.New(slog.DiscardHandler))
	slot := memSlot(1, 1000, 0, 1, 1)
	looks := func(what string, n, want int) {
		t.Helper()
		f.add(7, 30, memView(slot))
		asked := c.asked
		for range n {
			m.step()
		}
		if got := c.asked - asked; got != want {
			t.Errorf("%s: asked at %d of %d looks, want %d", what, got, n, want)
		}
	}
	looks("a new process", comparisons+1, comparisons+1) // from the first difference on
	looks("nothing changes", 10*seldom, 10)
	slot.MemBegun, slot.MemDone = 2, 2
	looks("it has allocated", comparisons, comparisons)
	looks("nothing changes", 10*seldom, 10)
	c.procs[0].Memory = 1500
	looks("the card counts more", 2*seldom, seldom+1)
	if f.outside[7] != 500 {
		t.Errorf("outside %d, want 500", f.outside[7])
	}
	looks("shortly after", comparisons-seldom, comparisons-seldom)
	looks("nothing changes", 10*seldom, 10)
	slot.Cards = []libvgpu.SlotCard{slot.Cards[0]}
	slot.Cards[0].Launches = 1
	looks("it has begun to work", comparisons, comparisons)
	f.add(7, 30, memView())
	if m.step(); f.outside[7] != 0 {
		t.Errorf("outside %d of a job without processes, want 0", f.outside[7])
	}
}

// The driver frees the memory of a killed process a moment after its death.
func TestMeasureKeepsADeadProcessForAMoment(t *testing.T) {
	f := &fakeMemory{newFakeGrants(), map[uint32]int64{}}
	c := &fakeCounter{procs: []driver.Process{{PID: 1, Memory: 1400}, {PID: 2, Memory: 1100}}}
	m := NewMeasurer(f, c, nothing, slog.New(slog.DiscardHandler))
	living, dead := memSlot(1, 1000, 0, 1, 1), memSlot(2, 1000, 0, 1, 1)
	f.add(7, 30, memView(living, dead))
	m.step()
	dead.Alive, dead.OnHost, dead.Gone = false, false, true
	c.procs = c.procs[:1]
	f.add(7, 30, memView(living, dead))
	for range mourning {
		if m.step(); f.outside[7] != 500 {
			t.Errorf("outside %d just after a death, want 500", f.outside[7])
		}
	}
	if m.step(); f.outside[7] != 400 {
		t.Errorf("outside %d some time after a death, want 400", f.outside[7])
	}
}

// The job's user can write any UUID into the cache. gresd asks the card of the grant.
func TestMeasureAsksTheCardOfTheGrant(t *testing.T) {
	f := &fakeMemory{newFakeGrants(), map[uint32]int64{}}
	c := &fakeCounter{procs: []driver.Process{{PID: 1, Memory: 1400}}, cards: map[gpu.UUID]bool{}}
	var log strings.Builder
	m := NewMeasurer(f, c, nothing, slog.New(slog.NewTextHandler(&log, nil)))
	for i := range 100 {
		view := memView(memSlot(1, 1000, 0, 1, 1))
		view.Cards[0].UUID = fmt.Sprint("forged-", i)
		f.add(7, 30, view)
		m.step()
	}
	if f.outside[7] != 400 || len(c.cards) != 1 || !c.cards["A"] {
		t.Errorf("outside %d, asked %v: want 400 from card A alone", f.outside[7], c.cards)
	}
	if lines := strings.Count(log.String(), "level=WARN"); lines > 1 || len(m.said) > 1 {
		t.Errorf("%d warnings, %d cards noted: want at most one of each", lines, len(m.said))
	}
}

// A user can break the cache for a moment. The measurer must not sleep then.
func TestMeasureStaysAwakeForABrokenCache(t *testing.T) {
	f := &fakeMemory{newFakeGrants(), map[uint32]int64{}}
	m := NewMeasurer(f, &fakeCounter{}, nothing, slog.New(slog.DiscardHandler))
	f.add(7, 30, memView(memSlot(1, 1000, 0, 1, 1)))
	f.errs[7] = libvgpu.ErrNotCache
	if awake := m.step(); awake != 1 {
		t.Errorf("%d jobs awake with an unreadable cache, want 1", awake)
	}
	delete(f.errs, 7)
	f.add(7, 30, libvgpu.CacheView{Cards: make([]libvgpu.CacheCard, 2)})
	if awake := m.step(); awake != 1 {
		t.Errorf("%d jobs awake with a cache of two cards, want 1", awake)
	}
	f.add(7, 30, libvgpu.CacheView{Asleep: true, Cards: make([]libvgpu.CacheCard, 1)})
	if awake := m.step(); awake != 0 {
		t.Errorf("%d jobs awake, want none", awake)
	}
}
