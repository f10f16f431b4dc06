// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"slices"
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

// had is what the driver says of a span of time.
type had struct {
	part  float64   // of the card, that some processes had
	all   float64   // that all had
	at    time.Time // the span's end
	known bool
}

// of returns what processes had of a card lately. It never waits: a question that is
// due is asked in the background.
func (t *truth) of(card gpu.UUID, pids []uint32, now time.Time) (h had) {
	if t == nil || t.uses == nil {
		return h
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
		return h
	}
	h.at = a.at
	for _, pid := range pids {
		percent, listed := a.percent[pid]
		h.known = h.known || listed
		h.part += percent / 100
	}
	for _, percent := range a.percent {
		h.all += percent / 100
	}
	return h
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
	// leastUse of the span of an answer is enough to compare by.
	leastUse = 0.01
)

// charged is what a job's processes had charged in all at a time, in nanoseconds.
type charged struct {
	at  time.Time
	sum uint64
}

// between is what was charged from one time to another; false when that is not known
// of all of it. The history is in order of time.
func between(history []charged, from, to time.Time) (uint64, bool) {
	if len(history) == 0 || history[0].at.After(from) || history[len(history)-1].at.Before(to) {
		return 0, false
	}
	until := func(t time.Time) uint64 {
		i, _ := slices.BinarySearchFunc(history, t, func(c charged, t time.Time) int { return c.at.Compare(t) })
		return history[i].sum
	}
	return until(to) - until(from), true
}

// note adds to the history of what was charged.
func (s *jobState) note(used uint64, now time.Time) {
	sum := used
	if n := len(s.history); n > 0 {
		sum += s.history[n-1].sum
	}
	s.history = append(s.history, charged{now, sum})
	old := now.Add(-truthSpan - truthFor)
	if i := slices.IndexFunc(s.history, func(c charged) bool { return c.at.After(old) }); i > len(s.history)/2 {
		s.history = append(s.history[:0], s.history[i:]...)
	}
}

// corrected returns used, as its processes charged it, scaled to what the driver
// says of the same time. Where
// the two do not cover the same time, such as just after a job began to work, there
// is nothing to learn. What was counted wrongly since the last answer is made good.
func (s *jobState) corrected(used uint64, h had) float64 {
	gain, since := scaleGain, s.scaled
	if s.scale == 0 {
		s.scale = 1
	}
	if s.scaled.IsZero() {
		gain, since = 1, h.at.Add(-truthSpan)
	}
	own, all := between(s.history, h.at.Add(-truthSpan), h.at)
	rate := float64(own) / float64(truthSpan)
	if !h.known || !h.at.After(s.scaled) || !all || rate < leastUse {
		return float64(used) * s.scale
	}
	more := gain * (min(mostScale, max(leastScale, h.part/rate)) - s.scale)
	wrong, _ := between(s.history, since, h.at) // 0 when that is too long ago
	s.scale += more
	s.scaled = h.at
	return float64(used)*s.scale + float64(wrong)*more
}
