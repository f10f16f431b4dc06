// SPDX-License-Identifier: Apache-2.0

// Package health watches the cards. A card that had a fault gets no new jobs
// (it is cordoned) until it was well for some time, or until an administrator
// says so; what is known outlives gresd. What makes a card sick is decided in
// rules.go, without effects.
package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// Driver is what the monitor asks. Its calls return in a bounded time.
type Driver interface {
	Probe(gpu.UUID) (driver.Probe, error)
	Events([]gpu.UUID) (*driver.Events, error)
}

// Params of a monitor.
type Params struct {
	Path        string        // of the file that keeps what is known
	Ignore      []uint64      // XIDs that leave the card in use
	CleanProbes uint32        // that make a card well; 0: only an administrator does
	Every       time.Duration // between two probes
	// ReportOnly leaves sick cards in use; the word of an administrator counts
	// all the same.
	ReportOnly bool
}

// Change is a card that became sick, that has another cause, or that is well.
type Change struct {
	UUID gpu.UUID
	Why  string // "" for a card that is well
	Out  bool   // the card must not be granted
	// Faulty: something is wrong with it; false where an administrator has cordoned
	// a card that is well.
	Faulty bool
}

// Set changes the rules for what comes: Ignore, CleanProbes, Every and
// ReportOnly. What is known of cards stays.
func (m *Monitor) Set(params Params) {
	m.mu.Lock()
	params.Path = m.params.Path
	m.params = params
	m.mu.Unlock()
	m.wake.Ring()
}

// current are the parameters in force.
func (m *Monitor) current() Params {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.params
}

// Monitor knows which cards must not be granted. It is safe for concurrent use.
type Monitor struct {
	driver Driver
	log    *slog.Logger
	wake   wakeup.Bell // the time between probes has changed

	mu      sync.Mutex
	params  Params
	state   document
	changed func(Change)
	unsaved bool
}

// Open reads what was known before. A file that cannot be read is an error:
// the word of an administrator may be in it.
func Open(params Params, driver Driver, log *slog.Logger) (*Monitor, error) {
	state, err := load(params.Path)
	if err != nil {
		return nil, err
	}
	m := &Monitor{params: params, driver: driver, log: log, state: state, wake: wakeup.NewBell()}
	for uuid, rec := range state.Cards {
		if why := words(rec); why != "" {
			log.Warn("card is still sick", "gpu_uuid", uuid, "reason", why)
		}
	}
	return m, nil
}

// OnChange sets what is told of changes. It must be set before [Monitor.Run].
// Changes may come at the same time, and not in their order: ask [Monitor.Out].
func (m *Monitor) OnChange(f func(Change)) { m.changed = f }

// Out says why a card must not be granted; "" when it may.
func (m *Monitor) Out(uuid gpu.UUID) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.out(m.state.Cards[uuid])
}

func (m *Monitor) out(rec Record) string {
	if m.params.ReportOnly && !rec.has(Operator) {
		return ""
	}
	return words(rec)
}

// Sick are the cards with a fault, each with what it is.
func (m *Monitor) Sick() map[gpu.UUID]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	sick := map[gpu.UUID]string{}
	for uuid, rec := range m.state.Cards {
		if why := words(rec); why != "" {
			sick[uuid] = why
		}
	}
	return sick
}

// words tell what is wrong, and since when it is.
func words(rec Record) string {
	var all []string
	for _, c := range rec.Causes {
		all = append(all, fmt.Sprintf("%s, since %s", c.Text, c.Since.Format("2006-01-02T15:04:05Z")))
	}
	return strings.Join(all, "; ")
}

// Cordon takes a card out of use until [Monitor.Uncordon]. It is on the disk
// when Cordon returns.
func (m *Monitor) Cordon(uuid gpu.UUID, reason string) error {
	text := "cordoned by an administrator"
	if reason != "" {
		text += ": " + reason
	}
	return m.change(uuid, func(rec Record) Record { return rec.with(Operator, text, time.Now()) })
}

// Uncordon forgets all that was wrong with a card. A fault that is still there
// is found again by the next probes. It reports whether there was one.
func (m *Monitor) Uncordon(uuid gpu.UUID) (was bool, err error) {
	err = m.change(uuid, func(rec Record) Record {
		was = len(rec.Causes) > 0
		return rec.without()
	})
	return was, err
}

// change changes one record, writes it down and tells of it. When the file
// cannot be written the change is in force all the same, except for an
// administrator's, who is told; the next change tries again.
func (m *Monitor) change(uuid gpu.UUID, f func(Record) Record) error {
	m.mu.Lock()
	before := m.state.Cards[uuid]
	after := f(before)
	m.state.Cards[uuid] = after
	var err error
	if !before.same(after) || m.unsaved {
		err = m.save()
	}
	change := Change{UUID: uuid, Why: words(after), Out: m.out(after) != "", Faulty: after.faulty()}
	told := m.changed
	m.mu.Unlock()

	was := words(before)
	switch {
	case change.Why == was:
		return err
	case change.Why == "":
		m.log.Warn("card is well again", "gpu_uuid", uuid, "was", was)
	case !change.Faulty:
		m.log.Warn("card is cordoned", "gpu_uuid", uuid, "reason", change.Why)
	default:
		m.log.Error("card is sick", "gpu_uuid", uuid, "reason", change.Why, "cordoned", change.Out)
	}
	if told != nil {
		told(change)
	}
	return err
}

// Run watches the cards, which may change, until ctx is done.
func (m *Monitor) Run(ctx context.Context, cards func() []gpu.UUID) {
	var parts sync.WaitGroup
	parts.Go(func() { m.listen(ctx, cards) })
	ticker := time.NewTicker(m.current().Every)
	defer ticker.Stop()
	for ctx.Err() == nil {
		m.probeAll(cards())
		select {
		case <-ctx.Done():
		case <-m.wake:
			ticker.Reset(m.current().Every)
		case <-ticker.C:
		}
	}
	parts.Wait()
}

// probeAll looks at all cards at once: one that hangs delays no other.
func (m *Monitor) probeAll(cards []gpu.UUID) {
	var looks sync.WaitGroup
	for _, uuid := range cards {
		looks.Go(func() {
			p, err := m.driver.Probe(uuid)
			rules := m.current()
			m.note(uuid, func(rec Record) Record { return rules.probe(rec, p, err, time.Now()) })
		})
	}
	looks.Wait()
}

// save writes the state. m.mu is locked.
func (m *Monitor) save() error {
	err := atomicfile.WriteJSON(m.params.Path, m.state)
	if m.unsaved = err != nil; m.unsaved {
		return fmt.Errorf("write state of cards: %w", err)
	}
	return nil
}

// Written are the texts of gresd that a node has in Slurm, or may have.
func (m *Monitor) Written(node string) Written {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Written[node]
}

// SetWritten replaces them. They are on the disk when it returns without an error.
func (m *Monitor) SetWritten(node string, all Written) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if reflect.DeepEqual(m.state.Written[node], all) {
		return nil
	}
	m.state.Written[node] = all
	if reflect.DeepEqual(all, Written{}) {
		delete(m.state.Written, node)
	}
	return m.save()
}

func (m *Monitor) note(uuid gpu.UUID, f func(Record) Record) {
	if err := m.change(uuid, f); err != nil {
		m.log.Error("what is known of a card is lost with the next restart", "gpu_uuid", uuid, "error", err)
	}
}

// noEventsFor is the time until a driver without events is asked for them again.
const noEventsFor = time.Minute

// listen waits for XIDs. Without them probes still find a card that is lost.
func (m *Monitor) listen(ctx context.Context, cards func() []gpu.UUID) {
	var events *driver.Events
	var heard []gpu.UUID
	defer func() {
		if events != nil {
			events.Close()
		}
	}()
	said := false
	for ctx.Err() == nil {
		now := slices.Sorted(slices.Values(cards()))
		if events != nil && !slices.Equal(now, heard) {
			events.Close()
			events = nil
		}
		if events == nil {
			var err error
			if events, err = m.driver.Events(now); err != nil {
				if !said {
					m.log.Warn("XIDs of cards are not heard", "error", err)
				}
				said = true
				pause := noEventsFor
				if errors.Is(err, driver.ErrNoAnswer) {
					pause = m.current().Every
				}
				wakeup.Wait(ctx, pause)
				continue
			}
			heard, said = now, false
		}
		event, any, err := events.Next(ctx)
		switch {
		case err != nil:
			m.log.Warn("XIDs of cards are not heard", "error", err)
			events.Close()
			events = nil
			wakeup.Wait(ctx, m.current().Every)
		case any:
			m.hear(event)
		}
	}
}

func (m *Monitor) hear(e driver.Event) {
	rules := m.current()
	m.log.Warn("XID", "gpu_uuid", e.UUID, "xid", e.XID, "name", gpu.XIDName(e.XID), "ignored", slices.Contains(rules.Ignore, e.XID))
	m.note(e.UUID, func(rec Record) Record { return rules.event(rec, e.XID, time.Now()) })
}
