// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"fmt"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// Sentinels for errors.Is.
var (
	// ErrNoRoom: the cards are too full now; the job may fit later.
	ErrNoRoom = errors.New("no room")
	// ErrNoCard: this node cannot serve the request even when it is empty.
	ErrNoCard = errors.New("no such card")
	// ErrChoice is an ErrNoCard of a card that slurmctld chose: the node or the site is at fault, and
	// not the request.
	ErrChoice = errors.New("slurmctld chose a card that cannot be shared")
)

// Free is what one card has left.
type Free struct {
	Index  int
	Units  gpu.Share
	Memory gpu.Bytes
}

// NoRoomError says what was asked on each card, and what is left.
type NoRoomError struct {
	Cards  int       // how many cards were asked for
	Units  gpu.Share // on each
	Memory gpu.Bytes // on each
	Free   []Free    // by index: the cards that were considered
}

// Error names the largest free share and the largest free memory, which may be
// on different cards: that is fragmentation, and worth seeing.
func (e *NoRoomError) Error() string {
	want := fmt.Sprintf("want %d %% and %s on each of %s", e.Units, e.Memory, count(e.Cards))
	if e.Cards == 1 {
		want = fmt.Sprintf("want %d %% and %s on one card", e.Units, e.Memory)
	}
	if len(e.Free) == 0 {
		return want + ": no card"
	}
	if len(e.Free) == 1 {
		f := e.Free[0]
		return fmt.Sprintf("%s: card %d has %d %% and %s free", want, f.Index, f.Units, f.Memory)
	}
	units, memory := e.Free[0], e.Free[0]
	for _, f := range e.Free {
		if f.Units > units.Units {
			units = f
		}
		if f.Memory > memory.Memory {
			memory = f
		}
	}
	return fmt.Sprintf("%s: largest free share %d %% (card %d), largest free memory %s (card %d)",
		want, units.Units, units.Index, memory.Memory, memory.Index)
}

// Is makes errors.Is(err, ErrNoRoom) true.
func (e *NoRoomError) Is(target error) bool { return target == ErrNoRoom }

// NoCardError says why this node cannot serve the request.
type NoCardError struct {
	Why    string
	Choice bool // ErrChoice as well
}

func (e *NoCardError) Error() string { return e.Why }

// Is makes errors.Is(err, ErrNoCard) true, and ErrChoice where the choice is wrong.
func (e *NoCardError) Is(target error) bool {
	return target == ErrNoCard || e.Choice && target == ErrChoice
}

func wrongChoice(format string, args ...any) error {
	return &NoCardError{Why: fmt.Sprintf(format, args...), Choice: true}
}
