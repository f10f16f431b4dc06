// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"sync/atomic"
	"time"
)

const (
	// patience is how long the driver may take for one answer, and
	// firstPatience how long for all that a card is: without persistence mode
	// the first question starts the card.
	patience      = 3 * time.Second
	firstPatience = time.Minute
	// mostUnanswered bounds the threads that wait in a driver that hangs.
	mostUnanswered = 4
)

// asker puts questions to a driver that may never answer. A call into the
// driver cannot be taken back: its thread waits on, and its answer is dropped.
type asker struct {
	impatient  time.Duration // in tests: shorter than what is asked for
	unanswered atomic.Int32
}

// ask returns the answer, or false when there was none in time, or when too many
// earlier questions wait for theirs.
func ask[T any](a *asker, wait time.Duration, question func() T) (T, bool) {
	var none T
	if a.unanswered.Load() >= mostUnanswered {
		return none, false
	}
	answer := make(chan T, 1)
	go func() { answer <- question() }()
	if a.impatient != 0 {
		wait = a.impatient
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case got := <-answer:
		return got, true
	case <-timer.C:
	}
	a.unanswered.Add(1)
	go func() {
		<-answer
		a.unanswered.Add(-1)
	}()
	return none, false
}
