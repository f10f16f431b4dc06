// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// This file compares the resources that slurmctld gave a job with the request of the job.

// decideWithoutCard decides about a job for which slurmd names no card. If slurmctld can have dropped
// the job's shards, gresd asks slurmctld, and until slurmctld replies the job gets no answer.
func (s *Server) decideWithoutCard(ctx context.Context, w wire.Request) outcome {
	if !s.mayDropShards(ctx, w.Conf) {
		return none()
	}
	// A job without a share must not wait: its Prolog asks slurmctld once. A task asks only with a reason.
	facts, err := s.node.Slurm(w.Conf).Job(ctx, w.JobID, w.Node)
	if w.Node == "" {
		facts, err = s.facts(ctx, w)
	}
	if errors.Is(err, slurm.ErrNoJob) || errors.Is(err, slurm.ErrUnavailable) {
		return unknown(w, err)
	}
	if err == nil && (!facts.MayAskForShards || facts.Holds()) {
		return none()
	}
	return s.decideLost(ctx, w, facts, err)
}

// decideLost decides about a job that seems to be without the share that it asks for. misread is the
// error of an unreadable record. The output of squeue decides, because it has no text of the user.
func (s *Server) decideLost(ctx context.Context, w wire.Request, facts slurm.JobFacts, misread error) outcome {
	if w.Node == "" {
		w.Restart = facts.Restarts // a task cannot know it
	}
	asked, err := s.node.Slurm(w.Conf).Asked(ctx, w.JobID)
	switch {
	case err != nil:
		return unknown(w, err)
	case !asked.HasShards():
		return none()
	case misread != nil:
		return unknown(w, misread)
	case !facts.OnNode: // it went back into the queue while its Prolog ran
		return answer(wire.UserError("vgpu: grant: job %d: it is %s: want a running job", w.JobID, facts.State))
	case s.lostShards.seenBefore(w.JobID, w.UID, w.Restart):
		return refuse(w, facts, "vgpu: place: job %d: slurmctld has started it twice without the shards that it asks for (%s)",
			w.JobID, asked.PerNode)
	}
	next := ""
	if !facts.Batch {
		next = "; submit it again"
	}
	return sendBack(w, facts, fmt.Errorf("slurmctld has started it without the shards that it asks for (%s): "+
		"it was restarted, and had not heard of this node's cards yet%s", asked.PerNode, next))
}

// lostShards are the jobs that slurmctld started without their shards, with the restart count. gresd
// requeues each job once. A slurmctld that lost its state reuses numbers: the key has the user, too.
type lostShards struct {
	mu   sync.Mutex
	jobs map[[2]uint32]uint32
}

// maxLostShards limits the number of jobs, because some never start again.
const maxLostShards = 10_000

// seenBefore records a job, and reports whether an earlier run of the job was recorded. A Prolog can ask
// twice.
func (l *lostShards) seenBefore(jobID, uid, restart uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	job := [2]uint32{jobID, uid}
	if before, known := l.jobs[job]; known && before != restart {
		delete(l.jobs, job)
		return true
	}
	if l.jobs == nil || len(l.jobs) >= maxLostShards {
		l.jobs = map[[2]uint32]uint32{}
	}
	l.jobs[job] = restart
	return false
}

// splitUnasked returns the reason why a job must not run on its cards: slurmctld has split one share
// over several cards (MULTIPLE_SHARING_GRES_PJ), and the job asks for one card. A program on one card
// would have only a part of the share. If each task asks for shards, no task's shards may be split. err
// is an error of slurmctld.
func (s *Server) splitUnasked(ctx context.Context, w wire.Request, facts slurm.JobFacts, req request.Request) (why, err error) {
	if s.config.Get().Placement.By != config.PlacementSlurm || len(facts.Units) < 2 || req.Cards > 1 || wholeParts(facts.Units, gpu.FullCard) {
		return nil, nil
	}
	var asked slurm.Asked
	if err := node.UntilAnswered(ctx, func() (err error) {
		asked, err = s.node.Slurm(w.Conf).Asked(ctx, w.JobID)
		return err
	}); err != nil {
		return nil, err
	}
	if each := asked.TaskShards(); each != 0 && wholeParts(facts.Units, each) {
		return nil, nil
	}
	var parts []string
	var sum gpu.Share
	for _, card := range slices.Sorted(maps.Keys(facts.Units)) {
		parts = append(parts, fmt.Sprintf("%d %% of card %d", facts.Units[card], card))
		sum += facts.Units[card]
	}
	return fmt.Errorf("want %d %% of one card: slurmctld has split it into %s (MULTIPLE_SHARING_GRES_PJ)",
		sum, strings.Join(parts, " and ")), nil
}

// wholeParts reports whether each card has a multiple of that many shards.
func wholeParts(units map[int]gpu.Share, of gpu.Share) bool {
	for _, n := range units {
		if n%of != 0 {
			return false
		}
	}
	return true
}

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
