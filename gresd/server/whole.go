// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

const (
	// wholeLife is how long an answer about a job's whole cards is believed, and askAgain how
	// long it is before slurmctld is asked again that did not answer.
	wholeLife = 5 * time.Minute
	askAgain  = 30 * time.Second
	// mostWhole bounds what is remembered.
	mostWhole = 256
)

// wholeCards are those of jobs without a share that were asked about.
type wholeCards struct {
	mu    sync.Mutex
	byJob map[uint32]*wholeOf
}

type wholeOf struct {
	asked time.Time
	known bool
	cards []gpu.UUID
}

// MayHoldWhole says whether a job without a share may have the whole card, by gres/gpu: slurmctld
// is asked, once for each job, and yes is the answer until it has said no.
func (s *Server) MayHoldWhole(jobID uint32, uuid gpu.UUID) bool {
	s.whole.mu.Lock()
	defer s.whole.mu.Unlock()
	job := s.whole.byJob[jobID]
	if job == nil {
		if s.whole.byJob == nil || len(s.whole.byJob) >= mostWhole {
			s.whole.byJob = map[uint32]*wholeOf{}
		}
		job = &wholeOf{}
		s.whole.byJob[jobID] = job
	}
	life := askAgain
	if job.known {
		life = wholeLife
	}
	if now := time.Now(); job.asked.IsZero() || now.Sub(job.asked) > life {
		job.asked = now
		go s.askWhole(jobID, job)
	}
	return !job.known || slices.Contains(job.cards, uuid)
}

// askWhole asks slurmctld which whole cards a job has on this node.
func (s *Server) askWhole(jobID uint32, job *wholeOf) {
	ctx, cancel := context.WithTimeout(context.Background(), workTimeout)
	defer cancel()
	facts, _, err := s.factsOfLive(ctx, jobID)
	if err != nil && !errors.Is(err, slurm.ErrNoJob) {
		s.Log.Debug("whole cards of a job", "job_id", jobID, "error", err)
		return
	}
	cards := s.uuidsOf(facts.WholeCards)
	s.whole.mu.Lock()
	defer s.whole.mu.Unlock()
	job.known, job.cards = true, cards
}

// uuidsOf are the cards of Slurm's indexes.
func (s *Server) uuidsOf(indexes []int) []gpu.UUID {
	var uuids []gpu.UUID
	for _, c := range s.cards.Load().cards {
		if slices.Contains(indexes, c.Index) {
			uuids = append(uuids, c.UUID)
		}
	}
	return uuids
}
