// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	// hold is how long a process counts as busy after its last sign of work. It
	// bridges the host's work between two kernels.
	hold = 250 * time.Millisecond
	// awake is how long a job that has worked may be eager: for one that sleeps
	// longer the others' slices are not kept short.
	awake = time.Minute
	// creditMax bounds what a job saves up by taking less than its share, as time
	// in which it takes nothing. With it gone, the job waits like all others.
	creditMax = 250 * time.Millisecond
	// interactive is how often a second the host of a job waits for its work from
	// which others' slices cost it much: at each wait it gives up the rest of its
	// slice, and then waits for theirs.
	interactive = 4.0
	// syncMemory is how long a wait counts in that.
	syncMemory = time.Second
	// mostSyncs bounds that, so that a job which no longer waits is interactive for
	// syncMemory at most, however often it has waited: while it began, perhaps.
	mostSyncs = interactive * math.E
	// saturating is the part of its share from which a job counts as taking all
	// of it: switches between contexts take some from everybody.
	saturating = 0.9
	// Among equals a job's share is of what all together have: pauses and switches cost
	// everybody the same part. The balance gives an interactive job exactly that, so the mark
	// is below it: else the job would keep for ever the credit with which it began, and its
	// neighbours their short slices. Where what all had is not known, or less:
	saturatingWaits = 0.97
	leastSaturating = 0.8
)

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
	sign            time.Time // last sign of work; zero: none seen
	seen            time.Time // when it was last looked at
}

// jobKey is one card of a job.
type jobKey struct {
	job  uint32
	card int
}

type jobState struct {
	credit float64 // nanoseconds of the card
	eager  bool
	syncs  float64 // a second, lately
	// elapsed is the time for which measured work was on its way.
	elapsed uint64
	sign    time.Time // last sign of work of any process
	seen    time.Time
	pids    []uint32 // of its processes, on the host
}

func newSampler() *sampler {
	return &sampler{procs: map[procKey]procState{}, jobs: map[jobKey]jobState{}}
}

// activity is what a job does on one card.
type activity struct {
	busy     uint32
	noSlices bool
	kernel   uint32 // nanoseconds
	eager    bool
	// interactive: the host often waits for its work.
	interactive bool
	used        usage
}

// usage is what a job had of a card since the last look.
type usage struct {
	ns   float64
	span time.Duration // in which
	// exact: by the card's records, else by what the processes say of themselves.
	exact bool
	// all is the part of the time that all jobs together had lately; exact only.
	all float64
	// elapsed is the time for which measured work was on its way, in the time look.
	elapsed float64
	look    time.Duration
}

// look counts the busy processes of a job on each of its cards. A process is
// busy when it has work in flight, or launched some within the hold time.
func (s *sampler) look(job uint32, view libvgpu.CacheView, cards []libvgpu.GrantCard, now time.Time) []activity {
	acts := make([]activity, len(view.Cards))
	used := make([]uint64, len(view.Cards))
	had := make([]time.Duration, len(view.Cards))
	signs := make([]time.Time, len(view.Cards))
	syncs := make([]uint32, len(view.Cards))
	pids := make([]uint32, 0, len(view.Slots))
	accounts := s.exact.of(cards)
	for _, slot := range view.Slots {
		if !slot.Alive {
			continue
		}
		pids = append(pids, slot.HostPID)
		for card, c := range slot.Cards {
			key := procKey{job, slot.PIDNS, slot.PID, slot.StartTime, card}
			// A process not seen before has state zero: its first launches count.
			state, old := s.procs[key]
			if old {
				syncs[card] += c.Syncs - state.syncs
			}
			if c.InflightNS > 0 || c.Launches != state.launches {
				state.sign = now
			}
			if c.GPUNS > state.gpuNS {
				used[card] += c.GPUNS - state.gpuNS
			}
			had[card] += accounts[card].had[slot.HostPID]
			accounts[card].known = accounts[card].known && slot.OnHost
			state.launches, state.gpuNS, state.syncs, state.seen = c.Launches, c.GPUNS, c.Syncs, now
			s.procs[key] = state
			if state.sign.After(signs[card]) {
				signs[card] = state.sign
			}
			if !state.sign.IsZero() && now.Sub(state.sign) <= hold {
				acts[card].busy++
				acts[card].kernel = max(acts[card].kernel, c.TypicalNS)
				if slot.Flags&libvgpu.SlotSlicesRefused != 0 {
					acts[card].noSlices = true
				}
			}
		}
	}
	for i := range acts {
		key := jobKey{job, i}
		acts[i].interactive = s.waits(key, syncs[i], now)
		u := usage{ns: float64(used[i])}
		if state, known := s.jobs[key]; known {
			u.span = now.Sub(state.seen)
		}
		if a := accounts[i]; a.known {
			u = usage{ns: float64(had[i]), span: a.span, exact: true, all: a.all}
		}
		u.elapsed, u.look = s.elapsed(key, view.Cards[i].ElapsedNS, now)
		acts[i].used = u
		acts[i].eager = s.account(key, u, cards[i].Cores, signs[i], now, acts[i].interactive, pids)
	}
	return acts
}

// waits says whether a job is interactive, and notes how often it waited since the
// last look. It is called before account, which notes the time of the look.
func (s *sampler) waits(key jobKey, syncs uint32, now time.Time) bool {
	state, known := s.jobs[key]
	if !known {
		return false
	}
	// A wait fades away with time, and weighs so that a steady rate shows as itself.
	fade := math.Exp(-float64(now.Sub(state.seen)) / float64(syncMemory))
	state.syncs = min(state.syncs*fade+float64(syncs)/syncMemory.Seconds(), mostSyncs)
	s.jobs[key] = state
	return state.syncs >= interactive
}

// elapsed is for how long measured work was on its way since the last look, and how long
// that was ago. It is called before account, which notes the time of the look.
func (s *sampler) elapsed(key jobKey, sum uint64, now time.Time) (ns float64, look time.Duration) {
	state, known := s.jobs[key]
	if known && sum >= state.elapsed {
		ns, look = float64(sum-state.elapsed), now.Sub(state.seen)
	}
	state.elapsed = sum
	s.jobs[key] = state
	return ns, look
}

// account says whether a job is eager: it worked within the last minute, and
// took less than its share. It notes the time of the look, and who was seen.
func (s *sampler) account(key jobKey, used usage, cores uint32, sign, now time.Time, waits bool, pids []uint32) bool {
	state := s.jobs[key].after(used, cores, waits)
	if sign.After(state.sign) {
		state.sign = sign
	}
	state.seen, state.pids = now, pids
	s.jobs[key] = state
	return state.eager && !state.sign.IsZero() && now.Sub(state.sign) <= awake
}

// after is the state of a job that had so much. What it does not take of its share is its
// credit; a job becomes eager with half the most of it, or all, and stays it until none is left.
func (j jobState) after(used usage, cores uint32, waits bool) jobState {
	share := float64(cores) / 100
	most := share * float64(creditMax)
	part := saturating
	switch {
	case waits && used.exact:
		part = max(leastSaturating, saturating*used.all)
	case waits:
		part = saturatingWaits
	}
	j.credit += part*share*float64(used.span) - used.ns
	least := 0.0
	if waits {
		least = -most // what was taken too much before it was seen is paid back
	}
	j.credit = max(least, min(most, j.credit))
	// What a job lacks that only loses to its waits, its balance makes good by longer slices:
	// were it eager before these work, it would have twice its share and a third of it in turn.
	enough := most / 2
	if waits && used.exact {
		enough = most
	}
	switch {
	case j.credit <= 0:
		j.eager = false
	case j.credit >= enough:
		j.eager = true
	}
	return j
}

// last is when a job last gave a sign of work on a card; zero: never.
func (s *sampler) last(job uint32, card int) time.Time { return s.jobs[jobKey{job, card}].sign }

// forget drops processes and jobs that were not looked at for a while.
func (s *sampler) forget(now time.Time) {
	for key, state := range s.procs {
		if now.Sub(state.seen) > 10*hold {
			delete(s.procs, key)
		}
	}
	for key, state := range s.jobs {
		if now.Sub(state.seen) > 10*hold {
			delete(s.jobs, key)
		}
	}
}
