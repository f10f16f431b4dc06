// SPDX-License-Identifier: Apache-2.0

package gputime

import (
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Grants gives the meter access to the open grants.
type Grants interface {
	Cache(jobID uint32, maxAge time.Duration) (libvgpu.CacheView, error)
	Schedule(jobID uint32, card int) libvgpu.Schedule
	AddCredit(jobID uint32, card int, d time.Duration)
	SetGaps(jobID uint32, card int, idle float64, valid time.Duration)
}

// Meter gives all parts of gresd the records of cards, the driver's samples, and the work of jobs
// by both. It corrects the budgets of jobs by their work.
type Meter struct {
	*Records
	*Sampler
	grants Grants
	cards  map[gpu.UUID]*cardJobs
}

type cardJobs struct {
	jobs        Jobs
	corrections map[uint32]*correction
}

// NewMeter returns a meter. Its work starts with the first question.
func NewMeter(records *Records, samples *Sampler, grants Grants) *Meter {
	return &Meter{records, samples, grants, map[gpu.UUID]*cardJobs{}}
}

// Second adds what the jobs of a card did since the last call, and corrects their budgets. It is for one
// goroutine, about once a second.
func (m *Meter) Second(v View) (Card, map[uint32]Used) {
	c := m.cards[v.UUID]
	if c == nil {
		c = &cardJobs{corrections: map[uint32]*correction{}}
		m.cards[v.UUID] = c
	}
	card, looks := m.Look(v.UUID, c.jobs.until)
	if card.looks == nil {
		delete(m.cards, v.UUID)
		return card, nil
	}
	var records *Account
	if v.Shared {
		if account, known := m.OnCard(v.UUID); known {
			records = &account
		}
	}
	used := c.jobs.Add(v, looks, records)
	corrections := map[uint32]*correction{}
	for job, u := range used {
		corrections[job] = c.corrections[job]
		if corrections[job] == nil {
			corrections[job] = &correction{}
		}
		m.correct(job, corrections[job], u, float64(v.Limits[job])/100)
	}
	if looks != nil {
		c.corrections = corrections
	}
	return card, used
}

func (m *Meter) correct(job uint32, c *correction, u Used, limit float64) {
	view, err := m.grants.Cache(job, 0)
	if err != nil || len(view.Cards) != 1 || !onlyBudget(m.grants.Schedule(job, 0)) {
		*c = correction{}
		return
	}
	b := view.Cards[0].Budget
	g := c.read(sums{b.ChargedNS, view.Cards[0].GapsNS, view.Cards[0].IdleNS, b.BalanceNS}, u, time.Now())
	c.learn(g, u)
	m.grants.SetGaps(job, 0, c.idlePart, longestSpan)
	if d := c.add(g, u, time.Duration(limit*float64(u.Span))); d != 0 {
		m.grants.AddCredit(job, 0, d)
	}
}

// onlyBudget reports whether only the budget limits the job, so that all of its work is charged.
func onlyBudget(s libvgpu.Schedule) bool { return s.Gate == libvgpu.GateBudget }
