// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/inventory"
)

type fakeUses struct {
	uses  []inventory.Use
	err   error
	asked atomic.Int32
	block chan struct{}
}

func (f *fakeUses) Utilization(gpu.UUID, time.Time) ([]inventory.Use, error) {
	f.asked.Add(1)
	if f.block != nil {
		<-f.block
	}
	return f.uses, f.err
}

// told waits until the answer to the question that of asks is there.
func told(t *testing.T, tr *truth, pids []uint32, now time.Time) (float64, bool) {
	t.Helper()
	tr.of("A", pids, now)
	for start := time.Now(); time.Since(start) < 2*time.Second; time.Sleep(time.Millisecond) {
		tr.mu.Lock()
		asking := tr.card["A"].asking
		tr.mu.Unlock()
		if !asking {
			break
		}
	}
	h := tr.of("A", pids, now)
	return h.part, h.known
}

func TestTruthIsTheMeanOfTheDriversSamples(t *testing.T) {
	f := &fakeUses{uses: []inventory.Use{{PID: 1, Percent: 20}, {PID: 1, Percent: 30}, {PID: 2, Percent: 40}}}
	tr, now := newTruth(f), time.Now()
	if part, known := told(t, tr, []uint32{1, 2}, now); !known || part != 0.65 {
		t.Errorf("got %v, %v; want 0.65", part, known)
	}
	if tr.of("A", []uint32{3}, now).known {
		t.Error("a process that is not listed has a figure")
	}
	if tr.of("A", []uint32{1}, now.Add(900*time.Millisecond)); f.asked.Load() != 1 {
		t.Errorf("asked %d times within a second", f.asked.Load())
	}
	f.err = errors.New("lost")
	if _, known := told(t, tr, []uint32{1}, now.Add(truthFor+time.Second)); known {
		t.Error("an old answer counts while the driver gives none")
	}
	var none *truth
	if none.of("A", []uint32{1}, now).known {
		t.Error("nobody to ask, and an answer")
	}
}

func TestADriverThatHangsHoldsNobodyUp(t *testing.T) {
	f := &fakeUses{block: make(chan struct{})}
	defer close(f.block)
	tr, now := newTruth(f), time.Now()
	for i := range 20 {
		tr.of("A", []uint32{1}, now.Add(time.Duration(i)*time.Second))
	}
	if n := f.asked.Load(); n > 1 {
		t.Errorf("asked %d times while it had not answered", n)
	}
}

func TestWhatIsChargedIsCorrected(t *testing.T) {
	for _, c := range []struct{ charged, real, want float64 }{
		{0.29, 0.35, 0.35},
		{0.30, 0.24, 0.24},
		{0.3, 0.3, 0.3},
		{0.10, 0.90, 0.20}, // not more than twice
		{0.60, 0.10, 0.30}, // not less than half
	} {
		var s jobState
		now, step := time.Now(), 50*time.Millisecond
		var got, sum float64
		for i := range 400 {
			at := now.Add(time.Duration(i) * step)
			used := uint64(c.charged * float64(step))
			s.note(used, at)
			got = s.corrected(used, had{part: c.real, at: at.Truncate(time.Second), known: i > 40}) / float64(step)
			sum += got
		}
		if got < c.want-0.01 || got > c.want+0.01 {
			t.Errorf("charged %.2f, had %.2f: corrected to %.3f, want %.2f", c.charged, c.real, got, c.want)
		}
		if sum /= 400; sum < c.want-0.02 || sum > c.want+0.02 {
			t.Errorf("charged %.2f, had %.2f: %.3f on the average of 20 s, want %.2f with what was made good", c.charged, c.real, sum, c.want)
		}
	}
}

// A job that has just begun: the driver's figure is of a time of which its own account
// knows only a part. Nothing is learned from that.
func TestABeginningTeachesNothing(t *testing.T) {
	var s jobState
	begin, step := time.Now().Truncate(time.Second), 15*time.Millisecond
	var sum float64
	n := 0.0
	for at := begin; at.Before(begin.Add(10 * time.Second)); at = at.Add(step) {
		used := uint64(0.25 * float64(step))
		s.note(used, at)
		sum += s.corrected(used, had{part: 0.25, at: at.Truncate(time.Second), known: true}) / float64(step)
		n++
		if s.scale < 0.98 || s.scale > 1.02 {
			t.Fatalf("%v after the beginning: the account is scaled by %.3f, and was right", at.Sub(begin), s.scale)
		}
	}
	if sum /= n; sum < 0.248 || sum > 0.252 {
		t.Errorf("0.25 corrected to %.4f on the average", sum)
	}
	if n := len(s.history); n > 1000 {
		t.Errorf("%d looks are remembered", n)
	}
}
