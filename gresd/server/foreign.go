// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// foreign serves the Prolog of a job of another cluster than that of the jobs that have shares
// here. Jobs without a share start; a batch job with one goes back into the queue of its
// cluster. Nothing of it is recorded: a job of ours may have the same number.
func (s *Server) foreign(ctx context.Context, w wire.Request) wire.Reply {
	none := wire.Reply{OK: true, Result: wire.None}
	if s.cfg().Placement.Mode == config.PlacementSlurm && len(w.GPUs) == 0 {
		return none
	}
	if w.Node == "" { // a task asks, and it is not known where to ask about it
		return wire.UserError("vgpu: grant: job %d is of cluster %s, and jobs of cluster %s have shares on this node", w.JobID, w.Cluster, s.node.Cluster())
	}
	facts, err := s.facts(ctx, w)
	if err != nil {
		return wire.BusyError("vgpu: grant: job %d of cluster %s: ask slurmctld: %v", w.JobID, w.Cluster, err)
	}
	if !s.holdsShare(facts, request.HasToken(facts.Comment)) {
		return none
	}
	message := fmt.Sprintf("vgpu: place: job %d is of cluster %s, and jobs of cluster %s have shares on this node: "+
		"one cluster at a time can have them", w.JobID, w.Cluster, s.node.Cluster())
	if facts.Batch {
		err := s.requeue(ctx, w)
		s.Log.Warn("a second cluster wants shares of this node's cards", "job_id", w.JobID, "cluster", w.Cluster,
			"served", s.node.Cluster(), "requeued", err == nil)
		if err == nil {
			return wire.Reply{OK: true, Result: wire.Requeued, Message: message}
		}
	}
	return wire.UserError("%s", message)
}
