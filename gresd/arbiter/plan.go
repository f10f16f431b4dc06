// SPDX-License-Identifier: Apache-2.0

// Package arbiter decides, many times a second, how the jobs of a card share
// it, and publishes the decision in their grants.
//
// Between jobs the hardware divides by time slices: each process sets the slice
// that its grant names. A slice only bounds a job while another one is busy, so
// a hard job also has a gate, which holds it by a budget; the gate opens when
// the slices of busy neighbours already hold it. [Plan] is the whole rule, and
// pure; [Runner] looks at the jobs and applies it.
package arbiter

import (
	"math"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Params are times in microseconds.
type Params struct {
	Period    uint32 // one turn of all jobs of a card
	MaxPeriod uint32 // a turn is stretched up to this
	MinSlice  uint32 // so that no slice is below this
}

// full is the sum of busy shares from which the hardware holds a hard job by
// itself: 98 of 100, because shares need not add up exactly.
const full = 98

// Key names one job on one card.
type Key struct {
	JobID uint32
	Card  gpu.UUID
}

// Claim is what one job may have of one card, and what it does there now.
type Claim struct {
	Key
	Cores   uint32 // hundredths of the card
	Mode    uint32 // libvgpu.ModeHard, …
	Ceiling uint32 // soft mode: hundredths; 0: none
	Busy    uint32 // processes that have work on the card
	// NoSlices says that the driver refused the slice of a busy process: the
	// hardware does not divide this card, so its jobs take turns.
	NoSlices bool
}

// minTurn is the shortest turn in microseconds: handing over costs a drain of
// about 0.2 ms.
const minTurn = 2000

// Plan returns the schedule of every claim. Claims of different cards do not
// touch each other.
func Plan(claims []Claim, p Params) map[Key]libvgpu.Schedule {
	byCard := map[gpu.UUID][]Claim{}
	for _, c := range claims {
		byCard[c.Card] = append(byCard[c.Card], c)
	}
	plan := make(map[Key]libvgpu.Schedule, len(claims))
	for _, card := range byCard {
		planCard(card, p, plan)
	}
	return plan
}

func planCard(claims []Claim, p Params, plan map[Key]libvgpu.Schedule) {
	var sum uint32      // cores of all jobs
	noSlices := false   // of any busy process
	var smallest uint64 // slice at period 1, in millionths
	for _, c := range claims {
		sum += c.Cores
		noSlices = noSlices || c.NoSlices
	}
	if sum == 0 {
		sum = 1
	}
	smallest = math.MaxUint64
	for _, c := range claims {
		smallest = min(smallest, uint64(c.Cores)*1e6/uint64(sum)/procs(c))
	}
	if noSlices && takeTurns(claims, p, plan) {
		return
	}
	period := stretch(p, p.MinSlice, smallest)
	slice := func(c Claim) uint32 {
		return uint32(max(1, uint64(c.Cores)*uint64(period)/uint64(sum)/procs(c)))
	}
	for _, c := range claims {
		s := libvgpu.Schedule{Cores: c.Cores, BusyProcs: c.Busy}
		busyCores := c.Cores // as if this job were busy: what holds it once it is
		busySlices := uint64(slice(c)) * procs(c)
		for _, other := range claims {
			if other.Busy > 0 && other.Key != c.Key {
				s.Others++
				busyCores += other.Cores
				busySlices += uint64(slice(other)) * procs(other)
			}
		}
		if len(claims) > 1 {
			s.SliceUS = slice(c)
		}
		s.WeightPPM = uint32(uint64(slice(c)) * 1e6 / busySlices)
		if limit, shut := gate(c, s.Others, busyCores, noSlices); shut {
			s.Gate, s.Cores = libvgpu.GateBudget, limit // the budget is refilled at Cores
		}
		plan[c.Key] = s
	}
}

// takeTurns gives every busy job a window of each period, as long as its part of
// the busy jobs' cores. Windows hang on CLOCK_MONOTONIC alone, so all jobs of the
// card agree on them without talking. It says false when there is nobody to
// take turns with.
func takeTurns(claims []Claim, p Params, plan map[Key]libvgpu.Schedule) bool {
	var sum uint32
	smallest, busy := uint64(math.MaxUint64), uint32(0)
	for _, c := range claims {
		if c.Busy > 0 && c.Cores > 0 {
			sum += c.Cores
			busy++
		}
	}
	if busy < 2 {
		return false
	}
	for _, c := range claims {
		if c.Busy > 0 && c.Cores > 0 {
			smallest = min(smallest, uint64(c.Cores)*1e6/uint64(sum))
		}
	}
	period := stretch(p, minTurn, smallest)
	var offset uint32
	for _, c := range claims {
		s := libvgpu.Schedule{Cores: c.Cores, BusyProcs: c.Busy, Others: busy, WeightPPM: 1e6}
		if c.Busy > 0 {
			s.Others--
			length := uint32(uint64(c.Cores) * uint64(period) / uint64(sum))
			s.Gate = libvgpu.GateTurn
			s.Turn = libvgpu.Turn{PeriodUS: period, OffsetUS: offset, LengthUS: length}
			offset += length
		}
		// Turns divide the whole card; a job that may not have its whole turn is
		// held by its budget as well.
		if limit, shut := gate(c, s.Others, sum, false); shut {
			s.Gate |= libvgpu.GateBudget
			s.Cores = limit
		}
		plan[c.Key] = s
	}
	return true
}

// procs is the number of processes a job's slice is divided by.
func procs(c Claim) uint64 { return uint64(max(1, c.Busy)) }

// stretch lengthens the period until the smallest slice is long enough, for a
// switch between two contexts costs 0.15 ms whatever the slice.
func stretch(p Params, shortest uint32, smallestMillionths uint64) uint32 {
	period := uint64(p.Period)
	if smallestMillionths > 0 {
		needed := (uint64(shortest)*1e6 + smallestMillionths - 1) / smallestMillionths
		period = max(period, needed)
	} else {
		period = uint64(p.MaxPeriod)
	}
	return uint32(min(period, uint64(max(p.Period, p.MaxPeriod))))
}

// gate says whether the budget must hold a job, and at how much of the card: at
// its cores in hard mode, at its ceiling in soft mode.
func gate(c Claim, others, busyCores uint32, noSlices bool) (limit uint32, shut bool) {
	switch c.Mode {
	case libvgpu.ModeOff:
		return 0, false
	case libvgpu.ModeSoft:
		limit = c.Ceiling
		if limit == 0 {
			return 0, false
		}
	default:
		limit = c.Cores
	}
	if limit >= 100 {
		return 0, false
	}
	// Beside busy neighbours the hardware gives cores/busyCores of the card.
	// That is at most limit/full when the neighbours are enough.
	held := others > 0 && !noSlices && uint64(c.Cores)*full <= uint64(limit)*uint64(busyCores)
	return limit, !held
}
