// SPDX-License-Identifier: Apache-2.0

// Package wakeup aligns periodic work to common moments, so that an idle gresd wakes once for all
// of it: to wake costs about as much as most of that work.
package wakeup

import "time"

// Next is the time until a moment at which others wake too: until the clock is a
// multiple of d, and at least a quarter of d.
func Next(d time.Duration) time.Duration { return After(time.Now(), d) }

// Rest is the time for which work that took so long is not done again: what is done again and again
// takes no more than a tenth of a core, however much it has to look at.
func Rest(took time.Duration) time.Duration { return 9 * took }

// After is the same from another time on.
func After(now time.Time, d time.Duration) time.Duration {
	left := d - time.Duration(now.UnixNano())%d
	if left < d/4 {
		left += d
	}
	return left
}
