// SPDX-License-Identifier: Apache-2.0

package waitqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

const (
	// answerLife is how long an answer about a job's whole cards is valid. If slurmctld did not answer,
	// gresd asks again after askAgain.
	answerLife = 5 * time.Minute
	askAgain   = 30 * time.Second
	// askTimeout is the limit for one question.
	askTimeout = 25 * time.Second
	// maxWholeJobs is the number of jobs without a share that gresd remembers.
	maxWholeJobs = 1024
)

// wholeCards are the whole cards of one job without a share.
type wholeCards struct {
	asked time.Time
	known bool
	cards []gpu.UUID
}

// TakeWholeCards gives a job the whole cards with these indexes, unless other jobs have shares of them.
func (q *Queue) TakeWholeCards(ctx context.Context, jobID uint32, indexes []int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if HasEnded(ctx) {
		return ErrJobEnded
	}
	if !q.mayTry(jobID) {
		return ErrEarlierJobFirst
	}
	shared := q.ledger.InUse()
	for _, c := range q.cards.Now().Cards {
		if n := shared[c.UUID].Jobs; n > 0 && slices.Contains(indexes, c.Index) {
			return noRoomError(fmt.Sprintf("card %d has shares of other jobs, in number %d, and Slurm has chosen it for --gres=gpu; "+
				"want --gres=vgpu:%d, for which gresd chooses a card", c.Index, n, gpu.FullCard))
		}
	}
	q.setWholeCards(jobID, indexes)
	return nil
}

// SetWholeCards stores the whole cards of a job by index. The job may have none.
func (q *Queue) SetWholeCards(jobID uint32, indexes []int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.setWholeCards(jobID, indexes)
}

// setWholeCards leaves a job unknown if the driver cannot read one of its cards: such a card has no
// UUID. gresd then asks slurmctld again.
func (q *Queue) setWholeCards(jobID uint32, indexes []int) {
	cards := q.cards.At(indexes)
	q.storeWholeCards(jobID, wholeCards{asked: time.Now(), known: len(cards) == len(indexes), cards: cards})
}

func (q *Queue) storeWholeCards(jobID uint32, job wholeCards) {
	if _, stored := q.wholeCards[jobID]; !stored && len(q.wholeCards) >= maxWholeJobs {
		// gresd can ask slurmctld again about jobs without cards.
		maps.DeleteFunc(q.wholeCards, func(_ uint32, job wholeCards) bool { return len(job.cards) == 0 })
	}
	q.wholeCards[jobID] = job
}

// RemoveEnded forgets jobs without a share that do not live. The answer is about the jobs of that time.
func (q *Queue) RemoveEnded(live map[uint32]bool, at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, job := range q.wholeCards {
		if !live[id] && job.asked.Before(at) {
			delete(q.wholeCards, id)
			q.wakeFirst()
		}
	}
}

// IsKnown reports whether the whole cards of a job are known, or the job waits for them.
func (q *Queue) IsKnown(jobID uint32) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.wholeCards[jobID].known || q.findWaiter(jobID) >= 0
}

// JobIDs returns the known jobs without a share.
func (q *Queue) JobIDs() []uint32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Keys(q.wholeCards))
}

func (q *Queue) addWholeCards(inUse place.InUse) {
	for _, job := range q.wholeCards {
		for _, card := range q.cards.Now().Cards {
			if slices.Contains(job.cards, card.UUID) {
				inUse.Add(place.Placement{Cards: []place.CardShare{{UUID: card.UUID, Share: gpu.FullCard, Memory: card.Memory}}})
			}
		}
	}
}

// MayUse reports whether a job without a share may use a whole card. gresd asks slurmctld once for each
// job. Until slurmctld has said no, MayUse returns true.
func (q *Queue) MayUse(jobID uint32, uuid gpu.UUID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	job := q.wholeCards[jobID]
	life := askAgain
	if job.known {
		life = answerLife
	}
	if now := time.Now(); now.Sub(job.asked) > life {
		job.asked = now
		q.storeWholeCards(jobID, job)
		go q.ask(jobID, now)
	}
	return !job.known || slices.Contains(job.cards, uuid)
}

// ask asks slurmctld which whole cards a job has on this node. If the job ends or is stored again
// meanwhile, the answer is dropped.
func (q *Queue) ask(jobID uint32, asked time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	facts, err := q.node.Facts(ctx, jobID)
	if err != nil && !errors.Is(err, slurm.ErrNoJob) {
		q.log.Debug("cannot ask for the job's whole cards", "job_id", jobID, "error", err)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if job, stored := q.wholeCards[jobID]; stored && job.asked.Equal(asked) {
		q.setWholeCards(jobID, facts.WholeCards)
	}
}
