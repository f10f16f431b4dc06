// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// decideForeign is for a job of another cluster than that of the jobs that have shares here. Jobs
// without a share start; one with a share is turned away.
func (s *Server) decideForeign(ctx context.Context, w wire.Request) outcome {
	if s.config.Get().Placement.By == config.PlacementSlurm && len(w.GPUs) == 0 {
		if w.Node == "" {
			return none()
		}
		o := s.decideWithoutCard(ctx, w)
		if o.verdict == toReply {
			return o
		}
		return s.turnedAway(w, o.facts)
	}
	if w.Node == "" { // a task asks, and it is not known where to ask about it
		return answer(wire.UserError("vgpu: grant: job %d is of cluster %s, and jobs of cluster %s have shares on this node", w.JobID, w.Cluster, s.node.Cluster()))
	}
	facts, err := s.facts(ctx, w)
	if err != nil {
		return answer(wire.BusyError("vgpu: grant: job %d of cluster %s: ask slurmctld: %v", w.JobID, w.Cluster, err))
	}
	if !s.holdsShare(facts, request.HasToken(facts.Comment)) {
		return none()
	}
	return s.turnedAway(w, facts)
}

func (s *Server) turnedAway(w wire.Request, facts slurm.JobFacts) outcome {
	return outcome{verdict: turnedAway, job: w, facts: facts, reason: fmt.Sprintf("vgpu: place: job %d is of cluster %s, "+
		"and jobs of cluster %s have shares on this node: one cluster at a time can have them", w.JobID, w.Cluster, s.node.Cluster())}
}
