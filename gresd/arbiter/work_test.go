// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"testing"
	"time"
)

func TestHeldButIdleTime(t *testing.T) {
	r := Runner{}
	key := Key{7, "GPU-a"}
	at := time.Unix(1000, 0)
	look := func(known, busy bool, after time.Duration) {
		at = at.Add(after)
		last := time.Time{}
		if busy {
			last = at
		}
		r.work.note(key, known, busy, last, at)
	}
	if _, known := r.Work(key); known {
		t.Error("a job that was never looked at")
	}
	look(true, false, 0)
	look(true, false, 100*time.Millisecond) // + 0.1
	look(true, true, 100*time.Millisecond)
	worked := at
	look(true, false, 100*time.Millisecond)
	look(true, false, 100*time.Millisecond) // + 0.1
	look(true, false, time.Hour)            // + 1: gresd was stopped
	w, known := r.Work(key)
	if want := 1200 * time.Millisecond; !known || w.Idle != want || w.Busy || !w.Last.Equal(worked) || w.TakesTurns {
		t.Errorf("%+v, %v; want %s idle, last work at %s", w, known, want, worked)
	}
	look(false, false, 100*time.Millisecond)
	if _, known := r.Work(key); known {
		t.Error("a job whose cache cannot be read")
	}
	look(true, false, 100*time.Millisecond)
	if w, known := r.Work(key); !known || w.Idle != 1200*time.Millisecond {
		t.Errorf("what was not seen was counted: %+v, %v", w, known)
	}
	r.work.keep(nil)
	if _, known := r.Work(key); known {
		t.Error("a job that has ended")
	}
}

func TestTurnsAreCounted(t *testing.T) {
	var l ledgerOfWork
	a, b := Key{1, "GPU-a"}, Key{2, "GPU-a"}
	now := time.Now()
	for _, key := range []Key{a, b} {
		l.note(key, true, true, now, now)
	}
	d := &dealer{period: 10_000_000, members: []*member{{quantum: 1_000_000, wants: true}, {quantum: 1_000_000, wants: true}}}
	d.members[0].Key, d.members[1].Key = a, b
	for i := range int64(5) {
		d.deal(i * 1_000_000)
	}
	l.turns(d)
	l.turns(d)
	if l.jobs[a].Turns != 3 || l.jobs[b].Turns != 2 || !l.jobs[b].TakesTurns {
		t.Errorf("%d and %d turns, want 3 and 2", l.jobs[a].Turns, l.jobs[b].Turns)
	}
}
