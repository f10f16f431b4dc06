// SPDX-License-Identifier: Apache-2.0

// Package waitqueue is the queue of jobs that wait for cards of this node.
//
// If gresd chooses the cards, slurmctld only counts the free shares of the node. It can start a job
// that fits on no card. The job then waits in its Prolog, in the order of the queue. The first job
// gets the first card that becomes free. A job that fits only later lets smaller jobs go first.
//
// A job that waits too long is requeued and keeps its place. After [placement] patience failed
// attempts, gresd reserves cards for the first such job. No other job gets a reserved card. If the
// reserved cards have room and the job is in Slurm's queue, other jobs may use them.
//
// Whole cards are Slurm's (gres/gpu). No share is placed on a card that a job has as a whole. A job
// with whole cards waits for them in this queue. slurmctld knows these cards, so no file stores them.
package waitqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// maxJobs is the length of the queue. Jobs behind it are not counted until it is shorter.
const maxJobs = 200

// Job is one job in the queue, as the file stores it.
type Job struct {
	ID    uint32    `json:"job_id"`
	Since time.Time `json:"since"` // its first attempt
	Times uint32    `json:"times"` // failed attempts
	// Request is the job's request.
	Request request.Request `json:"request,omitzero"`
	// Held are the cards that are reserved for it.
	Held []gpu.UUID `json:"held,omitempty"`
	// Seen is the time of its last attempt.
	Seen time.Time `json:"seen,omitzero"`
}

// Queue is made with [Open].
type Queue struct {
	config *config.InForce
	cards  *cards.Cards
	node   *node.Node
	ledger *ledger.Ledger
	log    *slog.Logger
	pace   node.Pace // of questions to slurmctld about jobs in the queue

	path         string // of the file
	reserveAfter uint32 // failed attempts; 0: never

	// mu is locked while a placement reads what is in use and changes it. With mu locked, gresd waits
	// neither for a disk nor for slurmctld or the driver.
	mu         sync.Mutex
	jobs       []Job // by Since
	unsaved    bool  // jobs differ from the file
	waiters    []*waiter
	current    *waiter               // that may try
	wholeCards map[uint32]wholeCards // by job

	saving sync.Mutex // while the file is written
}

// Open reads the queue. If the file is missing or is not JSON, the queue starts empty, and jobs join
// it when they retry.
func Open(inForce *config.InForce, of *cards.Cards, here *node.Node, records *ledger.Ledger, log *slog.Logger) (*Queue, error) {
	cfg := inForce.Get()
	q := &Queue{
		config: inForce, cards: of, node: here, ledger: records, log: log,
		path: cfg.Paths.Waiting(), reserveAfter: cfg.Placement.Patience, wholeCards: map[uint32]wholeCards{},
	}
	var err error
	if q.jobs, err = atomicfile.ReadJSON[[]Job](q.path, log); err != nil {
		return nil, fmt.Errorf("read the queue of waiting jobs: %w", err)
	}
	return q, nil
}

// Lock locks the queue for a placement of a job, and returns the use of each card by other jobs. If
// the job does not wait, or if the jobs before it have tried, mayTry is true.
func (q *Queue) Lock(jobID uint32) (inUse place.InUse, mayTry bool) {
	q.mu.Lock()
	delete(q.wholeCards, jobID) // of an earlier run
	return q.InUse(), q.mayTry(jobID)
}

// Unlock ends what Lock began.
func (q *Queue) Unlock() { q.mu.Unlock() }

func (q *Queue) mayTry(jobID uint32) bool {
	i := q.findWaiter(jobID)
	return i < 0 || q.waiters[i] == q.current
}

func (q *Queue) findWaiter(jobID uint32) int {
	return slices.IndexFunc(q.waiters, func(w *waiter) bool { return w.jobID == jobID })
}

// InUse returns what jobs have of each card. Call it with the queue locked.
func (q *Queue) InUse() place.InUse {
	inUse := q.ledger.InUse()
	if q.gresdPlaces() {
		q.addWholeCards(inUse)
	}
	return inUse
}

// CurrentUse is InUse for a caller that places nothing.
func (q *Queue) CurrentUse() place.InUse {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.InUse()
}

// Release deletes the job's record and its whole cards. If the job had cards, the first waiting job
// tries before any other.
func (q *Queue) Release(jobID uint32) ledger.Pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	had, onDisk := q.ledger.BeginDelete(jobID)
	if had || len(q.wholeCards[jobID].cards) > 0 {
		q.wakeFirst()
	}
	delete(q.wholeCards, jobID)
	return onDisk
}

// RecordNoRoom counts a failed attempt of a job that can be requeued. If it is time, it reserves cards.
func (q *Queue) RecordNoRoom(r Request) {
	if !r.Requeues || r.WholeCards != nil || !q.gresdPlaces() {
		return
	}
	q.mu.Lock()
	defer q.unlockAndSave()
	i := q.find(r.JobID)
	if i < 0 && len(q.jobs) < maxJobs {
		q.jobs = append(q.jobs, Job{ID: r.JobID, Since: time.Now()})
		i = len(q.jobs) - 1
	}
	if i >= 0 {
		q.jobs[i].Times++
		q.jobs[i].Request, q.jobs[i].Seen = r.Share, time.Now()
		q.unsaved = true
	}
	q.reserveNext()
}

// RequeueCount returns how many attempts of a job have failed.
func (q *Queue) RequeueCount(jobID uint32) uint32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := q.find(jobID); i >= 0 {
		return q.jobs[i].Times
	}
	return 0
}

// RequeueMessage tells the job's user how often the job was sent back, this time included. It is ""
// for a job that is not in the queue.
func (q *Queue) RequeueMessage(jobID uint32) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := q.find(jobID)
	if i < 0 {
		return ""
	}
	words := "sent back " + Count(q.jobs[i].Times)
	if len(q.jobs[i].Held) > 0 {
		words += "; " + indexes(q.cards.Now().Cards, q.jobs[i].Held) + " kept free for it"
	}
	return words
}

// Count returns "once", or for example "3 times".
func Count(times uint32) string {
	if times == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", times)
}

// Remove removes a job that has its cards, or does not come again. Its reservation goes to the next job.
func (q *Queue) Remove(jobID uint32) {
	q.mu.Lock()
	defer q.unlockAndSave()
	i := q.find(jobID)
	if i < 0 {
		return
	}
	reserved := len(q.jobs[i].Held) > 0
	q.remove(jobID)
	q.reserveNext()
	if reserved {
		q.wakeFirst()
	}
}

// DropEndedJobs removes jobs that were canceled or run on another node, and ends the reservation for
// a job that does not come.
func (q *Queue) DropEndedJobs(ctx context.Context, now time.Time) {
	q.mu.Lock()
	jobs := slices.Clone(q.jobs)
	q.mu.Unlock()
	var ids, ended []uint32
	for _, job := range jobs {
		ids = append(ids, job.ID)
	}
	q.pace.Keep(ids)
	for _, job := range jobs {
		if len(job.Held) == 0 && !q.pace.IsDue(job.ID, now) {
			continue // it keeps no card from other jobs
		}
		gone, err := q.node.IsGone(ctx, job.ID)
		if err != nil {
			break
		}
		if gone {
			ended = append(ended, job.ID)
		}
		q.pace.Answered(job.ID, now)
	}
	q.mu.Lock()
	defer q.unlockAndSave()
	for _, id := range ended {
		q.remove(id)
	}
	q.expireReservation(now)
	q.reserveNext()
	q.wakeFirst()
}

func (q *Queue) gresdPlaces() bool { return q.config.Get().Placement.By == config.PlacementGresd }

func (q *Queue) find(jobID uint32) int {
	return slices.IndexFunc(q.jobs, func(j Job) bool { return j.ID == jobID })
}

func (q *Queue) remove(jobID uint32) {
	if i := q.find(jobID); i >= 0 {
		q.jobs = slices.Delete(q.jobs, i, i+1)
		q.unsaved = true
	}
}

// unlockAndSave unlocks the queue, then writes the file. A slow disk delays no placement.
func (q *Queue) unlockAndSave() {
	unsaved := q.unsaved
	q.mu.Unlock()
	if !unsaved {
		return
	}
	q.saving.Lock()
	defer q.saving.Unlock()
	q.mu.Lock()
	jobs, unsaved := slices.Clone(q.jobs), q.unsaved
	q.unsaved = false
	q.mu.Unlock()
	if !unsaved {
		return // another caller has written it
	}
	if err := atomicfile.WriteJSON(q.path, jobs); err != nil {
		q.log.Warn("cannot save the queue of waiting jobs", "error", err)
	}
}

// noRoomError is a place.ErrNoRoom in other words.
type noRoomError string

func (e noRoomError) Error() string { return string(e) }

func (e noRoomError) Is(target error) bool { return target == place.ErrNoRoom }

var (
	// ErrJobEnded: the job ended while it waited, or a second Prolog replaced its Prolog.
	ErrJobEnded = errors.New("the job has ended meanwhile")
	// ErrStopping: gresd stops, and the job has not had its cards.
	ErrStopping = errors.New("gresd stopped while the job waited for room")
	// ErrEarlierJobFirst: a job that has waited longer must try first.
	ErrEarlierJobFirst = errors.New("not its turn")
)

// HasEnded reports whether the job of a request has ended. ctx is the context of the request.
func HasEnded(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrJobEnded) }

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
