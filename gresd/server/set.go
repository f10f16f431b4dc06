// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// set changes the compute share of a running job on each of its cards. It is
// durable before it is in force, and in force at once: the arbiter is woken.
func (s *Server) set(w wire.Request) wire.Reply {
	defer s.jobLocks.lockAsked(w.JobID)()
	rec, known := s.ledger.Get(w.JobID)
	if !known || rec.State != ledger.Granted {
		return wire.UserError("vgpu: set: job %d: it has no share of a card of this node; vgpuctl jobs lists those that have", w.JobID)
	}
	cores := gpu.Share(w.Cores)
	if most, of := mostCores(rec); cores > most {
		return wire.UserError("vgpu: set: job %d: --cores: %d: want 1 to %d, %s, for example --cores %d", w.JobID, cores, most, of, most)
	}
	if rec.Request.Engine == gpu.MPS {
		return wire.UserError("vgpu: set: job %d: its engine is MPS, where the share of a program is fixed when it starts; "+
			"want a job with --vgpu-engine=time", w.JobID)
	}
	before := rec.Placement.Cards[0].Cores
	for i := range rec.Placement.Cards {
		rec.Placement.Cards[i].Cores = cores
	}
	if err := s.ledger.Commit(rec); err != nil {
		return wire.NodeError("vgpu: set: job %d: %v", w.JobID, err)
	}
	s.grants.SetCores(w.JobID, cores)
	s.log.Info("compute share set", "job_id", w.JobID, "cores", cores, "before", before)
	return wire.Reply{OK: true, Result: wire.Changed, Message: fmt.Sprintf(
		"job %d: compute share %d %% of each of its cards, it was %d %%", w.JobID, cores, before)}
}

// mostCores is the most that a job may compute on any of its cards, and why.
func mostCores(rec ledger.Record) (most gpu.Share, of string) {
	most = gpu.FullCard
	for _, c := range rec.Placement.Cards {
		if c.Share <= most {
			most, of = c.Share, fmt.Sprintf("the share that it holds of card %d", c.Index)
		}
	}
	if rec.Ceiling != 0 && rec.Ceiling < most {
		most, of = rec.Ceiling, "the ceiling of its mode "+gpu.FormatMode(rec.Mode, rec.Ceiling)
	}
	return most, of
}
