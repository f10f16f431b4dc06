// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"math"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/timeout"
)

const (
	// patience is how long the driver may take for one answer, and
	// firstPatience how long for all that a card is: without persistence mode
	// the first question starts the card.
	patience      = 3 * time.Second
	firstPatience = time.Minute
	// mostUnanswered bounds the threads that wait in a driver that hangs, of questions about one
	// card: one that hangs takes no answers from others.
	mostUnanswered = 4
	// theNode is what questions are about that are not about one card.
	theNode gpu.UUID = ""
)

func newStuck() *timeout.Calls[gpu.UUID] { return timeout.New[gpu.UUID](mostUnanswered, math.MaxInt) }

// ask returns the answer, or ErrNoAnswer when there was none in time, or when too many earlier
// questions wait for theirs.
func ask[T any](n *NVML, about gpu.UUID, wait time.Duration, what string, question func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	got, ok := timeout.Run(n.stuck, about, wait, func() answer {
		value, err := question()
		return answer{value, err}
	})
	if !ok {
		got.err = fmt.Errorf("%s: %w", what, ErrNoAnswer)
	}
	return got.value, got.err
}
