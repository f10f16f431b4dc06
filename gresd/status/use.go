// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Samples is what cards did lately, as the driver tells it. Cards that do not
// answer are absent.
type Samples interface {
	Cards([]gpu.UUID) map[gpu.UUID]gputime.Card
}

// workOf is the work of a job on a card, if that is known.
func (r *Reporter) workOf(jobID uint32, card gpu.UUID) (w arbiter.Work, known bool) {
	if r.Work == nil {
		return w, false
	}
	return r.Work(arbiter.Key{JobID: jobID, Card: card})
}

// samples asks about cards; none where there is nobody to ask.
func (r *Reporter) samples(uuids []gpu.UUID) map[gpu.UUID]gputime.Card {
	if r.Samples == nil {
		return nil
	}
	return r.Samples.Cards(uuids)
}

// cardsInUse are the cards with what they do.
func (r *Reporter) cardsInUse() []wire.Card {
	cards := r.cardList()
	samples := r.samples(r.Cards.IDs())
	for i, c := range cards {
		got, known := samples[gpu.UUID(c.UUID)]
		if !known {
			continue
		}
		cards[i].UsedBytes = new(uint64(got.Memory))
		if got.Known {
			cards[i].Utilization = new(float64(got.Busy) / 100)
			cards[i].MemoryUtilization = new(float64(got.MemoryBusy) / 100)
		}
	}
	return cards
}

// deprivedFor is how long neighbors take a job's time until this is a problem.
const deprivedFor = 10 * time.Second

// deprived are problems for an administrator.
func (r *Reporter) deprived() (problems []string) {
	for _, rec := range r.Ledger.List() {
		for _, c := range rec.Placement.Cards {
			if w, known := r.workOf(rec.JobID, c.UUID); known && w.Deprived >= deprivedFor {
				problems = append(problems, fmt.Sprintf("job %d has had %.0f%% of the time of card %s for %v, of a share of %d%%: "+
					"its neighbors take its time; run fewer jobs on the card, or give the job a higher priority",
					rec.JobID, 100*w.Had, r.Cards.Name(c.UUID), w.Deprived.Round(time.Second), c.Cores))
			}
		}
	}
	return problems
}

// unwatched are processes in which libvgpu could start no thread, in words.
func (r *Reporter) unwatched() (problems []string) {
	for _, rec := range r.Ledger.List() {
		view, err := r.Grants.Cache(rec.JobID, viewAge)
		if err != nil {
			continue // another look says it
		}
		for _, slot := range view.Slots {
			if slot.Alive && slot.Flags&libvgpu.SlotUnwatched != 0 {
				problems = append(problems, fmt.Sprintf("process %d of job %d has no thread of libvgpu: it is held at its share at all times, "+
					"and learns late of changes; see ulimit -u and pids.max of the job", slot.PID, rec.JobID))
				break // one of a job is enough
			}
		}
	}
	return problems
}

// samplesOfJobs asks about the cards on which jobs have a share.
func (r *Reporter) samplesOfJobs(records []ledger.Record) map[gpu.UUID]gputime.Card {
	var uuids []gpu.UUID
	for _, rec := range records {
		for _, c := range rec.Placement.Cards {
			uuids = append(uuids, c.UUID)
		}
	}
	slices.Sort(uuids)
	return r.samples(slices.Compact(uuids))
}

// askedOf is what the user wrote, for the i-th card of a job.
func (r *Reporter) askedOf(rec ledger.Record, i int) wire.JobUse {
	held, req := rec.Placement.Cards[i], rec.Request
	use := wire.JobUse{AskedShare: uint32(held.Share)}
	if req.Share != 0 { // else the shards are what was asked for
		use.AskedShare = uint32(req.Share) / uint32(max(1, req.Cards))
	}
	use.AskedCores = use.AskedShare
	if req.Cores != 0 {
		use.AskedCores = uint32(req.Cores)
	}
	switch {
	case req.Memory.Bytes != 0:
		use.AskedBytes = new(uint64(req.Memory.Bytes))
	case req.Memory.Percent != 0:
		if card, here := r.Cards.Of(held.UUID); here {
			use.AskedBytes = new(uint64(card.MemoryShare(gpu.Share(req.Memory.Percent))))
		}
	}
	return use
}

// addWork adds what the arbiter knows of a job on a card.
func (r *Reporter) addWork(card *wire.JobCard, rec ledger.Record) (by limit) {
	w, known := r.workOf(rec.JobID, gpu.UUID(card.UUID))
	if !known {
		return by
	}
	by = limit{w.Bound, rec.Mode, rec.Ceiling}
	card.Busy, card.IdleSeconds, card.LimitedBy = &w.Busy, new(w.Idle.Seconds()), by.by(nil)
	if w.TakesTurns {
		card.Turns = &w.Turns
	}
	if !w.Last.IsZero() {
		card.LastWork = &w.Last
	}
	if w.Had >= 0 {
		card.Had, card.DeprivedSeconds = &w.Had, new(w.Deprived.Seconds())
	}
	return by
}

// addUse adds what the cache of a job and the driver's samples show of its i-th card.
func (r *Reporter) addUse(card *wire.JobCard, rec ledger.Record, i int, view libvgpu.CacheView, sample gputime.Card, processes bool) {
	c := view.Cards[i]
	card.UsedBytes = new(with(c.MemUsed, r.Grants.Outside(rec.JobID, i)))
	card.GPUSeconds = new(r.gpuTime(rec, gpu.UUID(card.UUID), c.Budget.ChargedNS).Seconds())
	card.ContextBytes, card.ModuleBytes, card.Refused = &c.Context, &c.Module, &c.Budget.Refused
	card.LaunchesThrottled, card.ThrottledSeconds = &c.Budget.Waits, new(float64(c.Budget.WaitNS)/1e9)
	// An MPS server computes for its clients: the driver does not know their parts.
	byMPS := r.ByMPS(rec.JobID)
	sum, known, procs := 0.0, !byMPS, 0
	for _, slot := range view.Slots {
		if !slot.Alive || slot.Cards[i].Contexts == 0 {
			continue
		}
		procs++
		p := wire.Process{JobPID: slot.PID, UsedBytes: slot.Cards[i].Mem, GPUSeconds: float64(slot.Cards[i].GPUNS) / 1e9, Unwatched: slot.Flags&libvgpu.SlotUnwatched != 0}
		if slot.OnHost {
			p.PID = slot.HostPID
		}
		part, told := sample.Process(p.PID)
		if told = told && slot.OnHost && !byMPS; told {
			p.Utilization = new(part)
		}
		sum, known = sum+part, known && told
		if processes {
			card.ByProcess = append(card.ByProcess, p)
		}
	}
	card.Processes = &procs
	if _, told := sample.Process(0); known && told {
		card.Utilization = new(min(1, sum))
	}
}
