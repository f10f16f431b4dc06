// SPDX-License-Identifier: Apache-2.0

// Package arbiter decides, many times a second, how the jobs of a card share
// it, and publishes the decision in their grants.
//
// Between jobs the hardware divides by time slices: each process sets the slice
// that its grant names. A slice only bounds a job while another one is busy, so
// a hard job also has a gate, which holds it by a budget; the gate opens when
// the slices of busy neighbors already hold it.
//
// All state of a card is in its [card]. A [Runner] polls the jobs and calls five methods of each
// card, in this order:
//
//	observe   what each job is, does and had    (sampler.go, exact.go)
//	entitle   what it ought to have had, and by how much its slices are to change    (entitle.go)
//	divide    slices, or exclusive windows on a card without time slices    (divide.go, windows.go)
//	gate      whether a budget or a window delays the job's launches    (gate.go)
//	publish   the schedules, and what is known of the jobs' work    (publish.go)
//
// A method reads what the methods before it have written, and what methods wrote in the last poll.
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
	// NoRecords says that the card does not tell what it had, so its own account must do.
	NoRecords bool
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
	// Cards are the cards of the job, and Longest is the longest Kernel on them.
	Cards   int
	Longest uint32
}

// job is all that is known of a job on one card.
type job struct {
	Claim // observe
	used  usage
	place int // where the card is in the job's grant
	poll  int // in which it was found
	// limit is how much of the card it may have at most, procs the processes that its slice is divided by.
	limit   uint32
	limited bool
	procs   float64
	// others are the other jobs that have work on the card, and othersCores is what they may have of it.
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
	// unsliced says that exclusive windows divide the card: several jobs work on it, and it has no slices.
	unsliced bool

	contest contest // entitle
	young   bool    // its jobs have just begun to compete, and it is not known what they need
	windows windows // divide

	concurrent bool // the work of its jobs runs side by side
	crowd      crowd
}
