// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"errors"
	"log/slog"
	"testing"
	"time"
)

func TestHeldButIdleTime(t *testing.T) {
	w := &worked{}
	at := time.Unix(1000, 0)
	look := func(known, busy bool, after time.Duration) {
		at = at.Add(after)
		last := time.Time{}
		if busy {
			last = at
		}
		w.note(known, busy, last, at)
	}
	look(true, false, 0)
	look(true, false, 100*time.Millisecond) // + 0.1
	look(true, true, 100*time.Millisecond)
	last := at
	look(true, false, 100*time.Millisecond)
	look(true, false, 100*time.Millisecond) // + 0.1
	look(true, false, time.Hour)            // + 1: gresd was stopped
	if want := 1200 * time.Millisecond; !w.known || w.Idle != want || w.Busy || !w.Last.Equal(last) || w.TakesTurns {
		t.Errorf("%+v; want %s idle, last work at %s", w, want, last)
	}
	look(false, false, 100*time.Millisecond)
	look(true, false, 100*time.Millisecond)
	if w.Idle != 1200*time.Millisecond {
		t.Errorf("what was not seen was counted: %+v", w)
	}
}

// Nothing is known of a job that was never found, that something else holds at its share, whose cache
// cannot be read, or that has ended.
func TestWhatIsKnownOfAJob(t *testing.T) {
	f, held := newFakeGrants(), false
	r := NewRunner(f, params, time.Second, slog.New(slog.DiscardHandler))
	r.Except(func(uint32) bool { return held })
	check := func(want bool, what string) {
		t.Helper()
		if _, known := r.Work(Key{7, "A"}); known != want {
			t.Errorf("%s: known %v", what, known)
		}
	}
	check(false, "never found")
	f.add(7, 30, view(slot(1, 1, 9)))
	r.step(time.Now())
	check(true, "found")
	held = true
	r.step(time.Now())
	check(false, "held")
	held, f.errs[7] = false, errors.New("cut")
	r.step(time.Now())
	check(false, "broken")
	delete(f.errs, 7)
	r.step(time.Now())
	check(true, "found again")
	delete(f.specs, 7)
	r.step(time.Now())
	check(false, "ended")
}

func TestWindowsAreCounted(t *testing.T) {
	var c card
	for i := range int64(4) { // three periods of 50 ms
		c.found([]Claim{noSlices(wants(claim(1, 10, hard, 1))), wants(claim(2, 90, hard, 1))}, nil)
		c.setWindows(params, time.Now(), 1e12+i*50*ms)
	}
	r := NewRunner(newFakeGrants(), params, time.Second, slog.New(slog.DiscardHandler))
	works := map[Key]Work{}
	for range 2 {
		c.publish(r, works, time.Now())
	}
	if got := works[Key{1, "A"}]; got.Turns != 3 || !got.TakesTurns {
		t.Errorf("%d windows, want 3", got.Turns)
	}
}
