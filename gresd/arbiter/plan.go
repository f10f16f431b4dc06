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

	// Priority is libvgpu.PrioNormal, …. It decides who waits for whom, never how
	// much a job gets: while it has not had its share, the slices of jobs below it are short.
	Priority uint32
	// Gain is the logarithm of what its share is multiplied by for its slices, because it
	// lacks some of what it is entitled to or has had too much.
	Gain float64
	// Roomy says that its only neighbour's slice must be longer than the shortest, so that what
	// its host launches until it waits fits between two turns of that.
	Roomy bool
	// Young says that the jobs of its card have just begun to compete, and it is not known what
	// they need.
	Young bool
	// NoRecords says that the card does not tell what it had, so its own account must do.
	NoRecords bool
	// Load is the part of the time in which its work was on the card lately, or waited
	// there for others' slices; 0: not known.
	Load float64
	// Capped says that its neighbours leave it more than its limit; OpenPart is how much
	// of the card it then had.
	Capped   bool
	OpenPart float64
	// Kernel is the length of what the job launches, in nanoseconds; 0: not known.
	Kernel uint32
	// Wants says that the job has launched work since the last poll, has some in flight, or a launch
	// waits for its window.
	Wants bool
	// NoSlices: the card does not obey slices, or gresd has not tested it and the job reports that
	// the driver refused a slice. The jobs of the card then have exclusive windows.
	NoSlices bool
	// Unsliced: the job reports that the driver refused a slice, and the card obeyed slices in
	// gresd's own test. The job's user can forge the report, so it must not change other jobs' schedules. The
	// budget enforces the job's limit.
	Unsliced bool
}

// Plan returns the schedule of every claim. Claims of different cards do not
// touch each other.
func Plan(claims []Claim, p Params) map[Key]libvgpu.Schedule {
	byCard := map[gpu.UUID][]Claim{}
	for _, c := range claims {
		byCard[c.Card] = append(byCard[c.Card], c)
	}
	plan := make(map[Key]libvgpu.Schedule, len(claims))
	cards := map[uint32]int{}
	for _, c := range claims {
		cards[c.JobID]++
	}
	for _, card := range byCard {
		planCard(card, p, plan)
	}
	openWindows(claims, cards, plan)
	return plan
}

func planCard(claims []Claim, p Params, plan map[Key]libvgpu.Schedule) {
	refused := false // by the driver, of any busy process, or ignored by the card
	for _, c := range claims {
		refused = refused || c.NoSlices
	}
	gates, all := gatesOf(claims, refused)
	slices := divide(claims, p).slices
	if all && even(claims) {
		holdKernels(claims, slices, p)
	}
	for i, c := range claims {
		s := libvgpu.Schedule{Cores: c.Cores, BusyProcs: c.Busy, Others: gates[i].others}
		busySlices := uint64(slices[i]) * procs(c)
		for k, other := range claims {
			if other.Busy > 0 && k != i {
				busySlices += uint64(slices[k]) * procs(other)
			}
		}
		if len(claims) > 1 {
			s.SliceUS = slices[i]
		}
		s.WeightPPM = uint32(uint64(slices[i]) * 1e6 / busySlices)
		s.LeastPPM = s.WeightPPM
		if gates[i].shut {
			s.Gate, s.Cores = libvgpu.GateBudget, gates[i].limit // the budget is refilled at Cores
			part := ownPart(float64(slices[i]), rivals(claims, slices, i))
			if c.Capped { // that its neighbours leave so much is known
				part = max(part, c.OpenPart)
				s.LeastPPM = max(s.LeastPPM, uint32(1e6*c.OpenPart))
			}
			s.WeightPPM = max(s.LeastPPM, uint32(math.Round(part*weightSteps)*(1e6/weightSteps)))
		} else if _, limited := limitOf(c); !refused && limited && c.NoRecords && competes(claims, i) {
			s.Gate = libvgpu.GateMeasure
		}
		plan[c.Key] = s
	}
	measureRivals(claims, slices, plan)
	for i, c := range claims {
		if limit := gates[i].limit; c.Unsliced && limit > 0 {
			s := plan[c.Key]
			s.Gate, s.Cores = libvgpu.GateBudget, limit
			plan[c.Key] = s
		}
	}
}

// jobGate is whether the budget must hold a job, and at how much of the card.
type jobGate struct {
	others, limit uint32
	shut          bool
}

// gatesOf returns the gates of a card's jobs. all says that budgets hold all that are busy.
func gatesOf(claims []Claim, noSlices bool) (gates []jobGate, all bool) {
	all = true
	for i, c := range claims {
		g, busyCores := jobGate{}, c.Cores // as if this job were busy: what holds it once it is
		for k, other := range claims {
			if other.Busy > 0 && k != i {
				g.others++
				busyCores += other.Cores
			}
		}
		g.limit, g.shut = gate(c, g.others, busyCores, noSlices)
		all = all && (g.shut || c.Busy == 0)
		gates = append(gates, g)
	}
	return gates, all
}

// even says that no job goes before another one: their slices are about as their shares are.
func even(claims []Claim) bool {
	least, most := math.Inf(1), 0.0
	for i, w := range weightsOf(claims) {
		if c := claims[i]; c.Busy > 0 && c.Cores > 0 {
			least, most = min(least, w/float64(c.Cores)), max(most, w/float64(c.Cores))
		}
	}
	return most < 2*least
}

// kernelsInSlice is so many that a kernel which begins in a slice usually ends in it.
const kernelsInSlice = 2.5

// holdKernels lengthens slices that budgets make needless, so that kernels run through:
// what they cost is then simply the time that they took. Up to the longest period.
func holdKernels(claims []Claim, slices []uint32, p Params) {
	for i, c := range claims {
		long := uint32(min(kernelsInSlice*float64(c.Kernel)/1000, float64(longest(p))))
		slices[i] = max(slices[i], long)
	}
}

// weightSteps is how finely parts are told, so that not every look has something to tell.
const weightSteps = 100

// rivals are the busy neighbours of a job. What is not known of them is taken for all.
func rivals(claims []Claim, slices []uint32, i int) []rival {
	var list []rival
	for k, c := range claims {
		if k == i || c.Busy == 0 {
			continue
		}
		r := rival{slice: float64(slices[k]) * float64(procs(c)), load: 1}
		if c.Load > 0 {
			r.load = c.Load
		}
		list = append(list, r)
	}
	return list
}

// measureRivals measures the neighbours of a job that is held because they leave it too
// much, which may change, and of one whose kernels are longer than its slices: what these
// cost is known only by when its neighbours are on the card.
func measureRivals(claims []Claim, slices []uint32, plan map[Key]libvgpu.Schedule) {
	for i, c := range claims {
		long := c.Kernel/1000 >= slices[i]/2
		if plan[c.Key].Gate&libvgpu.GateBudget == 0 || c.Busy == 0 || !long && !c.Capped {
			continue
		}
		for k, other := range claims {
			if s := plan[other.Key]; k != i && other.Busy > 0 && s.Gate == 0 {
				s.Gate = libvgpu.GateMeasure
				plan[other.Key] = s
			}
		}
	}
}

// competes says whether a job has work on the card, and somebody else has, too.
func competes(claims []Claim, i int) bool { return claims[i].Busy > 0 && busyOthers(claims, i) }

// procs is the number of processes a job's slice is divided by.
func procs(c Claim) uint64 { return uint64(max(1, c.Busy)) }

// limitOf is how much of the card a job may have at most: its cores in hard mode, its
// ceiling in soft mode.
func limitOf(c Claim) (limit uint32, limited bool) {
	switch c.Mode {
	case libvgpu.ModeOff:
		return 0, false
	case libvgpu.ModeSoft:
		limit = c.Ceiling
		return limit, limit != 0 && limit < 100
	}
	return c.Cores, c.Cores < 100
}

// gate says whether the budget must hold a job, and at how much of the card.
func gate(c Claim, others, busyCores uint32, noSlices bool) (limit uint32, shut bool) {
	limit, limited := limitOf(c)
	if !limited {
		return 0, false
	}
	// Beside busy neighbours the hardware gives cores/busyCores of the card.
	// That is at most limit/full when the neighbours are enough, and take their part.
	held := others > 0 && !noSlices && !c.Capped && uint64(c.Cores)*full <= uint64(limit)*uint64(busyCores)
	return limit, !held
}
