// SPDX-License-Identifier: Apache-2.0

package room

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/backlog"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// Choose is place.Choose that leaves out the cards that are held for another
// job. No other placement may be made meanwhile.
func (r *Room) Choose(jobID uint32, cards []gpu.Card, inUse place.InUse, req request.Request, d place.Distances) (place.Decision, error) {
	r.lineMu.Lock()
	holder, held := r.line.Kept(r.Has, r.haveRoom)
	r.lineMu.Unlock()
	if holder == jobID {
		held = nil
	}
	held = append(slices.Clone(held), r.wholeBefore(jobID)...)
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

// FoundNone counts a job that found no card here and will come again, and holds cards for
// whom it is the turn of.
func (r *Room) FoundNone(jobID uint32, req request.Request) {
	r.lineMu.Lock()
	defer r.unlockLine()
	_, err := r.line.NoRoom(jobID, req, time.Now())
	if err = errors.Join(err, r.holdNext()); err != nil {
		r.log.Warn("line of waiting jobs", "job_id", jobID, "error", err)
	}
}

// since is since when a job has found no room; now, for one that comes for the first time.
func (r *Room) since(jobID uint32) time.Time {
	r.lineMu.Lock()
	defer r.lineMu.Unlock()
	if job, known := r.line.Get(jobID); known {
		return job.Since
	}
	return time.Now()
}

// holdNext holds cards for the job of which it is the turn. r.lineMu is held.
func (r *Room) holdNext() error {
	job, ok := r.line.Next()
	if !ok {
		return nil
	}
	return r.hold(job.ID, job.Request)
}

// SentBack is how often a job was sent back, this time included, in words for its user; "" for
// one that is not in the line.
func (r *Room) SentBack(jobID uint32) string {
	r.lineMu.Lock()
	defer r.lineMu.Unlock()
	job, known := r.line.Get(jobID)
	if !known {
		return ""
	}
	words := "sent back " + Count(job.Times)
	if len(job.Held) > 0 {
		words += "; " + indexes(r.cards.Now().Cards, job.Held) + " kept free for it"
	}
	return words
}

// hold picks cards for a job: of those that could serve it when they are empty,
// the ones with the least to wait for. r.lineMu is held.
func (r *Room) hold(jobID uint32, req request.Request) error {
	now, inUse := r.cards.Now(), r.inUse()
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
			return r.holdCards(jobID, d.Placement)
		}
	}
	d, err := place.Choose(cards, place.InUse{}, req, now.Distances)
	if err != nil {
		return nil // the cards that could serve it are out of use
	}
	return r.holdCards(jobID, d.Placement)
}

func (r *Room) holdCards(jobID uint32, p place.Placement) error {
	var held []gpu.UUID
	for _, c := range p.Cards {
		held = append(held, c.UUID)
	}
	r.log.Warn("cards are kept free for a job that has waited long", "job_id", jobID, "gpu_uuid", held)
	return r.line.Hold(jobID, held)
}

// Times is how often a job was sent back.
func (r *Room) Times(jobID uint32) uint32 {
	r.lineMu.Lock()
	defer r.lineMu.Unlock()
	job, _ := r.line.Get(jobID)
	return job.Times
}

// LeaveLine is for a job that was placed, or does not come again. Cards that were held for it
// are for the next.
func (r *Room) LeaveLine(jobID uint32) {
	r.lineMu.Lock()
	defer r.unlockLine()
	job, _ := r.line.Get(jobID)
	if err := errors.Join(r.line.Leave(jobID), r.holdNext()); err != nil {
		r.log.Warn("line of waiting jobs", "job_id", jobID, "error", err)
	}
	if len(job.Held) > 0 {
		r.Changed()
	}
}

// Count says how often: "once", "3 times".
func Count(times uint32) string {
	if times == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", times)
}

// Tidy forgets waiting jobs that were cancelled or run elsewhere, and lets go
// of cards that are held for a job that does not come.
func (r *Room) Tidy(ctx context.Context, now time.Time) {
	r.lineMu.Lock()
	jobs := r.line.Jobs()
	first, _ := r.line.Holder()
	r.lineMu.Unlock()
	var ids, gone []uint32
	for _, job := range jobs {
		ids = append(ids, job.ID)
	}
	r.pace.Keep(ids)
	for _, job := range jobs {
		if job.ID != first.ID && !r.pace.IsDue(job.ID, now) {
			continue // only the first keeps cards from others
		}
		isGone, err := r.node.IsGone(ctx, job.ID)
		if err != nil {
			break
		}
		if isGone {
			gone = append(gone, job.ID)
		}
		r.pace.Answered(job.ID, now)
	}
	r.lineMu.Lock()
	defer r.unlockLine()
	var errs []error
	for _, id := range gone {
		errs = append(errs, r.line.Leave(id))
	}
	holder, _ := r.line.Holder()
	late, err := r.line.Look(now, r.Has)
	if late {
		r.log.Warn("cards are free again: the job for which they were kept did not come", "job_id", holder.ID)
	}
	errs = append(errs, err, r.holdNext())
	if err := errors.Join(errs...); err != nil {
		r.log.Warn("line of waiting jobs", "error", err)
	}
	r.Changed()
}

// haveRoom says whether the cards that are held for a job could serve it now.
func (r *Room) haveRoom(job backlog.Job) bool {
	now := r.cards.Now()
	cards := slices.DeleteFunc(slices.Clone(now.Cards), func(c gpu.Card) bool { return !slices.Contains(job.Held, c.UUID) })
	_, err := place.Choose(cards, r.inUse(), job.Request, now.Distances)
	return err == nil
}
