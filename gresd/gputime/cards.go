// SPDX-License-Identifier: Apache-2.0

// Package cardstat asks the driver what cards do, for whoever wants to know:
// metrics, vgpuctl. Whatever their number, a card is asked at most once a
// second, and nobody waits for a driver that hangs.
package gputime

import (
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

const (
	// every is the least time between two questions to a card.
	every = time.Second
	// fresh is how old an answer may be.
	fresh = 5 * time.Second
	// patience is how long a question of ours may take before who asked goes on
	// without its answer.
	patience = 300 * time.Millisecond
	// span is the time over which the use by processes is averaged: the driver's
	// samples are up to a second long.
	span = 2500 * time.Millisecond
)

// Driver is what the sampler asks. Its calls return in a bounded time.
type Driver interface {
	Usage(gpu.UUID) (driver.Usage, error)
	Utilization(gpu.UUID, time.Time) ([]driver.Use, error)
}

// Card is what one card did lately.
type Card struct {
	driver.Usage
	At time.Time
	// byPID is the part of the card's time that processes had, in percent, by pid
	// of the host; nil: not known. Who is not listed had none.
	byPID map[uint32]float64
}

// Process returns the part of the card's time that a process of the host had
// lately, 0 to 1; false where the driver does not tell.
func (c Card) Process(pid uint32) (part float64, known bool) {
	return min(1, c.byPID[pid]/100), c.byPID != nil
}

// Sampler asks. It is safe for concurrent use.
type Sampler struct {
	driver  Driver
	observe func(time.Duration)
	now     func() time.Time

	mu    sync.Mutex
	cards map[gpu.UUID]*state
}

type state struct {
	card   Card // with a zero At before the first answer
	asked  time.Time
	asking chan struct{} // closed with the answer; nil: no question is open
}

// NewSampler returns a sampler that asks nothing before [Sampler.Cards]. observe is
// told how long each answer took.
func NewSampler(driver Driver, observe func(time.Duration)) *Sampler {
	return &Sampler{driver: driver, observe: observe, now: time.Now, cards: map[gpu.UUID]*state{}}
}

// Cards returns what cards did lately. Those that did not answer for a while
// are absent.
func (s *Sampler) Cards(uuids []gpu.UUID) map[gpu.UUID]Card {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	var open []chan struct{}
	for _, uuid := range uuids {
		if asking := s.ask(uuid); asking != nil {
			open = append(open, asking)
		}
	}
wait:
	for _, asking := range open {
		select {
		case <-asking:
		case <-deadline.C:
			break wait
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[gpu.UUID]Card{}
	for _, uuid := range uuids {
		if st := s.cards[uuid]; !st.card.At.IsZero() && s.now().Sub(st.card.At) <= fresh {
			found[uuid] = st.card
		}
	}
	return found
}

// ask asks about a card, if that is due, and returns what to wait for: nil
// where the answer is there, or overdue.
func (s *Sampler) ask(uuid gpu.UUID) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, now := s.cards[uuid], s.now()
	if st == nil {
		st = &state{}
		s.cards[uuid] = st
	}
	switch {
	case st.asking != nil && now.Sub(st.asked) > patience:
		return nil
	case st.asking == nil && now.Sub(st.asked) >= every:
		st.asked, st.asking = now, make(chan struct{})
		go s.answer(uuid, st, now)
	}
	return st.asking
}

func (s *Sampler) answer(uuid gpu.UUID, st *state, now time.Time) {
	usage, err := s.driver.Usage(uuid)
	card := Card{Usage: usage, At: now}
	if err == nil {
		if uses, unknown := s.driver.Utilization(uuid, now.Add(-span)); unknown == nil {
			card.byPID = driver.Mean(uses)
		}
	}
	s.mu.Lock()
	if err == nil {
		st.card = card
	}
	close(st.asking)
	st.asking = nil
	took := s.now().Sub(now)
	s.mu.Unlock()
	s.observe(took)
}
