// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/health"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

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

// CardChanged is called when a card became sick or well. Jobs on it are told.
func (s *Server) CardChanged(c health.Change) {
	readable := s.Cards.Judge(c.UUID)
	s.room.changed()
	if c.Why == "" && !readable {
		select {
		case s.reload <- struct{}{}: // it can be read again
		default:
		}
	}

	text := fmt.Sprintf("vgpu: health: card %s is well again", s.Cards.Name(c.UUID))
	switch {
	case c.Faulty:
		text = fmt.Sprintf("vgpu: health: card %s: %s: what this job computes on it may be wrong or fail", s.Cards.Name(c.UUID), c.Why)
	case c.Why != "":
		text = fmt.Sprintf("vgpu: health: card %s: %s: this job goes on, new ones do not get the card", s.Cards.Name(c.UUID), c.Why)
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

// cordon takes a card out of use, or back into it.
func (s *Server) cordon(w wire.Request) wire.Reply {
	uuid, found := s.Cards.Find(w.Card)
	if !found {
		return userError("vgpu: %s: card %q: want one of this node, by index or UUID, for example %s", w.Op, w.Card, s.Cards.Example())
	}
	name := s.Cards.Name(uuid)
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
			timer.Reset(node.Around(tellEvery))
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
	for _, c := range s.Cards.Now().Cards {
		if why := sick[c.UUID]; why != "" {
			wrong = append(wrong, fmt.Sprintf("card %d: %s", c.Index, why))
		}
	}
	words, known := strings.Join(wrong, "; "), s.node.All()
	draining := s.cfg().Health.Action == config.HealthDrain
	silent := s.cfg().Paths.Silent()
	if words == "" && (len(known) == 0 || isThere(silent) || !isThere(s.cfg().Paths.StateOfCards())) {
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
		err = errors.Join(err, health.Tell(ctx, s.node.Slurm(conf), node, words, draining))
	}
	if err == nil && words == "" {
		err = os.WriteFile(silent, nil, 0o600)
	}
	if err == nil {
		s.told.next = time.Now().Add(node.Around(node.Seldom))
	} else if ctx.Err() == nil {
		s.Log.Warn("slurmctld could not be told about sick cards", "node", s.node.List(), "error", err)
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
		for _, conf := range s.node.All() {
			if err := s.node.Slurm(conf).Notify(ctx, n.jobID, n.text); err != nil {
				s.Log.Debug("notify", "job_id", n.jobID, "error", err)
				continue
			}
			break
		}
	}
}
