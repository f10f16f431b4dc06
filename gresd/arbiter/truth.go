// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/inventory"
)

// Uses is the driver's own account of the time that processes have a card.
type Uses interface {
	Utilization(card gpu.UUID, since time.Time) ([]inventory.Use, error)
}

const (
	// truthEvery is the time between two questions to the driver, truthSpan what it
	// is asked for: its samples are up to a second long.
	truthEvery = time.Second
	truthSpan  = 2500 * time.Millisecond
	// truthFor is how long an answer holds.
	truthFor = 3 * time.Second
)

// truth corrects what processes say of their use of a card. That is charged batch
// by batch and known at once, but beside neighbours it can be a fifth off (measured:
// PyTorch trainings that share an H200), for elapsed time holds others' slices. The
// driver's figure is right, and seconds old.
type truth struct {
	uses Uses
	mu   sync.Mutex
	card map[gpu.UUID]*answer
}

type answer struct {
	asking  bool
	asked   time.Time
	at      time.Time
	percent map[uint32]float64 // by pid
}

func newTruth(uses Uses) *truth { return &truth{uses: uses, card: map[gpu.UUID]*answer{}} }

// of returns the part of a card that processes had lately, and when that was
// learned; false when it is not known. It never waits: a question that is due is
// asked in the background.
func (t *truth) of(card gpu.UUID, pids []uint32, now time.Time) (part float64, at time.Time, known bool) {
	if t == nil || t.uses == nil {
		return 0, time.Time{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.card[card]
	if a == nil {
		a = &answer{}
		t.card[card] = a
	}
	if !a.asking && now.Sub(a.asked) >= truthEvery {
		a.asking, a.asked = true, now
		go t.ask(card, now)
	}
	if a.at.IsZero() || now.Sub(a.at) > truthFor {
		return 0, time.Time{}, false
	}
	for _, pid := range pids {
		percent, listed := a.percent[pid]
		known = known || listed
		part += percent / 100
	}
	return part, a.at, known
}

func (t *truth) ask(card gpu.UUID, now time.Time) {
	uses, err := t.uses.Utilization(card, now.Add(-truthSpan))
	sum, n := map[uint32]float64{}, map[uint32]float64{}
	for _, u := range uses {
		sum[u.PID] += float64(u.Percent)
		n[u.PID]++
	}
	for pid := range sum {
		sum[pid] /= n[pid]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.card[card]
	a.asking = false
	if err == nil && len(sum) > 0 {
		a.at, a.percent = now, sum
	}
}

// Bounds of a correction, and how fast it follows.
const (
	leastScale = 0.5
	mostScale  = 2.0
	scaleGain  = 0.4
	// rateSpan is over how long a job's own account is averaged for the comparison.
	rateSpan = 2 * time.Second
)

// corrected returns used, as its processes charged it, scaled to what the driver
// says of the same time.
func (s *jobState) corrected(used uint64, took time.Duration, part float64, at time.Time, known bool) float64 {
	if s.scale == 0 {
		s.scale = 1
	}
	if took > 0 {
		weight := min(1, float64(took)/float64(rateSpan))
		s.rate += weight * (float64(used)/float64(took) - s.rate)
	}
	if known && at.After(s.scaled) && s.rate > 0.01 {
		s.scaled = at
		s.scale += scaleGain * (min(mostScale, max(leastScale, part/s.rate)) - s.scale)
	}
	return float64(used) * s.scale
}
