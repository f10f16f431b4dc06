// SPDX-License-Identifier: Apache-2.0

package waitqueue

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// Request is the share or the whole cards that a job needs.
type Request struct {
	JobID      uint32
	Share      request.Request
	WholeCards []gpu.UUID   // that Slurm chose for the job; nil: it asks for a share
	Requeues   bool         // the job can be requeued
	Try        func() error // takes the cards
}

// waiter is a job that waits in its Prolog.
type waiter struct {
	jobID      uint32
	since      time.Time // in the queue
	wholeCards []gpu.UUID
	wake       wakeup.Bell   // it may try
	replaced   chan struct{} // closed when a second Prolog of the job waits
}

// PollEvery is the time between questions to slurmctld about a job that waits. The job may have been
// canceled, and another job may have ended without its Epilog.
const PollEvery = 20 * time.Second

// A requeued job waits behind jobs that run for long: one question is enough.
var (
	pollIntervals         = []time.Duration{PollEvery, 2 * PollEvery}
	requeuedPollIntervals = []time.Duration{3 * PollEvery}
)

// Wait calls r.Try until it returns anything but a [place.ErrNoRoom]. A job tries when cards may have
// become free and the jobs before it have tried. After limit, Wait returns the error of the last
// attempt. hasEnded asks slurmctld whether the job has ended. Errors: [ErrJobEnded], [ErrStopping].
func (q *Queue) Wait(ctx context.Context, r Request, limit time.Duration, hasEnded func() bool) error {
	intervals := pollIntervals
	if q.RequeueCount(r.JobID) > 0 {
		intervals = requeuedPollIntervals
	}
	self := q.join(r)
	defer q.leave(self)
	ended := make(chan struct{}, len(intervals))
	var why error                  // of the last attempt; nil before the first
	var end, poll <-chan time.Time // nil before the first attempt
	for {
		select {
		case <-self.replaced:
			return ErrJobEnded
		case <-ended:
			return ErrJobEnded
		case <-end:
			return why
		case <-ctx.Done():
			if HasEnded(ctx) {
				return ErrJobEnded
			}
			return ErrStopping
		case <-poll:
			go func() {
				if hasEnded() {
					ended <- struct{}{}
				}
			}()
			poll = nil
			if intervals = intervals[1:]; len(intervals) > 0 {
				poll = time.After(intervals[0])
			}
			q.WakeAll()
		case <-self.wake:
			err := r.Try()
			switch {
			case errors.Is(err, ErrEarlierJobFirst):
				continue
			case err == nil && HasEnded(ctx):
				return ErrJobEnded // its Epilog has released the cards
			case !errors.Is(err, place.ErrNoRoom):
				return err
			}
			q.wakeNext(self)
			if why == nil {
				q.RecordNoRoom(r)
				q.log.Info("waits for room", "job_id", r.JobID, "at_most", limit.Round(time.Second), "error", err)
				end, poll = time.After(limit), time.After(intervals[0])
			}
			why = err
		}
	}
}

// join adds a job at its place in the queue. Then all jobs try.
func (q *Queue) join(r Request) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &waiter{jobID: r.JobID, since: time.Now(), wholeCards: r.WholeCards, wake: wakeup.NewBell(), replaced: make(chan struct{})}
	if i := q.find(r.JobID); i >= 0 {
		w.since = q.jobs[i].Since
	}
	if i := q.findWaiter(r.JobID); i >= 0 {
		close(q.waiters[i].replaced)
		q.waiters = slices.Delete(q.waiters, i, i+1)
	}
	i := 0
	for i < len(q.waiters) && !q.waiters[i].since.After(w.since) {
		i++
	}
	q.waiters = slices.Insert(q.waiters, i, w)
	q.wakeFirst()
	return w
}

// leave removes a job that waits no more. Its reserved cards may be free for others: all jobs try.
func (q *Queue) leave(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiters = slices.DeleteFunc(q.waiters, func(other *waiter) bool { return other == w })
	q.wakeFirst()
}

// IsWaiting reports whether a job waits on this node.
func (q *Queue) IsWaiting(jobID uint32) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.findWaiter(jobID) >= 0
}

// WakeAll has all waiting jobs try, one after the other.
func (q *Queue) WakeAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakeFirst()
}

// wakeFirst is WakeAll with the queue locked. Code that frees cards calls it before it unlocks the queue.
func (q *Queue) wakeFirst() {
	if len(q.waiters) > 0 {
		q.wake(q.waiters[0])
	}
}

// wakeNext lets the job behind w try.
func (q *Queue) wakeNext(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiters, w) + 1; q.current == w && i > 0 && i < len(q.waiters) {
		q.wake(q.waiters[i])
	}
}

func (q *Queue) wake(w *waiter) {
	q.current = w
	w.wake.Ring()
}
