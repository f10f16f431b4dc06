// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
)

// Verdict is the result of a slice test.
type Verdict string

// Verdicts.
const (
	Unknown Verdict = ""
	Obeyed  Verdict = "obeyed"
	Ignored Verdict = "ignored" // although the driver reports the slices as set
)

const (
	// shortUS and longUS are the slices of the two processes, in microseconds.
	shortUS, longUS = 2000, 6000
	// A card obeys if the process with the long slice has from leastTimes to mostTimes the time of
	// the process with the short slice. The ratio is about 3: context switches and the first and last
	// turn change it. If a card ignores slices, the ratio is 1.
	leastTimes, mostTimes = 2.0, 4.0
	// A verdict needs leastTurns of each process. It also needs one of the two on the card for the part
	// leastBusy of the span.
	leastTurns = 3
	leastBusy  = 0.8
	// mostOfOthers is the part of the time that others may have had, such as a screen.
	mostOfOthers = 0.02
)

var (
	errInUse     = errors.New("the card is in use")
	errRefused   = errors.New("the driver refuses slices")
	errTooLittle = errors.New("too little work was on the card")
)

// judge returns the verdict on a card from the time that it gave two busy processes, and other
// processes, in a span.
func judge(span time.Duration, short, long gputime.Use, others time.Duration) (Verdict, error) {
	busy := short.Had + long.Had
	switch {
	case float64(others) > mostOfOthers*float64(span):
		return Unknown, fmt.Errorf("%w: another process had it for %v of %v", errInUse, others, span)
	case min(short.Turns, long.Turns) < leastTurns || float64(busy) < leastBusy*float64(span):
		return Unknown, fmt.Errorf("%w: for %v of %v, in %d and %d turns", errTooLittle, busy, span, short.Turns, long.Turns)
	}
	if times := float64(long.Had) / float64(short.Had); times >= leastTimes && times <= mostTimes {
		return Obeyed, nil
	}
	return Ignored, nil
}
