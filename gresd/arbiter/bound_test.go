// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"testing"
	"time"
)

// What bounds a job that shares a card follows from what it had and for what it waited.
func TestWhatBoundsAJob(t *testing.T) {
	for _, c := range []struct {
		name          string
		share         uint32
		had, waited   float64
		held, lone    bool
		want          Bound
		deprivedAfter time.Duration // at least; 0: not
	}{
		{"alone, not held", 30, 0.2, 0, false, true, ByProgram, 0},
		{"alone, held", 30, 0.3, 0, true, true, ByLimit, 0},
		{"its share of a full queue", 30, 0.3, 0.7, false, false, ByLimit, 0},
		{"half its share of a full queue", 30, 0.15, 0.85, false, false, ByNeighbors, 2 * time.Second},
		{"three quarters of it", 30, 0.23, 0.77, false, false, ByNeighbors, 0},
		{"needs little, and hardly waits", 50, 0.2, 0.05, false, false, ByProgram, 0},
		{"needs little, and waits for twice its time", 50, 0.1, 0.5, false, false, ByNeighbors, 2 * time.Second},
		{"data is late", 50, 0.1, 0, false, false, ByProgram, 0},
		{"held at its limit beside idle time of others", 30, 0.3, 0.1, true, false, ByLimit, 0},
	} {
		var b bounds
		var got Bound
		for range 80 { // 4 s
			got = b.look(claim(1, c.share, hard, 1), usage{
				ns: c.had * 50e6, span: 50 * msec, look: 50 * msec, exact: true, wants: c.had + c.waited, held: c.held,
			}, c.lone)
		}
		if got != c.want || b.deprived < c.deprivedAfter || c.deprivedAfter == 0 && b.deprived != 0 {
			t.Errorf("%s: bound by %q, deprived for %v, want %q, %v", c.name, got, b.deprived, c.want, c.deprivedAfter)
		}
	}
}

// The time for which neighbours take a job's time ends when they do not.
func TestDeprivedEnds(t *testing.T) {
	var b bounds
	look := func(had float64) {
		b.look(claim(1, 50, hard, 1), usage{ns: had * 50e6, span: 50 * msec, look: 50 * msec, exact: true, wants: 1}, false)
	}
	for range 300 {
		look(0.1)
	}
	if b.deprived < 14*time.Second {
		t.Errorf("deprived for %v after 15 s", b.deprived)
	}
	for range 100 {
		look(0.5)
	}
	if b.deprived != 0 {
		t.Errorf("deprived for %v after it had its share for 5 s", b.deprived)
	}
}
