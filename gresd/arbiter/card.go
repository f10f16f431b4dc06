// SPDX-License-Identifier: Apache-2.0

// Package arbiter decides, many times a second, how the jobs of a card share
// it, and publishes the decision in their grants.
//
// Between jobs the hardware divides by time slices: each process sets the slice that its grant
// names. A slice only limits a job while its neighbors are busy, so a hard job also has a gate
// with a budget. The gate opens when the slices of busy neighbors already enforce the share.
//
// All state of a card is in its [card]. A [Runner] polls the jobs and calls five methods of each
// card, in this order:
//
//	observe   the facts and the use of each job (sampler.go, exact.go).
//	entitle   the entitlement of each job, and the change of its slice (entitle.go).
//	divide    slices, or exclusive windows on a card without time slices (divide.go, windows.go).
//	gate      budgets and windows that delay launches (gate.go).
//	publish   schedules, and the work of each job (publish.go).
//
// A method reads only results of the methods before it, and of the last poll.
// The jobs of a card are sorted by their numbers.
package arbiter

import (
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Params are times in microseconds.
type Params struct {
	Period    uint32 // one turn of all jobs of a card
	MaxPeriod uint32 // a turn is stretched up to this
	MinSlice  uint32 // so that no slice is below this
}

// Key names one job on one card.
type Key struct {
	JobID uint32
	Card  gpu.UUID
}

// Claim is a job's request for one card, and its work there now.
type Claim struct {
	Key
	Cores   uint32 // hundredths of the card
	Mode    uint32 // libvgpu.ModeHard, …
	Ceiling uint32 // soft mode: hundredths; 0: none
	Busy    uint32 // processes that have work on the card

	// Priority is libvgpu.PrioNormal, …. It decides only the order of waiting jobs. While a job lacks
	// its share, the slices of jobs below it are short.
	Priority uint32
	// NoRecords: the card has no records of its time, so its own account must do.
	NoRecords bool
	// Kernel is the length of the job's launches, in nanoseconds; 0: unknown.
	Kernel uint32
	// Wants: the job has launched work since the last poll, has some in flight, or a launch waits
	// for its window.
	Wants bool
	// NoSlices: the card does not obey slices, or gresd has not tested it and the job reports that
	// the driver refused a slice. The jobs of the card then have exclusive windows.
	NoSlices bool
	// Unsliced: the job reports that the driver refused a slice, and the card obeyed slices in
	// gresd's own test. The job's user can forge the report, so it must not change other jobs' schedules. The
	// budget enforces the job's limit.
	Unsliced bool
	// Cards are the cards of the job, and Longest is the longest Kernel on them.
	Cards   int
	Longest uint32
}

// job is all that is known of a job on one card.
type job struct {
	Claim // observe
	used  usage
	place int // where the card is in the job's grant
	poll  int // number of the last poll with this job
	// limit is the job's maximum of the card, in hundredths. procs share its slice.
	limit   uint32
	limited bool
	procs   float64
	// others is the number of other busy jobs of the card, and othersCores the sum of their
	// shares.
	others, othersCores uint32
	sign                time.Time // last sign of work; zero: never
	readable            bool      // its cache

	standing // entitle
	share    // divide
	window
	gateState // gate
	schedule  libvgpu.Schedule

	worked // publish
}

// card is all that is known of a card.
type card struct {
	jobs map[uint32]*job
	list []*job // of this poll, sorted
	poll int
	// unsliced: exclusive windows divide the card. Several jobs work on it, and it has no slices.
	unsliced bool

	contest contest // entitle
	young   bool    // its jobs have just begun to compete, and it is not known what they need
	windows windows // divide

	concurrent bool // the work of its jobs runs side by side
	crowd      crowd
}
