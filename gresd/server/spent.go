// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/beat"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
)

// spentEvery is the time over which the driver's samples of processes are averaged.
const spentEvery = 2500 * time.Millisecond

// spent is the GPU time that jobs had by the driver's samples, since this gresd started.
// libvgpu charges launches only while something depends on it: a job that may have the
// whole card, or whose neighbours hold it at its share, is not measured by itself.
type spent struct {
	mu   sync.Mutex
	at   time.Time
	jobs map[cardOfJob]time.Duration
}

// CountTime adds up the GPU time of jobs until ctx is done. Where no process has work, the
// driver is not asked.
func (s *Server) CountTime(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(beat.Next(spentEvery)):
			s.countTime(ctx, time.Now())
		}
	}
}

func (s *Server) countTime(ctx context.Context, now time.Time) {
	records := s.Ledger.List()
	var rates map[cardOfJob]rate
	if s.someWork(records) {
		rates = s.latest(ctx)
	}
	there, byMPS := map[uint32]bool{}, map[uint32]bool{}
	for _, rec := range records {
		there[rec.JobID], byMPS[rec.JobID] = true, s.HeldByMPS(rec.JobID)
	}
	s.spent.mu.Lock()
	defer s.spent.mu.Unlock()
	span := min(now.Sub(s.spent.at), 2*spentEvery) // a gresd that was stopped does not know
	if s.spent.jobs == nil {
		s.spent.jobs, span = map[cardOfJob]time.Duration{}, 0
	}
	s.spent.at = now
	for key, r := range rates {
		if r.compute != nil && !byMPS[key.job] {
			s.spent.jobs[key] += time.Duration(*r.compute / 100 * float64(span))
		}
	}
	maps.DeleteFunc(s.spent.jobs, func(key cardOfJob, _ time.Duration) bool { return !there[key.job] })
}

// someWork says whether a process of some job has work on a card, or that nobody knows.
func (s *Server) someWork(records []ledger.Record) bool {
	for _, rec := range records {
		for _, card := range rec.Placement.Cards {
			if s.work == nil {
				return true
			}
			if w, known := s.work(arbiter.Key{JobID: rec.JobID, Card: card.UUID}); known && w.Busy {
				return true
			}
		}
	}
	return false
}

// gpuTime is what a job had of a card: what it was charged, or what the driver saw, for each
// of them knows only a part where gates open and shut.
func (s *Server) gpuTime(job uint32, card gpu.UUID, chargedNS uint64) time.Duration {
	s.spent.mu.Lock()
	defer s.spent.mu.Unlock()
	return max(time.Duration(min(chargedNS, 1<<62)), s.spent.jobs[cardOfJob{job, card}])
}
