// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// hold is how long a process counts as busy after its last sign of work. It
// bridges the host's work between two kernels.
const hold = 250 * time.Millisecond

// sampler remembers the last sign of work of each process. It is for one
// goroutine.
type sampler struct {
	procs map[procKey]procState
}

// procKey is one process on one card of a job.
type procKey struct {
	job       uint32
	pid       uint32
	startTime uint64
	card      int
}

type procState struct {
	launches uint64
	sign     time.Time // last sign of work; zero: none seen
	seen     time.Time // when it was last looked at
}

func newSampler() *sampler { return &sampler{procs: map[procKey]procState{}} }

// activity is what a job does on one card.
type activity struct {
	busy     uint32
	noSlices bool
}

// look counts the busy processes of a job on each of its cards. A process is
// busy when it has work in flight, or launched some within the hold time.
func (s *sampler) look(job uint32, view libvgpu.CacheView, now time.Time) []activity {
	acts := make([]activity, len(view.Cards))
	for _, slot := range view.Slots {
		if !slot.Alive {
			continue
		}
		for card, c := range slot.Cards {
			key := procKey{job, slot.PID, slot.StartTime, card}
			// A process not seen before has state zero: its first launches count.
			state := s.procs[key]
			if c.InflightNS > 0 || c.Launches != state.launches {
				state.sign = now
			}
			state.launches, state.seen = c.Launches, now
			s.procs[key] = state
			if !state.sign.IsZero() && now.Sub(state.sign) <= hold {
				acts[card].busy++
				if slot.Flags&libvgpu.SlotSlicesRefused != 0 {
					acts[card].noSlices = true
				}
			}
		}
	}
	return acts
}

// forget drops processes that were not looked at for a while.
func (s *sampler) forget(now time.Time) {
	for key, state := range s.procs {
		if now.Sub(state.seen) > 10*hold {
			delete(s.procs, key)
		}
	}
}
