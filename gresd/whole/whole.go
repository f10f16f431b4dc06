// SPDX-License-Identifier: Apache-2.0

// Package whole knows the jobs that have no share, and their whole cards.
//
// Whole cards are Slurm's (gres/gpu), which names them to the job. Where slurmctld chooses the
// cards of shares, too, it keeps the two apart. Where gresd does, slurmctld counts shares without
// knowing the cards: then no share is placed on a card that a job has as a whole, and such a job
// waits for its cards as others wait for room. What is known of these jobs is not written down:
// slurmctld knows it, and is asked about the jobs that live when gresd starts.
package whole

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

const (
	// answerLife is how long an answer about a job's whole cards is believed, and askAgain how
	// long it is before slurmctld is asked again that did not answer.
	answerLife = 5 * time.Minute
	askAgain   = 30 * time.Second
	// mostJobs bounds what is remembered.
	mostJobs = 1024
	// askTimeout bounds the question to slurmctld.
	askTimeout = 25 * time.Second
)

// Jobs are those without a share, with their whole cards.
type Jobs struct {
	node  *node.Node
	cards *cards.Cards
	log   *slog.Logger

	mu    sync.Mutex
	byJob map[uint32]*entry
}

// New returns a store that knows of no job.
func New(here *node.Node, of *cards.Cards, log *slog.Logger) *Jobs {
	return &Jobs{node: here, cards: of, log: log, byJob: map[uint32]*entry{}}
}

type entry struct {
	asked time.Time
	known bool
	cards []gpu.UUID
}

// of returns what is known of a job, which may be nothing yet. j.mu is held.
func (j *Jobs) of(jobID uint32) *entry {
	job := j.byJob[jobID]
	if job == nil {
		if len(j.byJob) >= mostJobs { // those without cards can be asked about again
			maps.DeleteFunc(j.byJob, func(_ uint32, job *entry) bool { return len(job.cards) == 0 })
		}
		job = &entry{}
		j.byJob[jobID] = job
	}
	return job
}

// Put stores the whole cards of a job by index. It may have none. A card that the driver cannot
// read has no UUID. The job then stays unknown, and gresd asks slurmctld again.
func (j *Jobs) Put(jobID uint32, indexes []int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	*j.of(jobID) = j.at(indexes)
}

// at is an entry for the whole cards at these indexes.
func (j *Jobs) at(indexes []int) entry {
	cards := j.cards.At(indexes)
	return entry{asked: time.Now(), known: len(cards) == len(indexes), cards: cards}
}

// Forget returns whether the job had cards.
func (j *Jobs) Forget(jobID uint32) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	job := j.byJob[jobID]
	delete(j.byJob, jobID)
	return job != nil && len(job.cards) > 0
}

// Knows says whether slurmctld need not be asked about a job.
func (j *Jobs) Knows(jobID uint32) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	job := j.byJob[jobID]
	return job != nil && job.known
}

// Ended are the jobs that do not live, of those that were known at some time.
func (j *Jobs) Ended(live map[uint32]bool, at time.Time) (jobs []uint32) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for id, job := range j.byJob {
		if !live[id] && job.asked.Before(at) {
			jobs = append(jobs, id)
		}
	}
	return jobs
}

// List are those of which anything is known.
func (j *Jobs) List() []uint32 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Collect(maps.Keys(j.byJob))
}

// Add counts them as in use.
func (j *Jobs) Add(inUse place.InUse) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, job := range j.byJob {
		for _, card := range j.cards.Now().Cards {
			if slices.Contains(job.cards, card.UUID) {
				inUse.Add(place.Placement{Cards: []place.CardShare{{UUID: card.UUID, Share: gpu.FullCard, Memory: card.Memory}}})
			}
		}
	}
}

// MayHold says whether a job without a share may have the whole card, by gres/gpu: slurmctld
// is asked, once for each job, and yes is the answer until it has said no.
func (j *Jobs) MayHold(jobID uint32, uuid gpu.UUID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	job := j.of(jobID)
	life := askAgain
	if job.known {
		life = answerLife
	}
	if now := time.Now(); job.asked.IsZero() || now.Sub(job.asked) > life {
		job.asked = now
		go j.ask(jobID, job)
	}
	return !job.known || slices.Contains(job.cards, uuid)
}

// ask asks slurmctld which whole cards a job has on this node. If the job ends meanwhile, its entry is
// forgotten, and the answer with it.
func (j *Jobs) ask(jobID uint32, job *entry) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	facts, err := j.node.Facts(ctx, jobID)
	if err != nil && !errors.Is(err, slurm.ErrNoJob) {
		j.log.Debug("whole cards of a job", "job_id", jobID, "error", err)
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.byJob[jobID] == job {
		*job = j.at(facts.WholeCards)
	}
}
