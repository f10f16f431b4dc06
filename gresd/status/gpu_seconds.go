// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// countPeriod is the time over which the driver's samples of processes are averaged.
const countPeriod = 2500 * time.Millisecond

// gpuSeconds is the use of cards by jobs since this gresd started. libvgpu charges launches only if
// something depends on it. It does not measure a job that may have the whole card, or a job that its
// neighbors hold at its share.
type gpuSeconds struct {
	mu   sync.Mutex
	at   time.Time
	runs map[cardRun]use
}

type use struct {
	had     time.Duration            // GPU time by the driver's samples
	limited map[string]time.Duration // time with work, by the words of limit.by
}

// cardRun tells the runs of a job apart, which comes back after a requeue, by when they were granted.
type cardRun struct {
	cardOfJob
	run int64
}

func runOf(rec ledger.Record, card gpu.UUID) cardRun {
	return cardRun{cardOfJob{rec.JobID, card}, rec.Created.UnixNano()}
}

// CountGPUTime adds up the GPU time of jobs until ctx is done. If no process has work, it does not ask
// the driver.
func (r *Reporter) CountGPUTime(ctx context.Context) {
	for wakeup.Wait(ctx, wakeup.Next(countPeriod)) {
		r.Count(ctx, time.Now())
	}
}

// Count adds the time since the last call.
func (r *Reporter) Count(ctx context.Context, now time.Time) {
	limits, byMPS, work := map[cardRun]limit{}, map[uint32]bool{}, r.Work == nil
	for _, rec := range r.Ledger.List() {
		byMPS[rec.JobID] = r.ByMPS(rec.JobID)
		for _, card := range rec.Placement.Cards {
			key := runOf(rec, card.UUID)
			limits[key] = limit{}
			if w, known := r.workOf(rec.JobID, card.UUID); known && w.Busy {
				work, limits[key] = true, limit{w.Bound, rec.Mode, rec.Ceiling}
			}
		}
	}
	var rates map[cardOfJob]rate
	if work {
		rates = r.rates(ctx)
	}
	s := &r.gpuSeconds
	s.mu.Lock()
	defer s.mu.Unlock()
	span := min(now.Sub(s.at), 2*countPeriod) // gresd can have been stopped
	if s.at.IsZero() {
		span = 0
	}
	runs := map[cardRun]use{}
	for key, l := range limits {
		u := s.runs[key]
		if u.limited == nil {
			u.limited = map[string]time.Duration{}
		}
		got := rates[key.cardOfJob].compute
		if got != nil && !byMPS[key.job] {
			u.had += time.Duration(*got / 100 * float64(span))
		}
		if word := l.by(got); word != "" {
			u.limited[word] += span
		}
		runs[key] = u
	}
	s.at, s.runs = now, runs
}

// gpuTime is the GPU time of a job on a card. The charges and the driver's samples each cover only a
// part of it when gates open and shut, so the larger one counts.
func (r *Reporter) gpuTime(rec ledger.Record, card gpu.UUID, chargedNS uint64) time.Duration {
	r.gpuSeconds.mu.Lock()
	defer r.gpuSeconds.mu.Unlock()
	return max(r.gpuSeconds.runs[runOf(rec, card)].had, time.Duration(min(chargedNS, 1<<62)))
}

// limitedSeconds is the time with work for each word of limit.by.
func (r *Reporter) limitedSeconds(rec ledger.Record, card gpu.UUID) map[string]float64 {
	r.gpuSeconds.mu.Lock()
	defer r.gpuSeconds.mu.Unlock()
	seconds := map[string]float64{}
	for word, d := range r.gpuSeconds.runs[runOf(rec, card)].limited {
		seconds[word] = d.Seconds()
	}
	return seconds
}

// limit is the reason why a job does not get more of a card, as the arbiter sees it.
type limit struct {
	bound   arbiter.Bound
	mode    gpu.Mode
	ceiling gpu.Share // 0: none
}

// full is the percentage of a limit from which a job has reached it.
const full = 95

// by is the reason in the words of wire.JobUse.LimitedBy. The percentage of the card that the job got
// adds what the arbiter does not know: the card is full, and a soft job has no limit below its ceiling.
func (l limit) by(got *float64) string {
	atCeiling := l.ceiling != 0 && (got == nil || *got >= full*float64(l.ceiling)/100)
	switch {
	case l.bound == arbiter.ByProgram && got != nil && *got >= full,
		l.bound == arbiter.ByLimit && l.mode == gpu.Soft && !atCeiling:
		return "card"
	}
	return string(l.bound)
}
