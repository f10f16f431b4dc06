// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// choose is place.Choose that leaves out the cards that are held for another
// job. s.placing is held.
func (s *Server) choose(jobID uint32, cards []gpu.Card, inUse place.InUse, req request.Request, d place.Distances) (place.Decision, error) {
	s.lineMu.Lock()
	holder, held, ok := s.line.Holder()
	s.lineMu.Unlock()
	decision, err := place.Choose(cards, inUse, req, d)
	taken := func(c place.CardShare) bool { return slices.Contains(held, c.UUID) }
	if err != nil || !ok || holder == jobID || !slices.ContainsFunc(decision.Placement.Cards, taken) {
		return decision, err
	}
	isHeld := func(c gpu.Card) bool { return slices.Contains(held, c.UUID) }
	decision, err = place.Choose(slices.DeleteFunc(slices.Clone(cards), isHeld), inUse, req, d)
	decision.HeldBack(slices.DeleteFunc(slices.Clone(cards), func(c gpu.Card) bool { return !isHeld(c) }), inUse)
	if err != nil {
		decision.Placement = place.Placement{}
		// It fits on the cards that are held, so in time it will fit.
		err = &heldError{indexes(cards, held), err}
	}
	return decision, err
}

// heldError is for a job that only cards could serve that are held.
type heldError struct {
	cards string
	other error
}

func (e *heldError) Error() string {
	return fmt.Sprintf("%v; %s kept free for a job that has waited longer", e.other, e.cards)
}

func (e *heldError) Is(target error) bool { return target == place.ErrNoRoom }

// indexes names cards: "card 2 is", "cards 2 and 3 are".
func indexes(cards []gpu.Card, of []gpu.UUID) string {
	var words []string
	for _, c := range cards {
		if slices.Contains(of, c.UUID) {
			words = append(words, fmt.Sprint(c.Index))
		}
	}
	if len(words) == 1 {
		return "card " + words[0] + " is"
	}
	return "cards " + strings.Join(words, " and ") + " are"
}

// sentBack counts a job that found no card here and will come again, and holds
// cards for it when it is its turn. The words are for the job's user.
func (s *Server) sentBack(jobID uint32) string {
	if s.cfg().Placement.Mode != config.PlacementGresd {
		return ""
	}
	s.lineMu.Lock()
	defer s.lineMu.Unlock()
	times, turn, err := s.line.SentBack(jobID, time.Now())
	made, decided := s.decisions.get(jobID)
	if err == nil && turn && decided {
		err = s.hold(jobID, made.request)
	}
	if err != nil {
		s.Log.Warn("line of waiting jobs", "job_id", jobID, "error", err)
	}
	holder, held, ok := s.line.Holder()
	words := "sent back " + count(times)
	if ok && holder == jobID {
		words += "; " + indexes(s.cards.Load().cards, held) + " kept free for it"
	}
	return words
}

// hold picks cards for a job: of those that could serve it when they are empty,
// the ones with the least to wait for. s.lineMu is held.
func (s *Server) hold(jobID uint32, req request.Request) error {
	hw, inUse := s.cards.Load(), s.Ledger.InUse()
	cards := slices.DeleteFunc(slices.Clone(hw.cards), func(c gpu.Card) bool { return !c.Healthy || c.MIG })
	slices.SortStableFunc(cards, func(a, b gpu.Card) int {
		if d := int(inUse[a.UUID].Units) - int(inUse[b.UUID].Units); d != 0 {
			return d
		}
		return a.Index - b.Index
	})
	// Cards of one node rarely differ: the first set is nearly always the one.
	n := max(1, req.Cards)
	for from := 0; from+n <= len(cards); from++ {
		if d, err := place.Choose(cards[from:from+n], place.InUse{}, req, hw.distances); err == nil {
			return s.holdCards(jobID, d.Placement)
		}
	}
	d, err := place.Choose(cards, place.InUse{}, req, hw.distances)
	if err != nil {
		return nil // the cards that could serve it are out of use
	}
	return s.holdCards(jobID, d.Placement)
}

func (s *Server) holdCards(jobID uint32, p place.Placement) error {
	var held []gpu.UUID
	for _, c := range p.Cards {
		held = append(held, c.UUID)
	}
	s.Log.Warn("cards are kept free for a job that has waited long", "job_id", jobID, "gpu_uuid", held)
	return s.line.Hold(jobID, held)
}

// waited is how often a job was sent back.
func (s *Server) waited(jobID uint32) uint32 {
	s.lineMu.Lock()
	defer s.lineMu.Unlock()
	job, _ := s.line.Get(jobID)
	return job.Times
}

func (s *Server) leaveLine(jobID uint32) {
	s.lineMu.Lock()
	defer s.lineMu.Unlock()
	if err := s.line.Leave(jobID); err != nil {
		s.Log.Warn("line of waiting jobs", "job_id", jobID, "error", err)
	}
}

// count says how often: "once", "3 times".
func count(times uint32) string {
	if times == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", times)
}

// tidyLine forgets waiting jobs that were cancelled or run elsewhere, and lets go
// of cards that are held for a job that does not come.
func (s *Server) tidyLine(ctx context.Context) {
	s.lineMu.Lock()
	jobs := s.line.Jobs()
	holder, _, _ := s.line.Holder()
	s.lineMu.Unlock()
	var ids, gone []uint32
	for _, job := range jobs {
		ids = append(ids, job.ID)
		if job.ID != holder && !s.linePace.isDue(job.ID, time.Now()) {
			continue // only the first keeps cards from others
		}
		if s.isGone(ctx, job.ID) {
			gone = append(gone, job.ID)
		}
		s.linePace.answered(job.ID, time.Now())
	}
	s.linePace.keep(ids)
	s.lineMu.Lock()
	defer s.lineMu.Unlock()
	var errs []error
	for _, id := range gone {
		errs = append(errs, s.line.Leave(id))
	}
	if id, held, ok := s.line.Holder(); ok {
		late, err := s.line.Look(s.haveRoom(id, held), time.Now())
		if errs = append(errs, err); late {
			s.Log.Warn("cards are free again: the job for which they were kept did not come", "job_id", id)
		}
	}
	if err := errors.Join(errs...); err != nil {
		s.Log.Warn("line of waiting jobs", "error", err)
	}
}

// isGone says that a waiting job will not come to this node any more, for all
// that slurmctld knows.
func (s *Server) isGone(ctx context.Context, jobID uint32) bool {
	for node, conf := range s.nodes.all() {
		facts, err := s.Slurm(conf).Brief(ctx, jobID, node)
		switch {
		case errors.Is(err, slurm.ErrNoJob):
		case err != nil, facts.OnNode, facts.State == "PENDING", facts.State == "REQUEUED", facts.State == "COMPLETING":
			return false
		}
	}
	return true
}

// haveRoom says whether held cards could serve their job now. s.lineMu is held.
func (s *Server) haveRoom(jobID uint32, held []gpu.UUID) bool {
	made, decided := s.decisions.get(jobID)
	if !decided {
		return true // gresd was restarted: the job must come once to be known
	}
	hw := s.cards.Load()
	cards := slices.DeleteFunc(slices.Clone(hw.cards), func(c gpu.Card) bool { return !slices.Contains(held, c.UUID) })
	_, err := place.Choose(cards, s.Ledger.InUse(), made.request, hw.distances)
	return err == nil
}

// tell leaves words for the job's user in Slurm, or takes them away, "". Nothing
// depends on them.
func (s *Server) tell(ctx context.Context, w wire.Request, words string) {
	if err := s.Slurm(w.Conf).Explain(ctx, w.JobID, words); err != nil {
		s.Log.Warn("tell the user of a job", "job_id", w.JobID, "error", err)
	}
}
