// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
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

// ask returns the answer, or ErrNoAnswer when there was none in time, or when too many earlier
// questions wait for theirs.
func ask[T any](a *asker, wait time.Duration, what string, question func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	late := answer{err: fmt.Errorf("%s: %w", what, ErrNoAnswer)}
	if a.unanswered.Load() >= mostUnanswered {
		return late.value, late.err
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := question()
		answers <- answer{value, err}
	}()
	timer := time.NewTimer(cmp.Or(a.impatient, wait))
	defer timer.Stop()
	select {
	case got := <-answers:
		return got.value, got.err
	case <-timer.C:
	}
	a.unanswered.Add(1)
	go func() {
		<-answers
		a.unanswered.Add(-1)
	}()
	return late.value, late.err
}
