// SPDX-License-Identifier: Apache-2.0

package arbiter

import "time"

// trial finds how long the slice of a job's only neighbour should be at least, where that is as
// short as it gets. What the job's host launches until it waits either fits between two turns
// of the neighbour, or it leaves the card in the midst of it and waits for one turn more.
// Then a longer slice may serve both. Hosts differ, so it is tried: the length stays with
// which the host waits more often, so does more.
type trial struct {
	longer bool    // what holds
	trying bool    // since the last window
	rate   float64 // waits a second with what was held before, or with what was found to be better
	rests  int     // windows for which nothing is tried
	pause  int     // for how many it is after the next trial

	looks int // of this window; below 0: such as do not count
	span  time.Duration
	waits uint64
	turns uint64
}

const (
	// brokenFrom is how many turns a job needs for each wait from which its neighbour's slice
	// seems too short. (PyTorch's inference needs 1.2 with any slice on an H100.)
	brokenFrom = 1.45
	// trialLooks are a window, and trialWaits is how often a host must wait in it to tell something.
	// Nothing is tried for firstRests windows after a trial, after the next one twice as long, up to
	// trialRests, unless the host waits less often than fallenTo of what it did.
	trialLooks = 10
	trialWaits = 40
	firstRests = 2
	trialRests = 20
	fallenTo   = 0.75
)

// look adds a look at a job. brief says that its neighbours' slices are as short as they get.
func (t *trial) look(u usage, brief bool) {
	t.looks++
	if !brief || t.looks <= 0 {
		t.begin(min(t.looks, 0))
		return
	}
	t.span, t.waits, t.turns = t.span+u.span, t.waits+u.waits, t.turns+u.turns
	if t.looks < trialLooks {
		return
	}
	rate := float64(t.waits) / t.span.Seconds()
	broken := float64(t.turns) > brokenFrom*float64(t.waits)
	told := t.waits >= trialWaits
	t.begin(0)
	switch {
	case t.trying && rate < t.rate:
		t.change()
		t.rest()
	case t.trying:
		t.rate = rate
		t.rest()
	case t.rests > 0 && rate > fallenTo*t.rate:
		t.rests--
	case told && (broken || t.longer):
		if t.rests > 0 { // the host does something else
			t.pause = 0
		}
		t.change()
		t.trying, t.rate = true, rate
	}
}

// rest ends a trial.
func (t *trial) rest() {
	t.pause = max(firstRests, min(2*t.pause, trialRests))
	t.trying, t.rests = false, t.pause
}

// change takes the other length. It is told after this look, so the next one shows both.
func (t *trial) change() {
	t.longer = !t.longer
	t.begin(-1)
}

// begin begins a window.
func (t *trial) begin(looks int) { t.looks, t.span, t.waits, t.turns = looks, 0, 0, 0 }
