// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"io"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
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
		"mode": o.Mode, "priority": o.Priority, "policy": o.Policy,
	} {
		if value != "" {
			options[name] = value
		}
	}
	return options
}

// recordOf starts a record from what slurmctld says of the job.
func recordOf(facts slurm.JobFacts, req request.Request) ledger.Record {
	return ledger.Record{
		JobID: facts.JobID, UID: facts.UID, GID: facts.GID, User: facts.User,
		Account: facts.Account, Partition: facts.Partition,
		Request: req, Mode: req.Mode, Ceiling: req.Ceiling, Priority: req.Priority,
		Created: time.Now().UTC().Truncate(time.Microsecond),
	}
}

// factsOf is what the Prolog says of a job, where slurmctld's word cannot be
// read. It is enough to refuse the job, not to grant it.
func factsOf(w wire.Request) slurm.JobFacts {
	return slurm.JobFacts{
		JobID: w.JobID, UID: w.UID, GID: w.GID, User: w.User, Account: w.Account, Partition: w.Partition,
	}
}

func isAlive(slot libvgpu.SlotView) bool { return slot.Alive }

func isEOF(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
