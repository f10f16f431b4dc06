// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

var modes = map[gpu.Mode]uint32{
	gpu.Off: libvgpu.ModeOff, gpu.Soft: libvgpu.ModeSoft, gpu.Hard: libvgpu.ModeHard,
}

var priorities = map[gpu.Priority]uint32{
	gpu.Normal: libvgpu.PrioNormal, gpu.High: libvgpu.PrioHigh, gpu.Low: libvgpu.PrioLow,
}

var engines = map[gpu.Engine]uint32{gpu.Concurrent: libvgpu.EngineConcurrent}

// SpecOf writes a record as a grant. A mode that is not known counts as hard:
// limits never open by mistake. What a context costs is left open.
func SpecOf(rec ledger.Record) libvgpu.GrantSpec {
	mode, known := modes[rec.Mode]
	if !known {
		mode = libvgpu.ModeHard
	}
	spec := libvgpu.GrantSpec{JobID: rec.JobID, UID: rec.UID, GID: rec.GID, Created: rec.Created}
	for _, c := range rec.Placement.Cards {
		spec.Cards = append(spec.Cards, libvgpu.GrantCard{
			UUID: string(c.UUID), MemLimit: uint64(c.Memory), MemPhysical: uint64(c.Physical),
			Share: uint32(c.Share), Cores: uint32(c.Cores),
			Mode: mode, Priority: priorities[rec.Priority], Ceiling: uint32(rec.Ceiling),
			Engine: engines[rec.Request.Engine],
		})
	}
	return spec
}

// RecordOf reads a grant back into a record, for a ledger that was lost. What
// a grant does not hold is left empty: names, the request, display indexes.
// The cores of a file can be the ceiling of a soft job that is being held; they
// count as no more than the share then.
func RecordOf(spec libvgpu.GrantSpec) ledger.Record {
	rec := ledger.Record{
		JobID: spec.JobID, UID: spec.UID, GID: spec.GID, State: ledger.Granted, Restarts: ledger.UnknownRun,
		Created: spec.Created.UTC().Truncate(time.Microsecond), Mode: gpu.Hard, Priority: gpu.Normal,
	}
	for _, c := range spec.Cards {
		rec.Ceiling = gpu.Share(c.Ceiling)
		for mode, n := range modes {
			if n == c.Mode {
				rec.Mode = mode
			}
		}
		if c.Engine == libvgpu.EngineConcurrent {
			rec.Request.Engine = gpu.Concurrent
		}
		for priority, n := range priorities {
			if n == c.Priority {
				rec.Priority = priority
			}
		}
		rec.Placement.Cards = append(rec.Placement.Cards, place.CardShare{
			UUID: gpu.UUID(c.UUID), Share: gpu.Share(c.Share), Cores: gpu.Share(min(c.Cores, c.Share)), Memory: gpu.Bytes(c.MemLimit),
			Physical: gpu.Bytes(c.MemPhysical),
		})
	}
	return rec
}
