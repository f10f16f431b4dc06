// SPDX-License-Identifier: Apache-2.0

package gputime

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

type fakeDriver struct {
	mu    sync.Mutex
	hang  chan struct{} // until it is closed
	usage driver.Usage
	uses  []driver.Use
	err   error // of Usage
	not   error // of Utilization
	asked atomic.Int32
}

func (f *fakeDriver) Usage(uuid gpu.UUID) (driver.Usage, error) {
	f.asked.Add(1)
	f.mu.Lock()
	hang := f.hang
	f.mu.Unlock()
	if hang != nil && uuid == "GPU-a" {
		<-hang
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.usage, f.err
}

func (f *fakeDriver) Utilization(gpu.UUID, time.Time) ([]driver.Use, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.uses, f.not
}

func (f *fakeDriver) set(change func(*fakeDriver)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// newSampler has a clock that only moves when told.
func newSampler(f *fakeDriver) (s *Sampler, pass func(time.Duration)) {
	s = NewSampler(f, func(time.Duration) {})
	var now atomic.Int64
	s.now = func() time.Time { return time.Unix(1000, now.Load()) }
	return s, func(d time.Duration) { now.Add(int64(d)) }
}

func TestACardIsAskedOnceASecondWhoeverAsks(t *testing.T) {
	f := &fakeDriver{usage: driver.Usage{Memory: 7}}
	s, pass := newSampler(f)
	var clients sync.WaitGroup
	for range 50 {
		clients.Go(func() {
			if got := s.Cards([]gpu.UUID{"GPU-a"}); got["GPU-a"].Memory != 7 {
				t.Errorf("got %+v", got)
			}
		})
	}
	clients.Wait()
	pass(every / 2)
	s.Cards([]gpu.UUID{"GPU-a"})
	if n := f.asked.Load(); n != 1 {
		t.Errorf("asked %d times within a second, want once", n)
	}
	pass(every / 2)
	s.Cards([]gpu.UUID{"GPU-a"})
	if n := f.asked.Load(); n != 2 {
		t.Errorf("asked %d times, want once more after a second", n)
	}
}

func TestADriverThatHangsDelaysNobodyTwice(t *testing.T) {
	f := &fakeDriver{usage: driver.Usage{Memory: 7}}
	s, pass := newSampler(f)
	both := []gpu.UUID{"GPU-a", "GPU-b"}
	if got := s.Cards(both); len(got) != 2 {
		t.Fatalf("got %+v", got)
	}
	hang := make(chan struct{})
	f.set(func(f *fakeDriver) { f.hang, f.usage.Memory = hang, 8 })
	pass(every)
	began := time.Now()
	if got := s.Cards(both); got["GPU-a"].Memory != 7 || got["GPU-b"].Memory != 8 {
		t.Errorf("a card that hangs shows its last answer, and others the new one: %+v", got)
	}
	if took := time.Since(began); took < patience/2 || took > 10*patience {
		t.Errorf("the first waited %s, want about %s", took, patience)
	}
	pass(patience + 1)
	began = time.Now()
	for range 100 {
		s.Cards(both)
	}
	if took := time.Since(began); took > patience {
		t.Errorf("a hundred more waited %s", took)
	}
	pass(fresh)
	if got := s.Cards(both); len(got) != 1 || got["GPU-b"].Memory != 8 {
		t.Errorf("an old answer is shown: %+v", got)
	}
	close(hang)
	for end := time.Now().Add(5 * time.Second); len(s.Cards(both)) != 2; time.Sleep(time.Millisecond) {
		if pass(every); time.Now().After(end) {
			t.Fatal("it answers again, and is still absent")
		}
	}
}

func TestWhatTheDriverDoesNotTellIsUnknown(t *testing.T) {
	f := &fakeDriver{usage: driver.Usage{Memory: 7}, not: driver.ErrUnknown}
	s, pass := newSampler(f)
	card := s.Cards([]gpu.UUID{"GPU-a"})["GPU-a"]
	if _, known := card.Process(5); known || card.Memory != 7 || card.Known {
		t.Errorf("got %+v", card)
	}
	f.set(func(f *fakeDriver) {
		f.not, f.uses = nil, []driver.Use{{PID: 5, Percent: 20}, {PID: 5, Percent: 40}, {PID: 6, Percent: 130}}
	})
	pass(every)
	card = s.Cards([]gpu.UUID{"GPU-a"})["GPU-a"]
	for pid, want := range map[uint32]float64{5: 0.3, 6: 1, 7: 0} {
		if got, known := card.Process(pid); !known || got != want {
			t.Errorf("process %d: %v, %v; want %v", pid, got, known, want)
		}
	}
	f.set(func(f *fakeDriver) { f.err = errors.New("lost") })
	pass(fresh + every)
	if got := s.Cards([]gpu.UUID{"GPU-a"}); len(got) != 0 {
		t.Errorf("a card that cannot be read: %+v", got)
	}
}

func TestUseIsAMean(t *testing.T) {
	f := &fakeDriver{}
	s, pass := newSampler(f)
	for i := range 12 {
		at := uint64(s.now().UnixMicro())
		f.set(func(f *fakeDriver) {
			f.uses = []driver.Use{{PID: 1, Percent: 50, TimeUS: at}}
			if i%2 == 0 {
				f.uses = append(f.uses, driver.Use{PID: 2, Percent: 100, TimeUS: at})
			}
		})
		card, looks := s.Look("GPU-a", s.now().Add(-1))
		if mean := card.Percent(); i < 7 && mean != nil {
			t.Fatalf("a mean after %d looks", i)
		} else if i == 11 && (mean[1] != 50 || mean[2] < 45 || mean[2] > 55) {
			t.Errorf("mean %v", mean)
		}
		if len(looks) != 1 || looks[0].Percent[1] != 50 {
			t.Errorf("look %d: %+v", i, looks)
		}
		pass(every)
	}
	f.set(func(f *fakeDriver) { f.uses = nil })
	if _, looks := s.Look("GPU-a", s.now().Add(-every)); len(looks) != 1 || len(looks[0].Percent) != 0 {
		t.Errorf("no samples: %+v, want a look in which no process worked", looks)
	}
}

func TestUseIsSeenAfterTheClockWasSetBack(t *testing.T) {
	f := &fakeDriver{}
	s, pass := newSampler(f)
	use := func() {
		at := uint64(s.now().UnixMicro())
		f.set(func(f *fakeDriver) { f.uses = []driver.Use{{PID: 1, Percent: 90, TimeUS: at}} })
		s.Look("GPU-a", s.now())
	}
	for range 12 {
		use()
		pass(every)
	}
	st := s.cards["GPU-a"]
	if since := st.since(s.now()); !since.Equal(s.now().Add(-every)) {
		t.Errorf("samples since %s, want the newest", since)
	}
	pass(-500 * time.Second)
	st.asked = time.Time{} // the real clock has a monotonic part, too
	if since := st.since(s.now()); !since.Equal(s.now().Add(-latelySpan)) || st.card.looks != nil {
		t.Errorf("set back: samples since %s, %d looks; want the last ones of the new time, and no look", since, len(st.card.looks))
	}
	use()
	pass(every)
	if since := st.since(s.now()); !since.Equal(s.now().Add(-every)) {
		t.Errorf("a second later: samples since %s", since)
	}
}
