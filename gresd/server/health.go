// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/health"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// errSick: the request was not placed, and a card that it could have had is out
// of use. It may be placed later.
var errSick = errors.New("a card is out of use")

// unreadable is a card that only the driver finds sick.
const unreadable = "the driver cannot read it"

// tellEvery is the time until what slurmctld did not take is tried again.
const tellEvery = time.Minute

// told is what is still to be said to slurmctld.
type told struct {
	wake chan struct{}
	well atomic.Bool // a card became well

	// For tellSlurm alone: what slurmctld was told, and when it is asked again whether it
	// still says so.
	said string
	next time.Time

	mu      sync.Mutex
	notices []notice
}

type notice struct {
	jobID uint32
	text  string
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

// judged is the hardware with the cards that must not be granted marked. read
// says which of them the driver could read.
func (s *Server) judged(hw *hardware) *hardware {
	next := *hw
	next.cards = slices.Clone(hw.cards)
	if next.read == nil {
		next.read = map[gpu.UUID]bool{}
		for _, c := range next.cards {
			next.read[c.UUID] = c.Healthy
		}
	}
	for i, c := range next.cards {
		next.cards[i].Healthy = next.read[c.UUID] && s.Health.Out(c.UUID) == ""
	}
	return &next
}

// CardChanged is called when a card became sick or well. Jobs on it are told.
func (s *Server) CardChanged(c health.Change) {
	s.cardsMu.Lock()
	s.cards.Store(s.judged(s.cards.Load()))
	unread := !s.cards.Load().read[c.UUID]
	s.cardsMu.Unlock()
	s.room.changed()
	if c.Why == "" && unread {
		select {
		case s.reload <- struct{}{}: // it can be read again
		default:
		}
	}

	text := fmt.Sprintf("vgpu: health: card %s is well again", s.CardName(c.UUID))
	switch {
	case c.Faulty:
		text = fmt.Sprintf("vgpu: health: card %s: %s: what this job computes on it may be wrong or fail", s.CardName(c.UUID), c.Why)
	case c.Why != "":
		text = fmt.Sprintf("vgpu: health: card %s: %s: this job goes on, new ones do not get the card", s.CardName(c.UUID), c.Why)
	}
	for _, rec := range s.Ledger.List() {
		on := func(held place.CardShare) bool { return held.UUID == c.UUID }
		if rec.State == ledger.Granted && slices.ContainsFunc(rec.Placement.Cards, on) {
			s.TellJob(rec.JobID, text)
		}
	}
	if c.Why == "" {
		s.told.well.Store(true)
	}
	s.wakeTeller()
}

// TellJob writes a line into a job's folder, and has slurmctld show it to the
// job's user. The same text is told once.
func (s *Server) TellJob(jobID uint32, text string) {
	added, err := s.Grants.Tell(jobID, text)
	if err != nil {
		s.Log.Warn("a job could not be told", "job_id", jobID, "error", err)
	}
	if !added {
		return
	}
	s.told.mu.Lock()
	s.told.notices = append(s.told.notices, notice{jobID, text})
	s.told.mu.Unlock()
	s.wakeTeller()
}

func (s *Server) wakeTeller() {
	select {
	case s.told.wake <- struct{}{}:
	default:
	}
}

// CardIDs are the cards of this node, lost ones included.
func (s *Server) CardIDs() []gpu.UUID {
	var ids []gpu.UUID
	for _, c := range s.cards.Load().cards {
		ids = append(ids, c.UUID)
	}
	return ids
}

// CardName is how messages call a card: its index and its UUID.
func (s *Server) CardName(uuid gpu.UUID) string {
	for _, c := range s.cards.Load().cards {
		if c.UUID == uuid {
			return fmt.Sprintf("%d (%s)", c.Index, uuid)
		}
	}
	return string(uuid)
}

// whyNot says why a card is not granted; "" where it is.
func (s *Server) whyNot(c gpu.Card) string {
	why := s.Health.Out(c.UUID)
	switch {
	case c.Healthy && !c.MIG:
		return ""
	case c.MIG && c.Healthy:
		return "in MIG mode, and no instance that gresd shares"
	case why == "":
		return unreadable
	}
	return why
}

// sickCards are problems for an administrator.
func (s *Server) sickCards() []string {
	var problems []string
	sick := s.Health.Sick()
	for _, uuid := range slices.Sorted(maps.Keys(sick)) {
		then := "vgpuctl uncordon puts it back to use"
		if s.Health.Out(uuid) == "" {
			then = `it is still granted, as [health] action = "none" says`
		}
		problems = append(problems, fmt.Sprintf("card %s: %s; %s", s.CardName(uuid), sick[uuid], then))
	}
	return problems
}

// withSick adds to the error of a decision which cards were out of use, unless
// it was about the request alone.
func (s *Server) withSick(d place.Decision, err error) error {
	if !errors.Is(err, place.ErrNoCard) {
		return err
	}
	var out []string
	for _, v := range d.Verdicts {
		if v.Reason == place.Unhealthy {
			out = append(out, fmt.Sprintf("card %d: %s", v.Index, cmp.Or(s.Health.Out(v.UUID), unreadable)))
		}
	}
	if len(out) == 0 {
		return err
	}
	return fmt.Errorf("%w: %w: %s", err, errSick, strings.Join(out, "; "))
}

// cordon takes a card out of use, or back into it.
func (s *Server) cordon(w wire.Request) wire.Reply {
	uuid, found := s.findCard(w.Card)
	if !found {
		return userError("vgpu: %s: card %q: want one of this node, by index or UUID, for example %s", w.Op, w.Card, s.exampleCard())
	}
	name := s.CardName(uuid)
	if w.Op == wire.OpCordon {
		if err := s.Health.Cordon(uuid, w.Reason); err != nil {
			return nodeError("vgpu: cordon: card %s: it is out of use until gresd restarts: %v", name, err)
		}
		jobs := s.inUse()[uuid].Jobs
		return wire.Reply{OK: true, Result: wire.Changed, Message: fmt.Sprintf(
			"card %s: cordoned: no new jobs; jobs that stay on it: %d", name, jobs)}
	}
	was, err := s.Health.Uncordon(uuid)
	if err != nil {
		return nodeError("vgpu: uncordon: card %s: %v", name, err)
	}
	if !was {
		return wire.Reply{OK: true, Result: wire.None, Message: fmt.Sprintf("card %s: was not cordoned", name)}
	}
	return wire.Reply{OK: true, Result: wire.Changed, Message: fmt.Sprintf("card %s: takes jobs again", name)}
}

// findCard finds a card by index or UUID; one that was taken out of the node, but
// is still known to be sick, by its UUID.
func (s *Server) findCard(word string) (gpu.UUID, bool) {
	index, err := strconv.Atoi(word)
	cards := s.cards.Load().cards
	i := slices.IndexFunc(cards, func(c gpu.Card) bool {
		return string(c.UUID) == word || err == nil && c.Index == index
	})
	if i < 0 {
		_, sick := s.Health.Sick()[gpu.UUID(word)]
		return gpu.UUID(word), sick
	}
	return cards[i].UUID, true
}

func (s *Server) exampleCard() string {
	if cards := s.cards.Load().cards; len(cards) > 0 {
		return fmt.Sprintf("%d or %s", cards[0].Index, cards[0].UUID)
	}
	return "0; this node has none"
}

// tellSlurm says to slurmctld what is still to be said, until ctx is done. Only
// this waits for slurmctld.
func (s *Server) tellSlurm(ctx context.Context) {
	timer := time.NewTimer(rand.N(tellEvery))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.told.wake:
		case <-timer.C:
			timer.Reset(around(tellEvery))
		}
		s.tellNodes(ctx)
		s.tellNotices(ctx)
		if s.told.well.Swap(false) {
			s.retryQueued(ctx)
		}
	}
}

// tellNodes makes what slurmctld says of this node fit its cards.
func (s *Server) tellNodes(ctx context.Context) {
	if s.cfg().Health.Action == config.HealthNone {
		return
	}
	var wrong []string
	sick := s.Health.Sick()
	for _, c := range s.cards.Load().cards {
		if why := sick[c.UUID]; why != "" {
			wrong = append(wrong, fmt.Sprintf("card %d: %s", c.Index, why))
		}
	}
	words, known := strings.Join(wrong, "; "), s.nodes.all()
	draining := s.cfg().Health.Action == config.HealthDrain
	silent := s.Config.Paths.Silent()
	if words == "" && (len(known) == 0 || isThere(silent) || !isThere(s.Config.Paths.StateOfCards())) {
		return // also where no card was ever sick
	}
	if said := fmt.Sprint(words, draining); said != s.told.said {
		s.told.said, s.told.next = said, time.Time{}
	}
	if time.Now().Before(s.told.next) {
		return
	}
	err := os.Remove(silent)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for node, conf := range known {
		err = errors.Join(err, health.Tell(ctx, s.Slurm(conf), node, words, draining))
	}
	if err == nil && words == "" {
		err = os.WriteFile(silent, nil, 0o600)
	}
	if err == nil {
		s.told.next = time.Now().Add(around(seldom))
	} else if ctx.Err() == nil {
		s.Log.Warn("slurmctld could not be told about sick cards", "node", s.nodes.names(), "error", err)
	}
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// tellNotices shows messages to users. One that is not taken is only in the
// job's folder.
func (s *Server) tellNotices(ctx context.Context) {
	s.told.mu.Lock()
	notices := s.told.notices
	s.told.notices = nil
	s.told.mu.Unlock()
	for _, n := range notices {
		for _, conf := range s.nodes.all() {
			if err := s.Slurm(conf).Notify(ctx, n.jobID, n.text); err != nil {
				s.Log.Debug("notify", "job_id", n.jobID, "error", err)
				continue
			}
			break
		}
	}
}
