// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// slurmctld does not know that a card is out of use, and gives a job that was
// requeued the same card again. Slurm itself lets a requeued job wait for the
// life of a credential (AuthInfo=cred_expire, 120 s); from the patientAfter-th
// restart on it waits longer, up to longestDelay.
const (
	patientAfter = 3
	firstDelay   = 2 * time.Minute
	longestDelay = 10 * time.Minute
	// afterCredential is left for the job's Epilog, and between two clocks.
	afterCredential = 5 * time.Second
)

// delayOf is how long a job should wait that goes back into the queue after that
// many restarts; 0: as long as Slurm lets it.
func delayOf(restarts uint32) time.Duration {
	if restarts < patientAfter {
		return 0
	}
	return min(firstDelay<<min(restarts-patientAfter, 8), longestDelay)
}

// mostQueued bounds what is remembered.
const mostQueued = 10000

// queued are jobs that were put off.
type queued struct {
	mu   sync.Mutex
	jobs map[uint32]putOff
}

type putOff struct {
	conf     string        // slurm.conf
	at       time.Time     // when it was requeued
	earliest time.Duration // after that it may start again
}

func (q *queued) add(jobID uint32, job putOff) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.jobs == nil || len(q.jobs) >= mostQueued {
		q.jobs = map[uint32]putOff{}
	}
	q.jobs[jobID] = job
}

func (q *queued) forget(jobID uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.jobs, jobID)
}

// take returns them all and forgets them.
func (q *queued) take() map[uint32]putOff {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.jobs
	q.jobs = nil
	return all
}

// putOffJob tells a requeued job's user why, where nobody has yet, and lets it wait.
// Without either it waits as Slurm has it.
func (s *Server) putOffJob(ctx context.Context, w wire.Request, why string, explain bool) {
	client := s.Slurm(w.Conf)
	if explain {
		s.tell(ctx, w, why)
	}
	delay := delayOf(w.Restart)
	if delay == 0 {
		return
	}
	life, err := client.CredentialLife(ctx)
	earliest := life + afterCredential
	if err == nil {
		err = client.Delay(ctx, w.JobID, max(delay, earliest))
	}
	if err != nil {
		s.Log.Warn("a requeued job could not be put off", "job_id", w.JobID, "error", err)
		return
	}
	s.queued.add(w.JobID, putOff{w.Conf, time.Now(), earliest})
}

// unqueue takes back what a job was told that has its grant now.
func (s *Server) unqueue(ctx context.Context, w wire.Request, facts slurm.JobFacts) {
	s.queued.forget(w.JobID)
	if facts.Explained && s.cfg().Placement.Mode != config.PlacementGresd {
		s.tell(ctx, w, "")
	}
}

// retryQueued lets jobs that were put off start as soon as they can, after a card
// became well.
func (s *Server) retryQueued(ctx context.Context) {
	waiting := s.queued.take()
	for _, jobID := range slices.Sorted(maps.Keys(waiting)) {
		job := waiting[jobID]
		left := max(0, job.earliest-time.Since(job.at))
		if err := s.Slurm(job.conf).Delay(ctx, jobID, left.Round(time.Second)); err != nil {
			s.Log.Debug("start of a requeued job", "job_id", jobID, "error", err) // it runs, or has ended
		}
	}
}
