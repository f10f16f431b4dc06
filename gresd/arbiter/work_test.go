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

func TestWindowsAreCounted(t *testing.T) {
	var l ledgerOfWork
	var w windows
	a, b, now := wants(claim(1, 10, hard, 1)), wants(claim(2, 90, hard, 1)), time.Now()
	l.note(a.Key, true, true, now, now)
	l.note(b.Key, true, true, now, now)
	for i := range int64(4) { // three periods of 50 ms
		w.update([]Claim{a, b}, make([]usage, 2), params, now, 1e12+i*50*ms)
	}
	for range 2 {
		l.windows(a.Key, w.jobs[a.Key])
	}
	if got := l.jobs[a.Key]; got.Turns != 3 || !got.TakesTurns || l.jobs[b.Key].TakesTurns {
		t.Errorf("%d windows, want 3", got.Turns)
	}
}
