// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Whole cards are Slurm's (gres/gpu), which names them to the job. Where slurmctld chooses the
// cards of shares, too, it keeps the two apart. Where gresd does, slurmctld counts shares without
// knowing the cards: then no share is placed on a card that a job has as a whole, and such a job
// waits for its cards as others wait for room. What is known of these jobs is not written down:
// slurmctld knows it, and is asked about the jobs that live when gresd starts.

const (
	// wholeLife is how long an answer about a job's whole cards is believed, and askAgain how
	// long it is before slurmctld is asked again that did not answer.
	wholeLife = 5 * time.Minute
	askAgain  = 30 * time.Second
	// mostWhole bounds what is remembered.
	mostWhole = 1024
)

// wholeCards are those of jobs without a share. The zero value is ready.
type wholeCards struct {
	mu    sync.Mutex
	byJob map[uint32]*wholeOf
}

type wholeOf struct {
	asked time.Time
	known bool
	cards []gpu.UUID
}

// of returns what is known of a job, which may be nothing yet. c.mu is held.
func (c *wholeCards) of(jobID uint32) *wholeOf {
	job := c.byJob[jobID]
	if job == nil {
		if c.byJob == nil {
			c.byJob = map[uint32]*wholeOf{}
		}
		if len(c.byJob) >= mostWhole { // those without cards can be asked about again
			maps.DeleteFunc(c.byJob, func(_ uint32, job *wholeOf) bool { return len(job.cards) == 0 })
		}
		job = &wholeOf{}
		c.byJob[jobID] = job
	}
	return job
}

func (c *wholeCards) put(jobID uint32, cards []gpu.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*c.of(jobID) = wholeOf{asked: time.Now(), known: true, cards: cards}
}

// forget returns whether the job had cards.
func (c *wholeCards) forget(jobID uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	job := c.byJob[jobID]
	delete(c.byJob, jobID)
	return job != nil && len(job.cards) > 0
}

// knows says whether slurmctld need not be asked about a job.
func (c *wholeCards) knows(jobID uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	job := c.byJob[jobID]
	return job != nil && job.known
}

// ended are the jobs that do not live, of those that were known at some time.
func (c *wholeCards) ended(live map[uint32]bool, at time.Time) (jobs []uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, job := range c.byJob {
		if !live[id] && job.asked.Before(at) {
			jobs = append(jobs, id)
		}
	}
	return jobs
}

// jobs are those of which anything is known.
func (c *wholeCards) jobs() []uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.byJob))
}

// add counts them as in use.
func (c *wholeCards) add(inUse place.InUse, cards []gpu.Card) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, job := range c.byJob {
		for _, card := range cards {
			if slices.Contains(job.cards, card.UUID) {
				inUse.Add(place.Placement{Cards: []place.CardShare{{UUID: card.UUID, Share: gpu.FullCard, Memory: card.Memory}}})
			}
		}
	}
}

// inUse is what jobs hold on each card.
func (s *Server) inUse() place.InUse {
	inUse := s.ledger.InUse()
	if s.cfg().Placement.Mode == config.PlacementGresd {
		s.whole.add(inUse, s.Cards.Now().Cards)
	}
	return inUse
}

// wholeError is for a job whose whole cards are shared by others.
type wholeError struct {
	card gpu.Card
	jobs int
}

func (e *wholeError) Error() string {
	return fmt.Sprintf("card %d has shares of other jobs, in number %d, and Slurm has chosen it for --gres=gpu; want --gres=vgpu:%d, for which "+
		"gresd chooses a card", e.card.Index, e.jobs, gpu.FullCard)
}

func (e *wholeError) Is(target error) bool { return target == place.ErrNoRoom }

// decideWhole is for a job without a share, where gresd chooses the cards of shares.
func (s *Server) decideWhole(ctx context.Context, w wire.Request, facts slurm.JobFacts) outcome {
	cards := s.Cards.At(facts.WholeCards)
	if len(cards) == 0 {
		s.whole.put(w.JobID, nil)
		return none()
	}
	_, waited, err := s.findRoom(ctx, w, wanted{facts: facts, whole: cards, try: func() (string, error) { return "", s.takeWhole(w.JobID, cards) }})
	if err != nil {
		return s.notPlaced(w, facts, err)
	}
	return outcome{verdict: placed, job: w, facts: facts, reply: wire.Reply{OK: true, Result: wire.None}, waited: waited}
}

// takeWhole takes whole cards, if nobody has a share of them.
func (s *Server) takeWhole(jobID uint32, cards []gpu.UUID) error {
	s.placing.Lock()
	defer s.placing.Unlock()
	shared := s.ledger.InUse()
	for _, c := range s.Cards.Now().Cards {
		if n := shared[c.UUID].Jobs; n > 0 && slices.Contains(cards, c.UUID) {
			return &wholeError{c, n}
		}
	}
	s.whole.put(jobID, cards)
	return nil
}

// reconcileWhole forgets jobs that have ended, and learns of those that were started while gresd
// was away: they have a process here. live are the jobs that live, as asked for at some time.
func (s *Server) reconcileWhole(ctx context.Context, live map[uint32]bool, at time.Time) {
	for _, id := range s.whole.ended(live, at) {
		if s.whole.forget(id) {
			s.room.changed()
		}
	}
	if s.cfg().Placement.Mode != config.PlacementGresd {
		return
	}
	for _, id := range s.steps.Jobs() {
		if _, known := s.ledger.Get(id); known || s.whole.knows(id) || s.room.has(id) {
			continue
		}
		facts, err := s.node.Facts(ctx, id)
		if err != nil || facts.Counted > 0 {
			continue // its Prolog says it
		}
		if cards := s.Cards.At(facts.WholeCards); s.takeWhole(id, cards) != nil {
			s.log.Warn("a job has a whole card on which others have shares: it was started while gresd was away", "job_id", id)
			s.whole.put(id, cards)
		}
	}
}

// MayHoldWhole says whether a job without a share may have the whole card, by gres/gpu: slurmctld
// is asked, once for each job, and yes is the answer until it has said no.
func (s *Server) MayHoldWhole(jobID uint32, uuid gpu.UUID) bool {
	s.whole.mu.Lock()
	defer s.whole.mu.Unlock()
	job := s.whole.of(jobID)
	life := askAgain
	if job.known {
		life = wholeLife
	}
	if now := time.Now(); job.asked.IsZero() || now.Sub(job.asked) > life {
		job.asked = now
		go s.askWhole(jobID)
	}
	return !job.known || slices.Contains(job.cards, uuid)
}

// askWhole asks slurmctld which whole cards a job has on this node.
func (s *Server) askWhole(jobID uint32) {
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	facts, err := s.node.Facts(ctx, jobID)
	if err != nil && !errors.Is(err, slurm.ErrNoJob) {
		s.log.Debug("whole cards of a job", "job_id", jobID, "error", err)
		return
	}
	s.whole.put(jobID, s.Cards.At(facts.WholeCards))
}
