// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"slices"
	"sync"
	"time"
)

// Work is what a job did on one card since this gresd first saw it there.
type Work struct {
	Busy bool // a process has work on the card now
	// Idle is the time in which the job held its share and no process of it was
	// busy.
	Idle time.Duration
	// Last is when it last gave a sign of work; zero: never.
	Last time.Time
	// Turns are those it was given; TakesTurns says that it was ever given one.
	Turns      uint64
	TakesTurns bool
	// Bound is what keeps it from having more; "": nothing is known, or it has no work. Had is
	// the part of the card's time that it had lately, where other jobs have work there, too;
	// negative: not known. Deprived is for how long its neighbours have taken time that it is
	// entitled to.
	Bound    Bound
	Had      float64
	Deprived time.Duration
}

// longestLook bounds what one look can add to the idle time: a gresd that was
// stopped for a while does not know what happened meanwhile.
const longestLook = time.Second

// ledgerOfWork is what each job did. It is written by the runner and read by
// whoever asks.
type ledgerOfWork struct {
	mu   sync.Mutex
	jobs map[Key]*worked
}

type worked struct {
	Work
	bounds bounds
	looked time.Time
	known  bool // at the last look
}

// Work returns what a job did on a card. It is not known of jobs that something
// else holds at their share ([Runner.Except]) or whose cache cannot be read.
func (r *Runner) Work(key Key) (Work, bool) {
	r.work.mu.Lock()
	defer r.work.mu.Unlock()
	w := r.work.jobs[key]
	if w == nil || !w.known {
		return Work{}, false
	}
	return w.Work, true
}

// note adds one look at a job.
func (l *ledgerOfWork) note(key Key, known, busy bool, last, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs == nil {
		l.jobs = map[Key]*worked{}
	}
	w := l.jobs[key]
	if w == nil {
		w = &worked{looked: now, Work: Work{Had: -1}}
		l.jobs[key] = w
	}
	// Idle at both ends of the time between two looks.
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

// bound notes what bounds each job. others says how many neighbours have work on its card.
func (l *ledgerOfWork) bound(claims []Claim, used []usage, others func(Key) uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range claims {
		w := l.jobs[c.Key]
		if w == nil {
			continue
		}
		w.Bound, w.Had, w.Deprived = "", -1, 0
		if c.Busy == 0 {
			w.bounds = bounds{}
			continue
		}
		w.Bound = w.bounds.look(c, used[i], others(c.Key) == 0)
		if w.bounds.known {
			w.Had, w.Deprived = w.bounds.had, w.bounds.deprived
		}
	}
}

// windows adds the windows that a job was given since the last poll.
func (l *ledgerOfWork) windows(key Key, j *window) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.jobs[key]; w != nil && j.given > 0 {
		w.Turns, w.TakesTurns, j.given = w.Turns+j.given, true, 0
	}
}

// keep forgets all jobs but these, which are sorted.
func (l *ledgerOfWork) keep(jobs []uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.jobs {
		if _, open := slices.BinarySearch(jobs, key.JobID); !open {
			delete(l.jobs, key)
		}
	}
}
