// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

// slurmctld does not know that a card is out of use, and gives a job that was
// requeued the same card again. Slurm itself lets a requeued job wait for the
// life of a credential (AuthInfo=cred_expire, 120 s); from the patientAfter-th
// restart on it waits longer, up to longestDelay, or until a card becomes well. A
// job that only found no room is not put off: its room comes unannounced, and what
// is held for it must not wait for it.
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
const mostQueued = 1000

// queued are jobs that were put off. They are kept on the disk: while gresd is down
// the card can become well, and nobody else would say so to slurmctld.
type queued struct {
	path string

	mu   sync.Mutex
	jobs map[uint32]putOff
}

type putOff struct {
	Conf     string        `json:"conf,omitempty"` // slurm.conf
	At       time.Time     `json:"at"`             // when it was requeued
	Earliest time.Duration `json:"earliest_ns"`    // after that it may start again
}

// left is how long the job may not start yet. The clock may have been set back since.
func (p putOff) left(now time.Time) time.Duration {
	if waited := max(0, now.Sub(p.At)); waited < p.Earliest {
		return p.Earliest - waited
	}
	return 0
}

// open reads what an earlier gresd has left. A file that cannot be read is none:
// each job comes by itself, within longestDelay.
func (q *queued) open(path string, log *slog.Logger) (err error) {
	q.path = path
	if q.jobs, err = atomicfile.ReadJSON[map[uint32]putOff](path, log); err != nil {
		return fmt.Errorf("read jobs that were put off: %w", err)
	}
	return nil
}

// any says whether somebody waits.
func (q *queued) any() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.jobs) > 0
}

func (q *queued) add(jobID uint32, job putOff) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.jobs == nil || len(q.jobs) >= mostQueued {
		q.jobs = map[uint32]putOff{}
	}
	q.jobs[jobID] = job
	return q.save()
}

func (q *queued) forget(jobID uint32) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, known := q.jobs[jobID]; !known {
		return nil
	}
	delete(q.jobs, jobID)
	return q.save()
}

// all returns a copy.
func (q *queued) all() map[uint32]putOff {
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.jobs)
}

// save writes the file. q.mu is held.
func (q *queued) save() error {
	if err := atomicfile.WriteJSON(q.path, q.jobs); err != nil {
		return fmt.Errorf("remember jobs that were put off: %w", err)
	}
	return nil
}

// Waits says whether a job is put off.
func (o *Outbox) Waits() bool { return o.queued.any() }

// PutOff lets a requeued job wait longer than Slurm does.
func (o *Outbox) PutOff(ctx context.Context, conf string, jobID, restarts uint32) {
	delay := delayOf(restarts)
	if delay == 0 {
		return
	}
	known, err := o.node.Settings(ctx, conf)
	earliest := known.CredentialLife + afterCredential
	if err == nil {
		err = o.node.Slurm(conf).Delay(ctx, jobID, max(delay, earliest))
	}
	if err != nil {
		o.log.Warn("a requeued job could not be put off", "job_id", jobID, "error", err)
		return
	}
	o.logQueued(o.queued.add(jobID, putOff{conf, time.Now(), earliest}))
}

func (o *Outbox) logQueued(err error) {
	if err != nil {
		o.log.Warn("jobs that were put off", "error", err)
	}
}

// Started takes back what a job was told that has its grant now; explained says that Slurm still
// has words for its user.
func (o *Outbox) Started(ctx context.Context, conf string, jobID uint32, explained bool) {
	o.logQueued(o.queued.forget(jobID))
	if explained && o.config.Get().Placement.By != config.PlacementGresd {
		o.Explain(ctx, conf, jobID, "")
	}
}

// Retry lets jobs that were put off start as soon as they can, if a card became well. Those that
// slurmctld was not there for are tried again.
func (o *Outbox) Retry(ctx context.Context) {
	if !o.well.Swap(false) {
		return
	}
	waiting := o.queued.all()
	for _, jobID := range slices.Sorted(maps.Keys(waiting)) {
		job := waiting[jobID]
		err := o.node.Slurm(job.Conf).Delay(ctx, jobID, job.left(time.Now()).Round(time.Second))
		if errors.Is(err, slurm.ErrUnavailable) {
			o.well.Store(true)
			if errors.Is(err, slurm.ErrSilent) {
				return
			}
			continue
		}
		if err != nil {
			o.log.Debug("start of a requeued job", "job_id", jobID, "error", err) // it runs, or has ended
		}
		o.logQueued(o.queued.forget(jobID))
	}
}
