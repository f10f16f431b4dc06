// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	// minTurn is the shortest turn in microseconds: handing over costs a drain of
	// about 0.2 ms.
	minTurn = 2000
	// minTurnPeriod is the shortest period of turns.
	minTurnPeriod = 5000
	// kernelsPerTurn is what a turn shall hold at least of its job's kernels, so
	// that a kernel that runs over its end is a small part of it.
	kernelsPerTurn = 4
)

// takeTurns gives every busy job a window of each period, as long as its part of
// the busy jobs' cores, one after the other. A [dealer] moves them as the jobs
// go on. It says false when there is nobody to take turns with.
func takeTurns(claims []Claim, p Params, plan map[Key]libvgpu.Schedule) bool {
	var sum, busy uint32
	for _, c := range claims {
		if takesTurns(c) {
			sum += c.Cores
			busy++
		}
	}
	if busy < 2 {
		return false
	}
	period := turnPeriod(claims, sum, p)
	var begin uint32
	for _, c := range claims {
		s := libvgpu.Schedule{Cores: c.Cores, BusyProcs: c.Busy, Others: busy, WeightPPM: 1e6}
		if takesTurns(c) {
			s.Others--
			length := uint32(max(1, uint64(c.Cores)*uint64(period)/uint64(sum)))
			s.Gate = libvgpu.GateTurn
			s.Turn = libvgpu.Turn{PeriodUS: period, LengthUS: length, BeginNS: uint64(begin) * 1000}
			begin += length
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

func takesTurns(c Claim) bool { return c.Busy > 0 && c.Cores > 0 }

// turnPeriod is in microseconds. Each hand-over costs the card about a quarter
// of a millisecond, so jobs that always have work get the longest period. Where
// one has pauses, somebody waits for its results, and the period is no longer
// than the kernels, the switches and the configuration want.
func turnPeriod(claims []Claim, sum uint32, p Params) uint32 {
	longest := max(p.Period, p.MaxPeriod)
	var needed uint64 // for kernels and the shortest turns
	bursty, busy := false, uint64(0)
	for _, c := range claims {
		if !takesTurns(c) {
			continue
		}
		busy++
		turn := max(minTurn, kernelsPerTurn*uint64(c.Kernel)/1000)
		needed = max(needed, turn*uint64(sum)/uint64(c.Cores))
		bursty = bursty || c.Bursty
	}
	if !bursty {
		return longest
	}
	return uint32(min(uint64(longest), max(needed, minTurnPeriod, 2*minTurn*busy)))
}

// jobsOfCard are the claims of one card that take turns, in a fixed order.
func jobsOfCard(claims []Claim, card gpu.UUID, plan map[Key]libvgpu.Schedule) []Claim {
	var out []Claim
	for _, c := range claims {
		if c.Card == card && plan[c.Key].Gate&libvgpu.GateTurn != 0 {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b Claim) int { return int(a.JobID) - int(b.JobID) })
	return out
}
