// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// spentEvery is the time over which the driver's samples of processes are averaged.
const spentEvery = 2500 * time.Millisecond

// spent is the GPU time that jobs had by the driver's samples, since this gresd started.
// libvgpu charges launches only while something depends on it: a job that may have the
// whole card, or whose neighbours hold it at its share, is not measured by itself.
type spent struct {
	mu   sync.Mutex
	at   time.Time
	jobs map[cardOfRun]time.Duration
	// bound is how long each word of arbiter.Bound kept a job with work from having more.
	bound map[cardOfRun]map[string]time.Duration
}

// cardOfRun tells the runs of a job apart, which comes back after a requeue, by when they were granted.
type cardOfRun struct {
	cardOfJob
	run int64
}

func runOf(rec ledger.Record, card gpu.UUID) cardOfRun {
	return cardOfRun{cardOfJob{rec.JobID, card}, rec.Created.UnixNano()}
}

// CountTime adds up the GPU time of jobs until ctx is done. Where no process has work, the
// driver is not asked.
func (r *Reporter) CountTime(ctx context.Context) {
	for wakeup.Wait(ctx, wakeup.Next(spentEvery)) {
		r.Count(ctx, time.Now())
	}
}

// Count is what CountTime does again and again.
func (r *Reporter) Count(ctx context.Context, now time.Time) {
	records := r.Ledger.List()
	var rates map[cardOfJob]rate
	if r.someWork(records) {
		rates = r.latest(ctx)
	}
	bounds := r.boundNow(records)
	runs, byMPS := map[cardOfJob]cardOfRun{}, map[uint32]bool{}
	for _, rec := range records {
		for _, card := range rec.Placement.Cards {
			runs[cardOfJob{rec.JobID, card.UUID}] = runOf(rec, card.UUID)
		}
		byMPS[rec.JobID] = r.ByMPS(rec.JobID)
	}
	r.spent.mu.Lock()
	defer r.spent.mu.Unlock()
	span := min(now.Sub(r.spent.at), 2*spentEvery) // a gresd that was stopped does not know
	if r.spent.jobs == nil {
		r.spent.jobs, r.spent.bound, span = map[cardOfRun]time.Duration{}, map[cardOfRun]map[string]time.Duration{}, 0
	}
	r.spent.at = now
	for key, got := range rates {
		if run, there := runs[key]; there && got.compute != nil && !byMPS[key.job] {
			r.spent.jobs[run] += time.Duration(*got.compute / 100 * float64(span))
		}
	}
	for on, word := range bounds {
		key := runs[on]
		if r.spent.bound[key] == nil {
			r.spent.bound[key] = map[string]time.Duration{}
		}
		r.spent.bound[key][word] += span
	}
	maps.DeleteFunc(r.spent.bound, func(key cardOfRun, _ map[string]time.Duration) bool { return runs[key.cardOfJob] != key })
	maps.DeleteFunc(r.spent.jobs, func(key cardOfRun, _ time.Duration) bool { return runs[key.cardOfJob] != key })
}

// boundNow is what bounds each job that has work on a card.
func (r *Reporter) boundNow(records []ledger.Record) map[cardOfJob]string {
	bounds := map[cardOfJob]string{}
	for _, rec := range records {
		for _, card := range rec.Placement.Cards {
			if w, known := r.workOf(rec.JobID, card.UUID); known && w.Busy && w.Bound != "" {
				bounds[cardOfJob{rec.JobID, card.UUID}] = string(w.Bound)
			}
		}
	}
	return bounds
}

// someWork says whether a process of some job has work on a card, or that nobody knows.
func (r *Reporter) someWork(records []ledger.Record) bool {
	for _, rec := range records {
		for _, card := range rec.Placement.Cards {
			if w, known := r.workOf(rec.JobID, card.UUID); r.work == nil || known && w.Busy {
				return true
			}
		}
	}
	return false
}

// gpuTime is what a job had of a card: what it was charged, or what the driver saw, for each
// of them knows only a part where gates open and shut.
func (r *Reporter) gpuTime(rec ledger.Record, card gpu.UUID, chargedNS uint64) time.Duration {
	r.spent.mu.Lock()
	defer r.spent.mu.Unlock()
	return max(time.Duration(min(chargedNS, 1<<62)), r.spent.jobs[runOf(rec, card)])
}
