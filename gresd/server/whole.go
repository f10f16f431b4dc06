// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// inUse is what jobs hold on each card.
func (s *Server) inUse() place.InUse {
	inUse := s.ledger.InUse()
	if s.cfg().Placement.By == config.PlacementGresd {
		s.Whole.Add(inUse)
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
		s.Whole.Put(w.JobID, facts.WholeCards)
		return none()
	}
	waited, err := s.findRoom(ctx, w, wanted{facts: facts, whole: cards, try: func() error { return s.takeWhole(ctx, w.JobID, facts.WholeCards) }})
	if err != nil {
		return s.notPlaced(w, facts, err)
	}
	return outcome{verdict: placed, job: w, facts: facts, reply: wire.Reply{OK: true, Result: wire.None}, waited: waited}
}

// takeWhole takes whole cards that have no shares, unless the job has ended meanwhile.
func (s *Server) takeWhole(ctx context.Context, jobID uint32, indexes []int) error {
	s.placing.Lock()
	defer s.placing.Unlock()
	if isOver(ctx) {
		return errLeft
	}
	if !s.room.InTurn(jobID) {
		return errNotItsTurn
	}
	shared := s.ledger.InUse()
	for _, c := range s.Cards.Now().Cards {
		if n := shared[c.UUID].Jobs; n > 0 && slices.Contains(indexes, c.Index) {
			return &wholeError{c, n}
		}
	}
	s.Whole.Put(jobID, indexes)
	return nil
}

// reconcileWhole forgets jobs that have ended, and learns of those that were started while gresd
// was away: they have a process here. live are the jobs that live, as asked for at some time.
func (s *Server) reconcileWhole(ctx context.Context, live map[uint32]bool, at time.Time) {
	for _, id := range s.Whole.Ended(live, at) {
		if s.Whole.Forget(id) {
			s.room.Changed()
		}
	}
	if s.cfg().Placement.By != config.PlacementGresd {
		return
	}
	for _, id := range s.steps.Jobs() {
		if _, known := s.ledger.Get(id); known || s.Whole.Knows(id) || s.room.Has(id) {
			continue
		}
		s.learnWhole(ctx, id)
	}
}

func (s *Server) learnWhole(ctx context.Context, id uint32) {
	ctx, done := s.deciding.begin(ctx, id, 0)
	defer done()
	facts, err := s.node.Facts(ctx, id)
	if err != nil || facts.Counted > 0 {
		return // its Prolog says it
	}
	if err := s.takeWhole(ctx, id, facts.WholeCards); err != nil && !errors.Is(err, errLeft) {
		s.log.Warn("a job has a whole card on which others have shares: it was started while gresd was away", "job_id", id)
		s.Whole.Put(id, facts.WholeCards)
	}
}
