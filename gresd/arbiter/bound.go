// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"time"
)

// Bound is what keeps a job from having more of a card than it has.
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
	// keptEnough is the part of what it would have alone under its share from which neighbours do
	// not count as what bounds it; below keptLittle they take its time.
	keptEnough = 0.85
	keptLittle = 0.6
)

// bounds follows what bounds a job on a card. Whether the job would have more without its
// neighbours follows from the card's records: alone it would not wait for them, so of the time
// for which it does not wait, it would have the same part of all time.
type bounds struct {
	had, waited float64 // parts of the time; they fade
	known       bool
	held        time.Duration // for so long it still counts as held by its budget
	deprived    time.Duration // for so long neighbours have taken its time
}

// look adds a look at a job that has work. lone says that no other job has work on the card.
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

// kept is the part that it has of what it would have alone under its share.
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
