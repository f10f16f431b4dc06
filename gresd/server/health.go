// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/health"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// CardChanged is called when a card became sick or well. Jobs on it are told.
func (s *Server) CardChanged(c health.Change) {
	readable := s.cards.Judge(c.UUID)
	s.queue.WakeAll()
	if c.Why == "" && !readable {
		s.reload.Ring() // it can be read again
	}
	var jobs []uint32
	for _, rec := range s.ledger.List() {
		on := func(held place.CardShare) bool { return held.UUID == c.UUID }
		if rec.State == ledger.Granted && slices.ContainsFunc(rec.Placement.Cards, on) {
			jobs = append(jobs, rec.JobID)
		}
	}
	s.outbox.CardChanged(c, jobs)
}

// cordon takes a card out of use, or back into it.
func (s *Server) cordon(w wire.Request) wire.Reply {
	uuid, found := s.cards.Find(w.Card)
	if !found {
		return wire.UserError("vgpu: %s: card %q: want one of this node, by index or UUID, for example %s", w.Op, w.Card, s.cards.Example())
	}
	name := s.cards.Name(uuid)
	if w.Op == wire.OpCordon {
		if err := s.cards.Cordon(uuid, w.Reason); err != nil {
			return wire.NodeError("vgpu: cordon: card %s: it is out of use until gresd restarts: %v", name, err)
		}
		jobs := s.queue.CurrentUse()[uuid].Jobs
		return wire.Reply{OK: true, Result: wire.Changed, Message: fmt.Sprintf(
			"card %s: cordoned: no new jobs; jobs that stay on it: %d", name, jobs)}
	}
	was, err := s.cards.Uncordon(uuid)
	if err != nil {
		return wire.NodeError("vgpu: uncordon: card %s: %v", name, err)
	}
	if !was {
		return wire.Reply{OK: true, Result: wire.None, Message: fmt.Sprintf("card %s: was not cordoned", name)}
	}
	return wire.Reply{OK: true, Result: wire.Changed, Message: fmt.Sprintf("card %s: takes jobs again", name)}
}
