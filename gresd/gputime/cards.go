// SPDX-License-Identifier: Apache-2.0

package gputime

import (
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

const (
	// every is the least time between two questions to a card. [Sampler.Look] does not wait for it.
	every = time.Second
	// fresh is how old an answer may be.
	fresh = 5 * time.Second
	// patience is how long a question of ours may take before who asked goes on
	// without its answer.
	patience = 300 * time.Millisecond
	// latelySpan is the time over which [Card.Process] averages: the driver's samples are up to a
	// second long. A question covers no more time than this.
	latelySpan = 2500 * time.Millisecond
	// meanSpan is the time over which [Card.Percent] averages.
	meanSpan = 10 * time.Second
	// lateSamples is the time that the driver may need to publish a sample.
	lateSamples = 500 * time.Millisecond
	// clockSet is how far the driver's clock may be ahead of ours.
	clockSet = time.Second
)

// Driver answers the sampler. Its calls return in a bounded time.
type Driver interface {
	Usage(gpu.UUID) (driver.Usage, error)
	Utilization(gpu.UUID, time.Time) ([]driver.Use, error)
}

// Look is one answer of the driver: the percentage of the time that processes worked, by pid of the
// host. A process that is not listed did not work.
type Look struct {
	Since, Until time.Time
	Percent      map[uint32]float64
	// Several: there was more than one sample of a process. These need not cover all the time.
	Several bool
}

// lookOf makes a look of the driver's samples since a time, after the last look. Without samples no
// process worked; false: not even that is new.
func lookOf(samples []driver.Use, since, now time.Time, last Look) (l Look, ok bool) {
	l = Look{Since: since, Until: now, Percent: driver.Mean(samples)}
	l.Several = len(l.Percent) < len(samples)
	if len(samples) == 0 {
		if l.Until = now.Add(-lateSamples); last.Until.After(since) {
			l.Since = last.Until
		}
		return l, l.Until.After(l.Since)
	}
	var newest uint64
	for _, s := range samples {
		newest = max(newest, s.TimeUS)
	}
	if until := time.UnixMicro(int64(newest)); until.After(since) {
		l.Until = until
	}
	return l, true
}

// Card is the recent use of one card.
type Card struct {
	driver.Usage
	At    time.Time
	looks []Look // of the last meanSpan, the newest last; nil: not known
}

// Process returns the part of the card's time that a process of the host had
// lately, 0 to 1; false where the driver does not tell.
func (c Card) Process(pid uint32) (part float64, known bool) {
	if c.looks == nil {
		return 0, false
	}
	percent, _ := mean(c.looks, latelySpan)
	return min(1, percent[pid]/100), true
}

// Percent is the mean use by pid over the last ten seconds; nil if that is not known.
func (c Card) Percent() map[uint32]float64 {
	percent, span := mean(c.looks, meanSpan)
	if span < meanSpan-every/2 {
		return nil
	}
	return percent
}

// mean averages the newest looks that cover a time.
func mean(looks []Look, most time.Duration) (percent map[uint32]float64, span time.Duration) {
	percent = map[uint32]float64{}
	for _, l := range slices.Backward(looks) {
		if span >= most {
			break
		}
		span += l.Until.Sub(l.Since)
		for pid, p := range l.Percent {
			percent[pid] += p * float64(l.Until.Sub(l.Since))
		}
	}
	for pid := range percent {
		percent[pid] /= float64(max(1, span))
	}
	return percent, span
}

// Sampler asks the driver for the use of cards. It asks a card at most once a second for all callers, and
// no caller waits for a driver that hangs. It is safe for concurrent use.
type Sampler struct {
	driver  Driver
	observe func(time.Duration)
	now     func() time.Time

	mu    sync.Mutex
	cards map[gpu.UUID]*state
}

type state struct {
	card   Card // with a zero At before the first answer
	newest time.Time
	asked  time.Time
	asking chan struct{} // closed with the answer; nil: no question is open
}

// NewSampler returns a sampler that asks nothing before [Sampler.Cards]. It calls observe with the time
// that each answer took.
func NewSampler(driver Driver, observe func(time.Duration)) *Sampler {
	return &Sampler{driver: driver, observe: observe, now: time.Now, cards: map[gpu.UUID]*state{}}
}

// Cards returns what cards did lately. Those that did not answer for a while
// are absent.
func (s *Sampler) Cards(uuids []gpu.UUID) map[gpu.UUID]Card { return s.cardsOf(uuids, every) }

// Look asks a card now, and returns its looks that end after a time.
func (s *Sampler) Look(uuid gpu.UUID, after time.Time) (card Card, looks []Look) {
	card = s.cardsOf([]gpu.UUID{uuid}, 0)[uuid]
	i := slices.IndexFunc(card.looks, func(l Look) bool { return l.Until.After(after) })
	if i < 0 {
		return card, nil
	}
	return card, card.looks[i:]
}

func (s *Sampler) cardsOf(uuids []gpu.UUID, age time.Duration) map[gpu.UUID]Card {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	var open []chan struct{}
	for _, uuid := range uuids {
		if asking := s.ask(uuid, age); asking != nil {
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

// ask asks about a card, if its last answer has an age, and returns what to wait for: nil
// where the answer is there, or overdue.
func (s *Sampler) ask(uuid gpu.UUID, age time.Duration) chan struct{} {
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
	case st.asking == nil && now.Sub(st.asked) >= age:
		st.asked, st.asking = now, make(chan struct{})
		go s.answer(uuid, st, st.since(now), now)
	}
	return st.asking
}

// since is the time after which samples are new. Samples have the time of day. When that was set back,
// the samples until then say nothing about newer ones.
func (st *state) since(now time.Time) time.Time {
	if st.newest.After(now.Add(clockSet)) {
		st.newest, st.card.looks = time.Time{}, nil
	}
	if oldest := now.Add(-latelySpan); st.newest.Before(oldest) {
		return oldest
	}
	return st.newest
}

func (s *Sampler) answer(uuid gpu.UUID, st *state, since, now time.Time) {
	usage, err := s.driver.Usage(uuid)
	var uses []driver.Use
	unknown := err
	if err == nil {
		uses, unknown = s.driver.Utilization(uuid, since)
	}
	s.mu.Lock()
	if err == nil {
		card := Card{Usage: usage, At: now}
		if unknown == nil {
			looks, last := append([]Look{}, st.card.looks...), Look{}
			if n := len(looks); n > 0 {
				last = looks[n-1]
			}
			if look, ok := lookOf(uses, since, now, last); ok {
				looks = append(looks, look)
				if len(uses) > 0 {
					st.newest = look.Until
				}
			}
			card.looks = slices.DeleteFunc(looks, func(l Look) bool { return now.Sub(l.Until) > meanSpan+2*every })
		}
		st.card = card
	}
	close(st.asking)
	st.asking = nil
	took := s.now().Sub(now)
	s.mu.Unlock()
	s.observe(took)
}
