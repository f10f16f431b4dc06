// SPDX-License-Identifier: Apache-2.0

// Package inventory reads the node's cards from NVML. It is the only importer
// of go-nvml.
package inventory

import (
	"fmt"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// Level is how near the closest common ancestor of two cards is, in NVML's own
// numbers: smaller is nearer.
type Level int

// Levels of two different cards.
const (
	Internal   Level = 0  // on one board
	SingleHop  Level = 10 // PIX: one PCIe switch
	MultiHop   Level = 20 // PXB: several PCIe switches
	HostBridge Level = 30 // PHB: one host bridge
	Node       Level = 40 // NODE: one NUMA node
	System     Level = 50 // SYS: over the link between sockets
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
}

// Inventory is the node's cards. Implementations are safe for concurrent use.
// Every call may block for as long as the driver does.
type Inventory interface {
	// Cards returns the cards by rising Index. Cards that cannot be read are
	// left out and named by the error, which joins one [*CardError] for each;
	// the cards that are returned can be used all the same.
	Cards() ([]gpu.Card, error)
	Versions() (Versions, error)
	// Topology returns the common ancestor of each pair: [i][j] for the i-th
	// and j-th card of Cards; the diagonal is Internal.
	Topology() ([][]Level, error)
	// Processes returns the processes on a card by rising pid.
	Processes(gpu.UUID) ([]Process, error)
	// MemoryUsed returns the memory in use on a card, the driver's own included.
	MemoryUsed(gpu.UUID) (gpu.Bytes, error)
	// Close lets go of NVML. No other call may follow.
	Close() error
}

// CardError is one card that could not be read.
type CardError struct {
	NVMLIndex int
	Err       error
}

func (e *CardError) Error() string {
	return fmt.Sprintf("read card at NVML index %d: %v", e.NVMLIndex, e.Err)
}

// Unwrap returns what NVML said.
func (e *CardError) Unwrap() error { return e.Err }
