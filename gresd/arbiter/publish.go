// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Work is a job's work on one card since this gresd first saw it there.
type Work struct {
	Busy bool // a process has work on the card now
	// Idle is the time without a busy process of the job.
	Idle time.Duration
	// Last is when it last gave a sign of work; zero: never.
	Last time.Time
	// Turns counts its exclusive windows. TakesTurns: it has had one.
	Turns      uint64
	TakesTurns bool
	// Bound is its limit now; "": unknown, or it has no work. Had is its part of the card's time
	// lately, next to other busy jobs; negative: unknown. Deprived is the time since its neighbors
	// began to take time that it is entitled to.
	Bound    Bound
	Had      float64
	Deprived time.Duration
}

// longestLook bounds what one look can add to the idle time: a gresd that was
// stopped for a while does not know what happened meanwhile.
const longestLook = time.Second

// worked is a job's work, and the state behind it.
type worked struct {
	Work
	bounds bounds
	looked time.Time
	known  bool // at the last poll
}

// note adds one poll of a job. known is false if something else holds the job at its share, or its
// cache cannot be read.
func (w *worked) note(known, busy bool, last, now time.Time) {
	// Idle at both ends of the time between two polls.
	if known && w.known && !busy && !w.Busy {
		w.Idle += min(now.Sub(w.looked), longestLook)
	}
	w.looked, w.known = now, known
	if known {
		w.Busy = busy
		if last.After(w.Last) {
			w.Last = last
		}
	}
}

// publish writes the schedules into the grants, and adds what is known of the jobs' work.
func (c *card) publish(r *Runner, works map[Key]Work, now time.Time) {
	for _, j := range c.list {
		j.note(j.readable, j.Busy > 0, j.sign, now)
		s := j.schedule
		if r.grants.SetSchedule(j.JobID, j.place, s) && s.Gate&libvgpu.GateWindow == 0 {
			r.log.Debug("schedule", "job_id", j.JobID, "gpu_uuid", j.Card, "slice_us", s.SliceUS,
				"gate", s.Gate, "busy_procs", s.BusyProcs, "others", s.Others)
		}
		w := &j.worked
		w.Bound, w.Had, w.Deprived, w.Turns = "", -1, 0, j.given
		w.TakesTurns = w.Turns > 0
		switch {
		case j.Busy == 0:
			w.bounds = bounds{}
		case !c.concurrent:
			w.Bound = w.bounds.look(j.Claim, j.used, s.Others == 0)
			if w.bounds.known {
				w.Had, w.Deprived = w.bounds.had, w.bounds.deprived
			}
		}
		if w.known {
			works[j.Key] = w.Work
		}
	}
}

// Bound names the reason why a job has no more of a card.
type Bound string

// Bounds.
const (
	ByProgram   Bound = "program"   // the program does not give the card more to do
	ByNeighbors Bound = "neighbors" // other jobs have the card for time that the job is entitled to
	ByLimit     Bound = "limit"     // the job has its share, or its ceiling
)

const (
	// boundMemory is how long what a job had counts.
	boundMemory = 2 * time.Second
	// heldMemory is how long a launch that waited for the budget counts: it may wait for a while.
	heldMemory = time.Second
	// Neighbors do not limit a job that keeps at least keptEnough of its time alone under its
	// share. If it keeps less than keptLittle, they take its time.
	keptEnough = 0.85
	keptLittle = 0.6
)

// bounds follows what bounds a job on a card. The card's records show whether the job would have
// more without its neighbors. Alone it would not wait for them, and would have the same part of
// the remaining time.
type bounds struct {
	had, waited float64 // parts of the time; they fade
	known       bool
	held        time.Duration // for so long it still counts as held by its budget
	deprived    time.Duration // for so long neighbours have taken its time
}

// look adds a poll of a busy job. lone: no other job has work on the card.
func (b *bounds) look(c Claim, u usage, lone bool) Bound {
	if b.held -= u.look; u.held {
		b.held = heldMemory
	}
	switch {
	case lone:
		*b = bounds{held: b.held}
		if b.held > 0 {
			return ByLimit
		}
		return ByProgram
	case !u.exact || u.span == 0: // what was known holds
		return b.bound(c)
	}
	had := u.ns / float64(u.span)
	waited := max(0, u.wants-had)
	if !b.known {
		b.had, b.waited, b.known = had, waited, true
	}
	fade := math.Exp(-float64(u.span) / float64(boundMemory))
	b.had, b.waited = b.had*fade+had*(1-fade), b.waited*fade+waited*(1-fade)
	if b.kept(c) < keptLittle {
		b.deprived += u.span
	} else {
		b.deprived = 0
	}
	return b.bound(c)
}

// kept is the time that it has, as a part of its time alone under its share.
func (b *bounds) kept(c Claim) float64 {
	alone := b.had / max(0.01, 1-b.waited)
	return b.had / max(0.001, min(alone, float64(c.Cores)/100))
}

func (b *bounds) bound(c Claim) Bound {
	switch {
	case !b.known:
		return ""
	case b.kept(c) < keptEnough:
		return ByNeighbors
	case b.held > 0 || b.had >= keptEnough*float64(c.Cores)/100:
		return ByLimit
	}
	return ByProgram
}
