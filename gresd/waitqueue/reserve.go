// SPDX-License-Identifier: Apache-2.0

package waitqueue

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// reservationTimeout is how long cards stay reserved for a job that does not come. Slurm starts a
// requeued job after AuthInfo=cred_expire, two minutes by default.
const reservationTimeout = 10 * time.Minute

// Choose is place.Choose without the cards that are reserved for another job, or that are whole cards
// of a job before it. Call it with the queue locked.
func (q *Queue) Choose(jobID uint32, cards []gpu.Card, inUse place.InUse, req request.Request, d place.Distances) (place.Decision, error) {
	var held []gpu.UUID
	if job := q.reservation(); job != nil && job.ID != jobID && (q.findWaiter(job.ID) >= 0 || !q.haveRoom(job)) {
		held = slices.Clone(job.Held)
	}
	for _, w := range q.waiters {
		if w.jobID == jobID {
			break
		}
		held = append(held, w.wholeCards...)
	}
	decision, err := place.Choose(cards, inUse, req, d)
	taken := func(c place.CardShare) bool { return slices.Contains(held, c.UUID) }
	if err != nil || !slices.ContainsFunc(decision.Placement.Cards, taken) {
		return decision, err
	}
	var free, others []gpu.Card
	for _, c := range cards {
		if slices.Contains(held, c.UUID) {
			others = append(others, c)
		} else {
			free = append(free, c)
		}
	}
	decision, err = place.Choose(free, inUse, req, d)
	decision.HeldBack(others, inUse)
	if err != nil {
		decision.Placement = place.Placement{}
		// It fits on the reserved cards, so it will fit later.
		err = noRoomError(fmt.Sprintf("%v; %s kept free for a job that has waited longer", err, indexes(cards, held)))
	}
	return decision, err
}

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

// reservation returns the job that has reserved cards, or nil.
func (q *Queue) reservation() *Job {
	if i := slices.IndexFunc(q.jobs, func(j Job) bool { return len(j.Held) > 0 }); i >= 0 {
		return &q.jobs[i]
	}
	return nil
}

// haveRoom reports whether the reserved cards of a job have room for it.
func (q *Queue) haveRoom(job *Job) bool {
	now := q.cards.Now()
	cards := slices.DeleteFunc(slices.Clone(now.Cards), func(c gpu.Card) bool { return !slices.Contains(job.Held, c.UUID) })
	_, err := place.Choose(cards, q.InUse(), job.Request, now.Distances)
	return err == nil
}

// reserveNext reserves cards for the first job with enough failed attempts, unless cards are reserved.
func (q *Queue) reserveNext() {
	i := slices.IndexFunc(q.jobs, func(j Job) bool { return q.reserveAfter > 0 && j.Times >= q.reserveAfter })
	if i < 0 || q.reservation() != nil {
		return
	}
	for _, c := range q.cardsFor(q.jobs[i].Request) {
		q.jobs[i].Held = append(q.jobs[i].Held, c.UUID)
		q.unsaved = true
	}
	if len(q.jobs[i].Held) > 0 {
		q.log.Info("reserved cards for a waiting job", "job_id", q.jobs[i].ID, "gpu_uuid", q.jobs[i].Held)
	}
}

// cardsFor chooses, of the cards that can serve a request when they are empty, those with the least in use.
func (q *Queue) cardsFor(req request.Request) []place.CardShare {
	now, inUse := q.cards.Now(), q.InUse()
	cards := slices.DeleteFunc(slices.Clone(now.Cards), func(c gpu.Card) bool { return !c.Healthy || c.MIG })
	slices.SortStableFunc(cards, func(a, b gpu.Card) int {
		if d := int(inUse[a.UUID].Units) - int(inUse[b.UUID].Units); d != 0 {
			return d
		}
		return a.Index - b.Index
	})
	// Cards of one node rarely differ: nearly always the first set can serve the request.
	n := max(1, req.Cards)
	for from := 0; from+n <= len(cards); from++ {
		if d, err := place.Choose(cards[from:from+n], place.InUse{}, req, now.Distances); err == nil {
			return d.Placement.Cards
		}
	}
	d, _ := place.Choose(cards, place.InUse{}, req, now.Distances)
	return d.Placement.Cards // none, if the cards that could serve it are out of use
}

// expireReservation ends the reservation for a job that does not come, for example because it waits for CPUs.
// The job goes to the end of the queue.
func (q *Queue) expireReservation(now time.Time) {
	job := q.reservation()
	switch {
	case job == nil:
		return
	case q.findWaiter(job.ID) >= 0, job.Seen.After(now): // the clock was set back
		job.Seen = now
	case now.Sub(job.Seen) < reservationTimeout:
		return
	default:
		late := Job{ID: job.ID, Since: now, Request: job.Request, Seen: now}
		q.remove(late.ID)
		q.jobs = append(q.jobs, late)
		q.log.Info("reservation expired", "job_id", late.ID)
	}
	q.unsaved = true
}
