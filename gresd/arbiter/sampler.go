// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"maps"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// hold is how long a process counts as busy after its last sign of work. It
// bridges the host's work between two kernels.
const hold = 250 * time.Millisecond

// silence is how long work in flight is believed in of a process that gives no sign of life: it
// is stopped (scontrol suspend), or its CUDA is (cuda-checkpoint), and nobody says what has ended.
const silence = 3 * time.Second

// sampler remembers the last sign of work of each process, and what each job
// took lately. It is for one goroutine.
type sampler struct {
	exact exact
	procs map[procKey]procState
	jobs  map[jobKey]jobState
}

// procKey is one process on one card of a job.
type procKey struct {
	job       uint32
	ns        uint64 // pids are numbers of a PID namespace
	pid       uint32
	startTime uint64
	card      int
}

type procState struct {
	launches, gpuNS uint64
	syncs           uint32
	beat            uint64    // its last sign of life
	beats           time.Time // when that was new
	sign            time.Time // last sign of work; zero: none seen
	launched        time.Time // when the process itself gave the last one
	seen            time.Time // when it was last looked at
}

// jobKey is one card of a job.
type jobKey struct {
	job  uint32
	card int
}

type jobState struct {
	held    uint64    // launches that waited for the budget
	elapsed uint64    // time for which measured work was on its way
	sign    time.Time // last sign of work of any process
	seen    time.Time
}

func newSampler() *sampler {
	return &sampler{procs: map[procKey]procState{}, jobs: map[jobKey]jobState{}}
}

// activity is what a job does on one card.
type activity struct {
	busy     uint32
	noSlices bool
	kernel   uint32 // nanoseconds
	wants    bool   // see [Claim.Wants]
	used     usage
	// unseen says that the card's records cannot tell what its processes had.
	unseen bool
	sign   time.Time // last sign of work; zero: never
}

// usage is what a job had of a card since the last look.
type usage struct {
	ns   float64
	span time.Duration // in which
	// exact: by the card's records, else by what the processes say of themselves.
	exact bool
	// wants is the part of the span in which it had the card or waited for it, and turns is
	// how often it came to the card; exact only.
	wants float64
	turns uint64
	waits uint64 // how often its host has waited for its work
	// held says that launches had to wait for its budget.
	held bool
	// inflight says that some of its work was not seen to have ended.
	inflight bool
	// elapsed is the time for which measured work was on its way, in the time look.
	elapsed float64
	look    time.Duration
	// procs are the owners of the slots of its busy processes.
	procs []uint64
}

// look counts the busy processes of a job on each of its cards. A process is
// busy when it has work in flight, or launched some within the hold time, or had the card
// by the card's records.
func (s *sampler) look(job uint32, view libvgpu.CacheView, cards []libvgpu.GrantCard, now time.Time) []activity {
	acts := make([]activity, len(view.Cards))
	used := make([]uint64, len(view.Cards))
	signs := make([]time.Time, len(view.Cards))
	waits := make([]uint64, len(view.Cards))
	launched := make([]bool, len(view.Cards)) // or has something in flight
	inflight := make([]bool, len(view.Cards))
	busy := make([][]uint64, len(view.Cards)) // owners
	pids, onHost := make([]uint32, 0, len(view.Slots)), true
	for _, slot := range view.Slots {
		if !slot.Alive {
			continue
		}
		pids, onHost = append(pids, slot.HostPID), onHost && slot.OnHost
		for card, c := range slot.Cards {
			key := procKey{job, slot.PIDNS, slot.PID, slot.StartTime, card}
			// A process not seen before has state zero: its first launches count.
			state, old := s.procs[key]
			if old {
				waits[card] += uint64(c.Syncs - state.syncs)
			}
			if !old || slot.HeartbeatNS != state.beat || slot.Flags&libvgpu.SlotUnwatched != 0 {
				state.beat, state.beats = slot.HeartbeatNS, now
			}
			inflight[card] = inflight[card] || c.InflightNS > 0 && now.Sub(state.beats) <= silence
			if c.InflightNS > 0 && now.Sub(state.beats) <= silence || c.Launches != state.launches {
				state.sign, state.launched = now, now
			}
			if c.Contexts > 0 && s.exact.works(gpu.UUID(cards[card].UUID), slot) {
				state.sign = now
			}
			if c.GPUNS > state.gpuNS {
				used[card] += c.GPUNS - state.gpuNS
			}
			state.launches, state.gpuNS, state.syncs, state.seen = c.Launches, c.GPUNS, c.Syncs, now
			s.procs[key] = state
			if state.sign.After(signs[card]) {
				signs[card] = state.sign
			}
			if !state.sign.IsZero() && now.Sub(state.sign) <= hold {
				acts[card].busy++
				busy[card] = append(busy[card], slot.Owner)
				launched[card] = launched[card] || !state.launched.IsZero() && now.Sub(state.launched) <= hold
				acts[card].kernel = max(acts[card].kernel, c.TypicalNS)
				if slot.Flags&libvgpu.SlotSlicesRefused != 0 {
					acts[card].noSlices = true
				}
			}
		}
	}
	for i := range acts {
		key := jobKey{job, i}
		state, known := s.jobs[key]
		u := usage{ns: float64(used[i])}
		if known {
			u.span = now.Sub(state.seen)
		}
		if c := s.exact.cards[gpu.UUID(cards[i].UUID)]; onHost && c != nil {
			had, wants, turns := c.of(pids, launched[i])
			if s.exact.tells(c) {
				u = usage{ns: float64(had), span: c.span, exact: true, wants: wants, turns: turns, waits: waits[i]}
			}
		}
		acts[i].unseen = !onHost || s.exact.refused(gpu.UUID(cards[i].UUID))
		u.inflight, u.procs = inflight[i], busy[i]
		waited, elapsed := view.Cards[i].Budget.Waits, view.Cards[i].ElapsedNS
		u.held = known && waited > state.held
		if known && elapsed >= state.elapsed {
			u.elapsed, u.look = float64(elapsed-state.elapsed), now.Sub(state.seen)
		}
		acts[i].used = u
		acts[i].wants = signs[i].Equal(now) || monotonic()-int64(view.Cards[i].WantedNS) < int64(wantsFor)
		if signs[i].After(state.sign) {
			state.sign = signs[i]
		}
		acts[i].sign = state.sign
		state.elapsed, state.held, state.seen = elapsed, waited, now
		s.jobs[key] = state
	}
	return acts
}

// begin begins a poll of all jobs.
func (s *sampler) begin() { s.exact.look() }

// end ends it, and drops processes and jobs that were not looked at for a while. The next poll tells
// exactly what jobs had of contested cards. It is true when the cards' records are no longer believed.
func (s *sampler) end(now time.Time, contested map[gpu.UUID]bool) (doubts bool) {
	maps.DeleteFunc(s.procs, func(_ procKey, state procState) bool { return now.Sub(state.seen) > 10*hold })
	maps.DeleteFunc(s.jobs, func(_ jobKey, state jobState) bool { return now.Sub(state.seen) > 10*hold })
	return s.exact.end(contested)
}
