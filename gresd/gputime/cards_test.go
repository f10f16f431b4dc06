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
