// SPDX-License-Identifier: Apache-2.0

// Package driver reads the node's cards from NVML, and lets the driver limit the memory of cgroups. It
// is the only importer of go-nvml.
//
// Calls give up when the driver does not answer ([ErrNoAnswer]). Only [NVML.Versions] can block.
package driver

import (
	"fmt"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// Versions are the versions of driver, NVML and CUDA.
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

// ProcessKind is a set of the kinds of work of a process on a card.
type ProcessKind uint8

// Kinds of processes, one bit each.
const (
	Compute   ProcessKind = 1 << iota
	MPSClient             // computes through an MPS server
	Graphics              // draws, as a display server does
)

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
