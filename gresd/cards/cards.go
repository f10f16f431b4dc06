// SPDX-License-Identifier: Apache-2.0

// Package cards is the cards of this node as they are now: what the driver says of them, how they
// are joined, and which of them must not be granted.
package cards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/health"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// Driver is what is asked of the driver.
type Driver interface {
	Cards() ([]gpu.Card, error)
	Topology() (topology.Facts, error)
}

// Health knows which cards must not be granted.
type Health interface {
	Out(gpu.UUID) string // why, "" for a card that may be granted
	Sick() map[gpu.UUID]string
	Cordon(uuid gpu.UUID, reason string) error
	Uncordon(uuid gpu.UUID) (was bool, err error)
	health.Memory
}

// ErrSick: the request was not placed, and a card that it could have had is out
// of use. It may be placed later.
var ErrSick = errors.New("a card is out of use")

// ErrUnread: the driver has not named the cards of this node yet.
var ErrUnread = errors.New("the driver has not named the cards of this node yet")

// unreadable is a card that only the driver finds sick.
const unreadable = "the driver cannot read it"

// Cards are those of this node. Make them with [Read].
type Cards struct {
	Health
	driver Driver
	config *config.InForce
	log    *slog.Logger

	now atomic.Pointer[State]
	mu  sync.Mutex // orders changes; never held while the driver is asked
}

// State is the last good answer of the driver. It must not be changed.
type State struct {
	Cards     []gpu.Card
	Topology  *topology.Topology // nil: not known
	Distances place.Distances    // of Topology; nil: not known
	Err       error              // what was wrong with the cards, nil for nothing
	// read are the cards that the driver could read, the sick ones included.
	read map[gpu.UUID]bool

	topologyRead time.Time
}

// Read asks the driver for the first time.
func Read(driver Driver, health Health, inForce *config.InForce, log *slog.Logger) *Cards {
	c := &Cards{Health: health, driver: driver, config: inForce, log: log}
	c.Refresh()
	c.WarnOfAbsent()
	return c
}

// Now is how the cards are.
func (c *Cards) Now() *State { return c.now.Load() }

// Unread is ErrUnread until the driver has named the cards for the first time.
func (c *Cards) Unread() error {
	now := c.Now()
	var unread *driver.CardError // it has named a card
	if len(now.Cards) > 0 || now.Err == nil || errors.As(now.Err, &unread) {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrUnread, now.Err)
}

// RefreshAfter is the time between two questions while the driver has named no card.
const RefreshAfter = time.Second

// Await waits until the driver has named the cards. Without persistence mode, the first
// question can take more than a minute.
func (c *Cards) Await(ctx context.Context) error {
	for {
		err := c.Unread()
		if err == nil || !wakeup.Wait(ctx, RefreshAfter) {
			return err
		}
	}
}

// Refresh asks the driver again. An answer without any card does not
// replace one with cards: the driver may be reloading.
func (c *Cards) Refresh() {
	cards, err := c.driver.Cards()
	for i, card := range cards {
		cards[i] = c.config.Get().Card(card.UUID).Apply(card)
	}
	old := c.Now()
	var unread *driver.CardError
	if old != nil && errors.As(err, &unread) {
		cards = withLost(cards, old.Cards)
	}
	next := &State{Cards: cards, Err: err}
	if len(cards) == 0 && old != nil {
		next.Cards, next.read = old.Cards, old.read
		next.Topology, next.Distances, next.topologyRead = old.Topology, old.Distances, old.topologyRead
	} else {
		c.refreshTopology(next, old)
	}
	if err != nil && (old == nil || old.Err == nil || old.Err.Error() != err.Error()) {
		c.log.Warn("some cards cannot be read", "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.Store(c.judged(next))
}

// Judge is called when a card became sick or well. It says whether the driver could read the card.
func (c *Cards) Judge(uuid gpu.UUID) (readable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.judged(c.Now())
	c.now.Store(next)
	return next.read[uuid]
}

// judged is a state with the cards that must not be granted marked.
func (c *Cards) judged(state *State) *State {
	next := *state
	next.Cards = slices.Clone(state.Cards)
	if next.read == nil {
		next.read = map[gpu.UUID]bool{}
		for _, card := range next.Cards {
			next.read[card.UUID] = card.Healthy
		}
	}
	for i, card := range next.Cards {
		next.Cards[i].Healthy = next.read[card.UUID] && c.Out(card.UUID) == ""
	}
	return &next
}

// withLost adds cards that were there and cannot be read any more: their jobs
// still live, and Slurm still counts them.
func withLost(cards, old []gpu.Card) []gpu.Card {
	for _, c := range old {
		here := func(other gpu.Card) bool { return other.UUID == c.UUID || other.Index == c.Index }
		if !slices.ContainsFunc(cards, here) {
			c.Healthy = false
			cards = append(cards, c)
		}
	}
	slices.SortFunc(cards, func(a, b gpu.Card) int { return a.Index - b.Index })
	return cards
}

// WarnOfAbsent names settings of cards that are not here: a card that was
// replaced has another UUID.
func (c *Cards) WarnOfAbsent() {
	for uuid := range c.config.Get().Cards {
		if _, here := c.Of(gpu.UUID(uuid)); uuid != config.AllCards && !here {
			c.log.Warn("the configuration names a card that this node does not have", "gpu_uuid", uuid)
		}
	}
}

// IDs are the cards of this node, lost ones included.
func (c *Cards) IDs() []gpu.UUID {
	var ids []gpu.UUID
	for _, card := range c.Now().Cards {
		ids = append(ids, card.UUID)
	}
	return ids
}

// Of is the card with a UUID.
func (c *Cards) Of(uuid gpu.UUID) (card gpu.Card, here bool) {
	for _, card := range c.Now().Cards {
		if card.UUID == uuid {
			return card, true
		}
	}
	return gpu.Card{}, false
}

// At are the cards with those indexes, in the order of the node.
func (c *Cards) At(indexes []int) []gpu.UUID {
	var uuids []gpu.UUID
	for _, card := range c.Now().Cards {
		if slices.Contains(indexes, card.Index) {
			uuids = append(uuids, card.UUID)
		}
	}
	return uuids
}

// Name is how messages call a card: its index and its UUID.
func (c *Cards) Name(uuid gpu.UUID) string {
	if card, here := c.Of(uuid); here {
		return fmt.Sprintf("%d (%s)", card.Index, uuid)
	}
	return string(uuid)
}

// Find finds a card by index or UUID; one that was taken out of the node, but
// is still known to be sick, by its UUID.
func (c *Cards) Find(word string) (gpu.UUID, bool) {
	index, err := strconv.Atoi(word)
	for _, card := range c.Now().Cards {
		if string(card.UUID) == word || err == nil && card.Index == index {
			return card.UUID, true
		}
	}
	_, sick := c.Sick()[gpu.UUID(word)]
	return gpu.UUID(word), sick
}

// Example is how a card of this node can be named.
func (c *Cards) Example() string {
	if cards := c.Now().Cards; len(cards) > 0 {
		return fmt.Sprintf("%d or %s", cards[0].Index, cards[0].UUID)
	}
	return "0; this node has none"
}

// WhyNot says why a card is not granted; "" where it is.
func (c *Cards) WhyNot(card gpu.Card) string {
	why := c.Out(card.UUID)
	switch {
	case card.Healthy && !card.MIG:
		return ""
	case card.MIG && card.Healthy:
		return "in MIG mode, and no instance that gresd shares"
	case why == "":
		return unreadable
	}
	return why
}

// Problems are the sick cards, for an administrator.
func (c *Cards) Problems() []string {
	var problems []string
	sick := c.Sick()
	for _, uuid := range slices.Sorted(maps.Keys(sick)) {
		then := "vgpuctl uncordon puts it back to use"
		if c.Out(uuid) == "" {
			then = `it is still granted, as [health] action = "none" says`
		}
		problems = append(problems, fmt.Sprintf("card %s: %s; %s", c.Name(uuid), sick[uuid], then))
	}
	return problems
}

// UnreadCards describes the cards that gresd could never read. It adds the sick cards that may be
// these: after a restart, gresd does not know the index of a lost card.
func (c *Cards) UnreadCards() []string {
	now := c.Now()
	var all []string
	for _, err := range unread(now.Err) {
		all = append(all, err.Error())
	}
	known := 0 // of them: gresd has read them before
	for _, card := range now.Cards {
		if !now.read[card.UUID] {
			known++
		}
	}
	if len(all) <= known {
		return nil
	}
	sick := c.Sick()
	for _, uuid := range slices.Sorted(maps.Keys(sick)) {
		if _, here := c.Of(uuid); !here {
			all = append(all, fmt.Sprintf("card %s: %s", uuid, sick[uuid]))
		}
	}
	return all
}

// unread are the cards of an error of the driver that it could not read.
func unread(err error) []*driver.CardError {
	var card *driver.CardError
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []*driver.CardError
		for _, err := range joined.Unwrap() {
			all = append(all, unread(err)...)
		}
		return all
	}
	if errors.As(err, &card) && card.NVMLIndex >= 0 {
		return []*driver.CardError{card}
	}
	return nil
}

// WithSick adds to the error of a decision which cards were out of use, unless
// it was about the request alone. A card that cannot be read is out of use, too.
func (c *Cards) WithSick(d place.Decision, err error) error {
	if !errors.Is(err, place.ErrNoCard) {
		return err
	}
	if unread := c.Unread(); unread != nil {
		return unread
	}
	var out []string
	for _, v := range d.Verdicts {
		if v.Reason == place.Unhealthy {
			out = append(out, fmt.Sprintf("card %d: %s", v.Index, cmp.Or(c.Out(v.UUID), unreadable)))
		}
	}
	if failed := c.Now().Err; failed != nil {
		out = append(out, strings.ReplaceAll(failed.Error(), "\n", "; "))
	}
	switch {
	case len(out) > 0:
		return fmt.Errorf("%w: %w: %s", err, ErrSick, strings.Join(out, "; "))
	case errors.Is(err, place.ErrChoice):
		return fmt.Errorf("%w: %w", err, ErrSick)
	}
	return err
}

// topologyAge is how old the topology may be while the cards are the same: it
// changes with a link that goes down, and costs hundreds of questions.
const topologyAge = 10 * time.Minute

// refreshTopology fills in next, which has its cards, from the driver or from old.
func (c *Cards) refreshTopology(next, old *State) {
	same := old != nil && old.Topology != nil && slices.EqualFunc(old.Cards, next.Cards, samePlace)
	if same {
		next.Topology, next.Distances, next.topologyRead = old.Topology, old.Distances, old.topologyRead
		if time.Since(old.topologyRead) < topologyAge {
			return
		}
	}
	facts, err := c.driver.Topology()
	if err != nil { // the next call asks it again
		c.log.Warn("topology cannot be read", "error", err, "known", same)
		return
	}
	t := topology.New(facts)
	next.Topology, next.Distances, next.topologyRead = t, t.Matrix(), time.Now()
	if len(facts.Unread) > 0 {
		next.topologyRead = time.Time{} // the driver may answer the next time
	}
	var said []string
	if old != nil && old.Topology != nil {
		said = old.Topology.Warnings
	}
	for _, warning := range t.Warnings {
		if !slices.Contains(said, warning) {
			c.log.Warn("topology", "warning", warning)
		}
	}
}

func samePlace(a, b gpu.Card) bool {
	return a.UUID == b.UUID && a.Index == b.Index && a.PCIBusID == b.PCIBusID && a.MIG == b.MIG
}
