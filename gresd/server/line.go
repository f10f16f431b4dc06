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
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waiting"
)

// choose is place.Choose that leaves out the cards that are held for another
// job. s.placing is held.
func (s *Server) choose(jobID uint32, cards []gpu.Card, inUse place.InUse, req request.Request, d place.Distances) (place.Decision, error) {
	s.lineMu.Lock()
	holder, held := s.line.Kept(s.room.has, s.haveRoom)
	s.lineMu.Unlock()
	if holder == jobID {
		held = nil
	}
	held = append(slices.Clone(held), s.room.wholeBefore(jobID)...)
	decision, err := place.Choose(cards, inUse, req, d)
	taken := func(c place.CardShare) bool { return slices.Contains(held, c.UUID) }
	if err != nil || !slices.ContainsFunc(decision.Placement.Cards, taken) {
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

// foundNoRoom counts a job that found no card here and will come again, and holds cards for
// whom it is the turn of.
func (s *Server) foundNoRoom(want wanted) {
	if !want.facts.Batch || want.whole != nil || s.cfg().Placement.Mode != config.PlacementGresd {
		return
	}
	s.lineMu.Lock()
	defer s.lineMu.Unlock()
	_, err := s.line.NoRoom(want.facts.JobID, want.req, time.Now())
	if err = errors.Join(err, s.holdNext()); err != nil {
		s.log.Warn("line of waiting jobs", "job_id", want.facts.JobID, "error", err)
	}
}

// inLineSince is since when a job has found no room; now, for one that comes for the first time.
func (s *Server) inLineSince(jobID uint32) time.Time {
	s.lineMu.Lock()
	defer s.lineMu.Unlock()
	if job, known := s.line.Get(jobID); known {
		return job.Since
	}
	return time.Now()
}

// holdNext holds cards for the job of which it is the turn. s.lineMu is held.
func (s *Server) holdNext() error {
	job, ok := s.line.Next()
	if !ok {
		return nil
	}
	return s.hold(job.ID, job.Request)
}

// sentBack is how often a job was sent back, this time included, in words for its user; "" for
// one that is not in the line.
func (s *Server) sentBack(jobID uint32) string {
	s.lineMu.Lock()
	defer s.lineMu.Unlock()
	job, known := s.line.Get(jobID)
	if !known {
		return ""
	}
	words := "sent back " + count(job.Times)
	if len(job.Held) > 0 {
		words += "; " + indexes(s.Cards.Now().Cards, job.Held) + " kept free for it"
	}
	return words
}

// hold picks cards for a job: of those that could serve it when they are empty,
// the ones with the least to wait for. s.lineMu is held.
func (s *Server) hold(jobID uint32, req request.Request) error {
	now, inUse := s.Cards.Now(), s.inUse()
	cards := slices.DeleteFunc(slices.Clone(now.Cards), func(c gpu.Card) bool { return !c.Healthy || c.MIG })
	slices.SortStableFunc(cards, func(a, b gpu.Card) int {
		if d := int(inUse[a.UUID].Units) - int(inUse[b.UUID].Units); d != 0 {
			return d
		}
		return a.Index - b.Index
	})
	// Cards of one node rarely differ: the first set is nearly always the one.
	n := max(1, req.Cards)
	for from := 0; from+n <= len(cards); from++ {
		if d, err := place.Choose(cards[from:from+n], place.InUse{}, req, now.Distances); err == nil {
			return s.holdCards(jobID, d.Placement)
		}
	}
	d, err := place.Choose(cards, place.InUse{}, req, now.Distances)
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
	s.log.Warn("cards are kept free for a job that has waited long", "job_id", jobID, "gpu_uuid", held)
	return s.line.Hold(jobID, held)
}

// waited is how often a job was sent back.
func (s *Server) waited(jobID uint32) uint32 {
	s.lineMu.Lock()
	defer s.lineMu.Unlock()
	job, _ := s.line.Get(jobID)
	return job.Times
}

// leaveLine is for a job that was placed, or does not come again. Cards that were held for it
// are for the next.
func (s *Server) leaveLine(jobID uint32) {
	s.lineMu.Lock()
	defer s.lineMu.Unlock()
	job, _ := s.line.Get(jobID)
	if err := errors.Join(s.line.Leave(jobID), s.holdNext()); err != nil {
		s.log.Warn("line of waiting jobs", "job_id", jobID, "error", err)
	}
	if len(job.Held) > 0 {
		s.room.changed()
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
	first, _ := s.line.Holder()
	s.lineMu.Unlock()
	var ids, gone []uint32
	for _, job := range jobs {
		ids = append(ids, job.ID)
		if job.ID != first.ID && !s.linePace.IsDue(job.ID, time.Now()) {
			continue // only the first keeps cards from others
		}
		if s.node.IsGone(ctx, job.ID) {
			gone = append(gone, job.ID)
		}
		s.linePace.Answered(job.ID, time.Now())
	}
	s.linePace.Keep(ids)
	s.lineMu.Lock()
	defer s.lineMu.Unlock()
	var errs []error
	for _, id := range gone {
		errs = append(errs, s.line.Leave(id))
	}
	holder, _ := s.line.Holder()
	late, err := s.line.Look(time.Now(), s.room.has)
	if late {
		s.log.Warn("cards are free again: the job for which they were kept did not come", "job_id", holder.ID)
	}
	errs = append(errs, err, s.holdNext())
	if err := errors.Join(errs...); err != nil {
		s.log.Warn("line of waiting jobs", "error", err)
	}
	s.room.changed()
}

// haveRoom says whether the cards that are held for a job could serve it now.
func (s *Server) haveRoom(job waiting.Job) bool {
	now := s.Cards.Now()
	cards := slices.DeleteFunc(slices.Clone(now.Cards), func(c gpu.Card) bool { return !slices.Contains(job.Held, c.UUID) })
	_, err := place.Choose(cards, s.inUse(), job.Request, now.Distances)
	return err == nil
}
