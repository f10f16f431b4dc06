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
	// bound is how long each word of arbiter.Bound kept a job with work from having more.
	bound map[cardOfJob]map[string]time.Duration
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
	bounds := s.boundNow(records)
	there, byMPS := map[uint32]bool{}, map[uint32]bool{}
	for _, rec := range records {
		there[rec.JobID], byMPS[rec.JobID] = true, s.HeldByMPS(rec.JobID)
	}
	s.spent.mu.Lock()
	defer s.spent.mu.Unlock()
	span := min(now.Sub(s.spent.at), 2*spentEvery) // a gresd that was stopped does not know
	if s.spent.jobs == nil {
		s.spent.jobs, s.spent.bound, span = map[cardOfJob]time.Duration{}, map[cardOfJob]map[string]time.Duration{}, 0
	}
	s.spent.at = now
	for key, r := range rates {
		if r.compute != nil && !byMPS[key.job] {
			s.spent.jobs[key] += time.Duration(*r.compute / 100 * float64(span))
		}
	}
	for key, word := range bounds {
		if s.spent.bound[key] == nil {
			s.spent.bound[key] = map[string]time.Duration{}
		}
		s.spent.bound[key][word] += span
	}
	maps.DeleteFunc(s.spent.bound, func(key cardOfJob, _ map[string]time.Duration) bool { return !there[key.job] })
	maps.DeleteFunc(s.spent.jobs, func(key cardOfJob, _ time.Duration) bool { return !there[key.job] })
}

// boundNow is what bounds each job that has work on a card.
func (s *Server) boundNow(records []ledger.Record) map[cardOfJob]string {
	bounds := map[cardOfJob]string{}
	for _, rec := range records {
		for _, card := range rec.Placement.Cards {
			if s.work == nil {
				continue
			}
			if w, known := s.work(arbiter.Key{JobID: rec.JobID, Card: card.UUID}); known && w.Busy && w.Bound != "" {
				bounds[cardOfJob{rec.JobID, card.UUID}] = string(w.Bound)
			}
		}
	}
	return bounds
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
