// SPDX-License-Identifier: Apache-2.0

// Package ctxswitch tells how long each process had a card, by the records that the
// card's own scheduler makes of its context switches. They are exact and milliseconds
// old, where the driver's per-process utilization is a guess by a few samples a second
// and what a process measures of itself holds its neighbours' time (docs/adr/0008).
//
// It only reads. A driver without such records, or one that refuses them, is said
// once in the log, and the account stays unknown.
package gputime

import (
	"log/slog"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

const (
	// idle ends a trace that nobody asks for.
	idle = 10 * time.Second
	// stale is how old an account may be: the driver hangs.
	stale = time.Second
	// retry is the time until a driver that refused is asked again.
	retry = 10 * time.Minute
)

// Account is how processes used a card since some time in the past.
type Account struct {
	// Uses is by pid of the host, and not to be changed. A process that has not had the
	// card for a minute is forgotten, and begins anew should it come back.
	Uses map[uint32]Use
	At   time.Duration // up to then, since some time in the past
}

// Use is what a process had of a card. All of it only grows.
type Use struct {
	Had    time.Duration // on the card
	Waited time.Duration // off the card, each time for [WaitsFor] at most
	Turns  uint64        // how often it came to the card
}

// Since is the use since an earlier one; of a process that was forgotten meanwhile, all.
func (u Use) Since(before Use) Use {
	if u.Had < before.Had || u.Waited < before.Waited || u.Turns < before.Turns {
		return u
	}
	return Use{u.Had - before.Had, u.Waited - before.Waited, u.Turns - before.Turns}
}

// source is what reads the records of a card.
type source interface {
	read(f func(Switch)) (lost bool, err error)
	close() error
}

// Records has the accounts of the cards that gresd asks about.
type Records struct {
	find func(gpu.UUID) (gpu.Card, bool)
	open func(gpu.Card) (source, error)
	log  *slog.Logger

	mu    sync.Mutex
	cards map[gpu.UUID]*metered
}

type metered struct {
	ask     wakeup.Bell // a question
	refused time.Time   // when the driver last refused
	running bool
	account Account
	read    time.Time // when the account was; zero: never
}

// NewRecords returns an idle meter. Its work starts with the first question.
func NewRecords(find func(gpu.UUID) (gpu.Card, bool), log *slog.Logger) *Records {
	return &Records{
		find: find, log: log, cards: map[gpu.UUID]*metered{},
		open: func(card gpu.Card) (source, error) { return openTrace(card) },
	}
}

// OnCard returns the last account of a card, and has a new one made. It is false while
// nothing is known. It never waits for the driver.
func (m *Records) OnCard(card gpu.UUID) (Account, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.cards[card]
	if c == nil {
		c = &metered{ask: wakeup.NewBell()}
		m.cards[card] = c
	}
	if !c.running {
		if !c.refused.IsZero() && time.Since(c.refused) < retry {
			return Account{}, false
		}
		c.running = true
		go m.run(card, c)
	}
	c.ask.Ring()
	if c.read.IsZero() || time.Since(c.read) > stale {
		return Account{}, false
	}
	return c.account, true
}

// Refused says that the driver has refused the records of a card, when it was last asked.
func (m *Records) Refused(card gpu.UUID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.cards[card]
	return c != nil && !c.refused.IsZero()
}

// run reads a card's records at each question, until there are no more questions.
func (m *Records) run(uuid gpu.UUID, c *metered) {
	err := m.follow(uuid, c)
	m.mu.Lock()
	defer m.mu.Unlock()
	c.running, c.read = false, time.Time{}
	if err == nil {
		return
	}
	if c.refused.IsZero() {
		m.log.Warn("time on the card is not known exactly: its context switches cannot be read; shares of jobs whose host waits for results are less precise",
			"gpu_uuid", uuid, "error", err)
	}
	c.refused = time.Now()
}

func (m *Records) follow(uuid gpu.UUID, c *metered) error {
	card, ok := m.find(uuid)
	if !ok {
		return nil // it has gone
	}
	src, err := m.open(card)
	if err != nil {
		return err
	}
	defer src.close()
	m.log.Debug("reads the context switches of a card", "gpu_uuid", uuid)
	a := newAccount()
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		timer.Reset(idle)
		select {
		case <-c.ask:
		case <-timer.C:
			return nil
		}
		if err := step(src, a); err != nil {
			return err
		}
		m.mu.Lock()
		if at := a.upTo(); at != 0 {
			c.account, c.read, c.refused = Account{Uses: a.uses(), At: time.Duration(at)}, time.Now(), time.Time{}
		}
		m.mu.Unlock()
	}
}

// step brings an account up to now.
func step(src source, a *account) error {
	before := sinceStart()
	lost, err := src.read(func(s Switch) { a.add(s, sinceStart()) })
	if lost {
		a.lost()
	}
	if err != nil {
		return err
	}
	// Whoever left before the question was reported in the answer.
	a.until(before)
	a.forget(before)
	return nil
}

// sinceStart is a clock that nobody sets.
func sinceStart() int64 { return int64(time.Since(epoch)) }

var epoch = time.Now()
