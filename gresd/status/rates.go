// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	// ratesFor is how long rates are told again: whatever the number of clients,
	// caches and driver are asked no more often.
	ratesFor = time.Second
	// firstSpan is what is measured over when nobody has asked for a while, and
	// staleAfter how long that is.
	firstSpan  = 250 * time.Millisecond
	staleAfter = 5 * time.Second
	// throttledFrom is the percentage of time from which a job counts as throttled.
	throttledFrom = 1.0
)

// rateCache has the rates of jobs over the last second. They are measured only for a request.
type rateCache struct {
	mu     sync.Mutex
	at     time.Time
	waited map[cardOfJob]uint64 // at that time, in nanoseconds
	rates  map[cardOfJob]rate
}

type cardOfJob struct {
	job  uint32
	card gpu.UUID
}

// rate is in percent; nil is not known.
type rate struct{ compute, wait *float64 }

// rates returns the rates of all jobs. The lock also makes askers wait for the
// one who measures, so that they share its answer.
func (r *Reporter) rates(ctx context.Context) map[cardOfJob]rate {
	l := &r.rateCache
	l.mu.Lock()
	defer l.mu.Unlock()
	age := time.Since(l.at)
	if age < ratesFor {
		return l.rates
	}
	views := r.views()
	if age > staleAfter && len(views) > 0 {
		l.at, l.waited = time.Now(), waitedOf(views)
		if !wakeup.Wait(ctx, firstSpan) {
			return nil
		}
		views = r.views()
	}
	now := time.Now()
	waited, rates := waitedOf(views), map[cardOfJob]rate{}
	samples := r.samples(r.Cards.IDs())
	for job, view := range views {
		for i, card := range view.Cards {
			uuid := gpu.UUID(card.UUID)
			key := cardOfJob{job, uuid}
			got := rate{compute: percentOf(view, i, samples[uuid])}
			if before, known := l.waited[key]; known && waited[key] >= before && now.After(l.at) {
				percent := 100 * float64(waited[key]-before) / float64(now.Sub(l.at))
				// The job's user can write any number: none is above this.
				percent = min(percent, 100*float64(max(1, len(view.Slots))*threads))
				got.wait = &percent
			}
			rates[key] = got
		}
	}
	l.at, l.waited, l.rates = now, waited, rates
	return rates
}

// threads of one process that are believed to wait at once.
const threads = 64

func (r *Reporter) views() map[uint32]libvgpu.CacheView {
	views := map[uint32]libvgpu.CacheView{}
	for _, rec := range r.Ledger.List() {
		view, err := r.Grants.Cache(rec.JobID, 0)
		if err != nil || len(view.Cards) != len(rec.Placement.Cards) {
			continue
		}
		view.Cards = slices.Clone(view.Cards) // others read the same view
		for i, card := range rec.Placement.Cards {
			view.Cards[i].UUID = string(card.UUID) // not what the job's user wrote there
		}
		views[rec.JobID] = view
	}
	return views
}

func waitedOf(views map[uint32]libvgpu.CacheView) map[cardOfJob]uint64 {
	waited := map[cardOfJob]uint64{}
	for job, view := range views {
		for _, card := range view.Cards {
			waited[cardOfJob{job, gpu.UUID(card.UUID)}] = card.Budget.WaitNS
		}
	}
	return waited
}

// percentOf adds up the processes of a job. One that the driver does not list was
// idle; one whose pid on the host is not known makes the whole unknown.
func percentOf(view libvgpu.CacheView, card int, lately gputime.Card) *float64 {
	var sum float64
	for _, slot := range view.Slots {
		if !slot.Alive || slot.Cards[card].Contexts == 0 {
			continue
		}
		part, known := lately.Process(slot.HostPID)
		if slot.HostPID == 0 || !known {
			return nil
		}
		sum += 100 * part
	}
	sum = min(sum, 100)
	return &sum
}

func (r *Reporter) addJobRates(ctx context.Context, jobs []wire.Job) {
	rates := r.rates(ctx)
	for _, job := range jobs {
		for i := range job.Cards {
			c := &job.Cards[i]
			got := rates[cardOfJob{job.JobID, gpu.UUID(c.UUID)}]
			c.GotPercent, c.ThrottledPercent = got.compute, got.wait
		}
	}
}

func (r *Reporter) addCardRates(ctx context.Context, cards []wire.Card) {
	rates := r.rates(ctx)
	for i := range cards {
		c := &cards[i]
		var sum float64
		known := true
		for key, got := range rates {
			if key.card != gpu.UUID(c.UUID) {
				continue
			}
			if got.wait != nil && *got.wait >= throttledFrom {
				c.Throttled++
			}
			if got.compute == nil {
				known = false
				continue
			}
			sum += *got.compute
		}
		if known && r.Samples != nil {
			sum = min(sum, 100)
			c.ComputePercent = &sum
		}
	}
}
