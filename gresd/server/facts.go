// SPDX-License-Identifier: Apache-2.0

package server

import (
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// optionsOf drops the options that were not given.
func optionsOf(o wire.Options) request.Options {
	options := request.Options{}
	for name, value := range map[string]string{
		"mem": o.Mem, "cores": o.Cores, "cards": o.Cards,
		"mode": o.Mode, "priority": o.Priority, "policy": o.Policy, "engine": o.Engine,
	} {
		if value != "" {
			options[name] = value
		}
	}
	return options
}

// recordOf starts a record from what slurmctld says of the job.
func recordOf(facts slurm.JobFacts, req request.Request, restart uint32) ledger.Record {
	return ledger.Record{
		JobID: facts.JobID, UID: facts.UID, GID: facts.GID, User: facts.User,
		Account: facts.Account, Partition: facts.Partition,
		Request: req, Mode: req.Mode, Ceiling: req.Ceiling, Priority: req.Priority,
		Created: time.Now().UTC().Truncate(time.Microsecond), Restarts: int64(restart),
	}
}

// factsOf is what the Prolog says of a job, where slurmctld's word cannot be
// read. It is enough to refuse the job, not to grant it.
func factsOf(w wire.Request) slurm.JobFacts {
	return slurm.JobFacts{
		JobID: w.JobID, UID: w.UID, GID: w.GID, User: w.User, Account: w.Account, Partition: w.Partition,
	}
}

// contextCost is what the card counts for a process with one CUDA context.
func (s *Server) contextCost(uuid gpu.UUID) gpu.Bytes { return s.costOn(uuid).Total() }

// Uncounted is what the card takes for each process beyond what it counts for it.
func (s *Server) Uncounted(uuid gpu.UUID) gpu.Bytes { return s.costOn(uuid).Uncounted }

func (s *Server) costOn(uuid gpu.UUID) probe.Figure {
	card, here := s.Cards.Of(uuid)
	if !here {
		return probe.Figure{}
	}
	return s.costs.Of(card.Name)
}

func isAlive(slot libvgpu.SlotView) bool { return slot.Alive }
