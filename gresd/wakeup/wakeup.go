// SPDX-License-Identifier: Apache-2.0

// Package wakeup has timers and bells. It aligns periodic work to common moments, so that an idle
// gresd wakes once for all of it. A wakeup costs about as much as most of that work.
package wakeup

import (
	"context"
	"time"
)

// Bell wakes a goroutine that receives from it. Rings without a receiver wake the next one once.
type Bell chan struct{}

// NewBell returns a silent bell.
func NewBell() Bell { return make(Bell, 1) }

// Ring never blocks.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// Sleep returns when d has passed. It returns true early if the bell has rung since the last return.
func (b Bell) Sleep(d time.Duration) (woken bool) {
	select {
	case <-b:
		return true
	case <-time.After(d):
		return false
	}
}

// Wait waits so long; false when ctx was done before.
func Wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Next is the time until a moment at which others wake too: until the clock is a
// multiple of d, and at least a quarter of d.
func Next(d time.Duration) time.Duration { return After(time.Now(), d) }

// Rest is the pause after work that took so long. With it, repeated work takes at most a tenth of a
// core.
func Rest(took time.Duration) time.Duration { return 9 * took }

// After is the same from another time on.
func After(now time.Time, d time.Duration) time.Duration {
	left := d - time.Duration(now.UnixNano())%d
	if left < d/4 {
		left += d
	}
	return left
}
