// SPDX-License-Identifier: Apache-2.0

// Package inventory reads the node's cards from NVML. It is the only importer
// of go-nvml.
package inventory

import (
	"fmt"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
)

// Versions of what NVML runs on.
type Versions struct {
	Driver string // "580.95.05"
	NVML   string // "13.580.95.05"
	CUDA   string // the newest CUDA that the driver serves, "13.0"
}

// Process is one process on a card, with its pid in the host's namespace.
type Process struct {
	PID    uint32
	Memory gpu.Bytes // 0: the driver does not say
	Kind   ProcessKind
}

// ProcessKind is what a process does on a card; it may do several things.
type ProcessKind uint8

// Kinds of processes, one bit each.
const (
	Compute   ProcessKind = 1 << iota
	MPSClient             // computes through an MPS server
	Graphics              // draws, as a display server does
)

// Inventory is the node's cards. Implementations are safe for concurrent use.
// Calls give up when the driver does not answer ([ErrNoAnswer]); only Versions
// may block for as long as it does not.
type Inventory interface {
	// Cards returns the cards by rising Index. Cards that cannot be read are
	// left out and named by the error, which joins one [*CardError] for each;
	// the cards that are returned can be used all the same.
	Cards() ([]gpu.Card, error)
	Versions() (Versions, error)
	// Topology returns how the cards are joined. What a card or the driver
	// does not know, and what it does not tell in time, is unknown and no error;
	// an error is only that there are no cards to ask.
	Topology() (topology.Facts, error)
	// Cores returns the node's cores.
	Cores() topology.CoreMap
	// Processes returns the processes on a card by rising pid.
	Processes(gpu.UUID) ([]Process, error)
	// MemoryUsed returns the memory in use on a card, the driver's own included.
	MemoryUsed(gpu.UUID) (gpu.Bytes, error)
	// Probe asks a card how it is: ErrLost, ErrNoAnswer, or what NVML said.
	Probe(gpu.UUID) (Probe, error)
	// Events listens to XIDs of cards: ErrNoEvents, ErrNoAnswer.
	Events([]gpu.UUID) (*Events, error)
	// Utilization returns who used a card since then: ErrUnknown.
	Utilization(gpu.UUID, time.Time) ([]Use, error)
	// Usage returns how much of a card is in use.
	Usage(gpu.UUID) (Usage, error)
	// HasLimits says whether the driver may have memory limits for cgroups.
	HasLimits() bool
	// LimitMemory lets the processes in a cgroup have no more of a card: ErrNoLimits.
	LimitMemory(card gpu.UUID, folder string, most gpu.Bytes) error
	// Close lets go of NVML. No other call may follow.
	Close() error
}

// CardError is one card that could not be read; at index -1, cards that are not those of before.
type CardError struct {
	NVMLIndex int
	Err       error
}

func (e *CardError) Error() string {
	if e.NVMLIndex < 0 {
		return e.Err.Error()
	}
	return fmt.Sprintf("read card at NVML index %d: %v", e.NVMLIndex, e.Err)
}

// Unwrap returns what NVML said.
func (e *CardError) Unwrap() error { return e.Err }
