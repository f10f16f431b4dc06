// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	// windowPeriod is the time from one window to the next, in microseconds: short
	// enough for a share over 100 ms, long enough for the work of a training step.
	windowPeriod = 50000
	// longestWindowPeriod bounds it where kernels are long.
	longestWindowPeriod = 400000
	// windowQueue is what a process may have in flight in a window.
	windowQueue = 2000
)

// openWindows replaces the budget of a job with several cards by windows, open at
// the same moments on all of them. Its processes wait for each other with a kernel
// on the card (NCCL): budgets that run dry at different moments would make each
// pay for the others' pauses, and one held at 50 % does 17 % of its work
// (measured: two H200, all-reduces in a loop).
func openWindows(claims []Claim, cards map[uint32]int, plan map[Key]libvgpu.Schedule) {
	busyCores := map[gpu.UUID]uint32{} // of each card
	kernel := map[uint32]uint32{}      // the longest of a job's cards
	for _, c := range claims {
		kernel[c.JobID] = max(kernel[c.JobID], c.Kernel)
		if c.Busy > 0 {
			busyCores[c.Card] += c.Cores
		}
	}
	for _, c := range claims {
		s := plan[c.Key]
		if cards[c.JobID] < 2 || s.Gate != libvgpu.GateBudget || c.Cores == 0 {
			continue
		}
		period := windowPeriodOf(kernel[c.JobID], s.Cores)
		// Alone the job has the card in its window; beside busy neighbours its
		// slices' part of it, and the window is longer for that.
		part := uint64(s.Cores)
		if s.Others > 0 {
			cores := busyCores[c.Card] // as if this job were busy
			if c.Busy == 0 {
				cores += c.Cores
			}
			part = part * uint64(cores) / uint64(c.Cores)
		}
		s.Gate = libvgpu.GateWindow
		s.Window = libvgpu.Window{
			PeriodUS: period, LengthUS: uint32(min(uint64(period), part*uint64(period)/100)), QueueUS: windowQueue,
		}
		plan[c.Key] = s
	}
}

// windowPeriodOf is the same on all cards of a job: a window holds at least
// kernelsPerWindow of its kernels, where the longest period permits.
func windowPeriodOf(kernelNS, cores uint32) uint32 {
	needed := kernelsPerWindow * uint64(kernelNS) / 1000 * 100 / uint64(max(1, cores))
	return uint32(min(longestWindowPeriod, max(windowPeriod, needed)))
}
