// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/beat"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/cardtime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// A look at all jobs costs gresd more than all else that it does. While interactive jobs
// have neighbours, only one thing must be known more often than at each tick: whether one
// of them has used up its credit, or has one again, or has begun to work. A peek asks
// just that, of those jobs alone; if so, it is time for a look.

// looks are the moments at which the runner looks.
type looks struct {
	full  time.Time // at all jobs
	quick time.Time // at interactive ones, if there are some with neighbours
	rest  time.Time // nothing before
	last  time.Time // when the cards were last asked
	known time.Time // up to when the last look at all jobs knew what the cards tell
}

// follower is an interactive job beside others.
type follower struct {
	Claim
	most float64 // part of the card that it can have while its neighbours want theirs
}

// next is when there is something to do.
func (r *Runner) next(l *looks) time.Time {
	if r.quick && l.quick.Before(l.full) {
		return l.quick
	}
	return l.full
}

// lookWhenDue looks at all jobs when it is time, or when a peek says that it is, and sets
// the next moments.
func (r *Runner) lookWhenDue(l *looks, clock func() time.Time) {
	now := clock()
	if now.Before(r.next(l)) {
		return
	}
	tick := r.pace.Load().tick
	if due := !now.Before(l.full); due || r.turning() || r.peek(now) {
		l.full = now.Add(beat.After(now, tick))
		if awake := r.step(now); awake == 0 {
			l.full = now.Add(time.Hour) // or when woken
		}
		l.known = l.last // an answer is of the question before
	}
	l.last = now
	l.rest = now.Add((1 + idlePart) * clock().Sub(now))
	// Whole parts of a tick: each last one is the next look.
	quick := tick / max(1, (tick+quickTick/2)/quickTick)
	l.quick = now.Add(beat.After(now, quick))
	for l.quick.Before(l.full) && !r.turning() && !r.mayTurn(l.quick, l.known) {
		l.quick = l.quick.Add(quick)
	}
	for _, at := range []*time.Time{&l.full, &l.quick} {
		if at.Before(l.rest) {
			*at = l.rest
		}
	}
}

// turning says that jobs take turns somewhere: there every quick look is one at all jobs.
// With 20 looks a second a job of 30 that waits for results had up to 34.6 % beside one of
// 70 (simulated card), with 60 no more than 32.0.
func (r *Runner) turning() bool { return len(r.dealers) > 0 }

// follow remembers the interactive jobs that have neighbours.
func (r *Runner) follow(claims []Claim, plan map[Key]libvgpu.Schedule) {
	r.followed = r.followed[:0]
	for _, c := range claims {
		s := plan[c.Key]
		if !c.Interactive || s.Others == 0 {
			continue
		}
		most := float64(s.WeightPPM) * float64(procs(c)) / 1e6
		if most == 0 || s.Gate&libvgpu.GateTurn != 0 {
			most = 1
		}
		r.followed = append(r.followed, follower{c, min(1, most)})
	}
}

// mayTurn says whether what a peek looks for can be so at some time, by what the last look
// knew. So when it is so, the next peek is not left out, nor the one after it, which has the
// card's answer to it.
func (r *Runner) mayTurn(at, known time.Time) bool {
	for _, c := range r.followed {
		state := r.sampler.jobs[jobKey{c.JobID, r.place[c.Key]}]
		since := known
		if !c.Measured {
			since = state.seen
		}
		used := usage{span: at.Sub(since), exact: c.Measured, all: 1}
		if state.eager {
			used.ns, used.all = c.most*float64(used.span), 0
		}
		if c.Busy == 0 || state.after(used, c.Cores, true).eager != state.eager {
			return true
		}
	}
	return false
}

// peek says whether a look would tell the neighbours of an interactive job something else.
// It changes nothing that a look counts with, but that new accounts of the cards are made.
func (r *Runner) peek(now time.Time) bool {
	accounts := map[gpu.UUID]cardtime.Account{}
	turned := false
	for _, c := range r.followed { // all: every card is to be asked
		key := jobKey{c.JobID, r.place[c.Key]}
		used := usage{span: now.Sub(r.sampler.jobs[key].seen)}
		card := r.sampler.exact.cards[c.Card]
		measured := c.Measured && card != nil
		if measured {
			account, asked := accounts[c.Card]
			if !asked {
				account, _ = r.sampler.exact.times.OnCard(c.Card)
				accounts[c.Card] = account
			}
			used = r.sampler.hadOf(key, card, account)
		}
		if !measured || c.Busy == 0 {
			view, err := r.grants.Cache(c.JobID, atOnce)
			if err != nil {
				continue
			}
			ns, begins := r.sampler.saidOf(key, view)
			if !measured {
				used.ns = ns
			}
			turned = turned || begins && c.Busy == 0
		}
		before := r.sampler.jobs[key]
		turned = turned || before.after(used, c.Cores, true).eager != before.eager
	}
	return turned
}

// hadOf is what a job had of a card since the last look, by the card's records.
func (s *sampler) hadOf(key jobKey, card *cardAccount, account cardtime.Account) usage {
	u := usage{exact: true, all: card.all}
	if !card.begun || account.At <= card.sum.At {
		return u // nothing new, or of a time in which nobody asked
	}
	u.span = account.At - card.sum.At
	for _, pid := range s.jobs[key].pids {
		u.ns += float64(hadSince(account.Had[pid], card.sum.Had[pid]))
	}
	return u
}

// saidOf is what the processes of a job say that they had of a card since the last look.
// begins: one has work that it did not have.
func (s *sampler) saidOf(key jobKey, view libvgpu.CacheView) (ns float64, begins bool) {
	for _, slot := range view.Slots {
		if !slot.Alive || key.card >= len(slot.Cards) {
			continue
		}
		c := slot.Cards[key.card]
		state := s.procs[procKey{key.job, slot.PIDNS, slot.PID, slot.StartTime, key.card}]
		begins = begins || c.InflightNS > 0 || c.Launches != state.launches
		if c.GPUNS > state.gpuNS {
			ns += float64(c.GPUNS - state.gpuNS)
		}
	}
	return ns, begins
}
