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

// What slurmctld gave a job is held against what the job asks for, where the two can
// differ.

// decideWithoutCard is for a job to which slurmd names no card. There is
// nothing to ask slurmctld about, unless it may have lost the job's shards.
func (s *Server) decideWithoutCard(ctx context.Context, w wire.Request) outcome {
	if s.keeps.Load() {
		return none()
	}
	client := s.node.Slurm(w.Conf)
	if loses, err := client.LosesShards(ctx); err != nil || !loses {
		s.keeps.Store(err == nil)
		return none()
	}
	facts, err := client.Job(ctx, w.JobID, w.Node)
	if err != nil || !facts.OnNode || facts.Holds() || !facts.MayAskForShards {
		return none()
	}
	asked, err := client.Asked(ctx, w.JobID)
	if err != nil || !asked.HasShards() {
		return none()
	}
	if s.shardless.again(w.JobID) {
		return refuse(w, facts, "vgpu: place: job %d: slurmctld has started it twice without the shards that it asks for (%s)",
			w.JobID, asked.PerNode)
	}
	return sendBack(w, facts, errors.New("slurmctld has started it without the shards that it asks for ("+
		asked.PerNode+"): it was restarted, and had not heard of this node's cards yet"))
}

// shardless are the jobs that were started without their shards: each is sent back once.
type shardless struct {
	mu   sync.Mutex
	jobs map[uint32]bool
}

// mostShardless bounds what is kept of jobs that have never come again.
const mostShardless = 10_000

// again notes a job, and says whether it was noted before.
func (l *shardless) again(jobID uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.jobs[jobID] {
		delete(l.jobs, jobID)
		return true
	}
	if l.jobs == nil || len(l.jobs) >= mostShardless {
		l.jobs = map[uint32]bool{}
	}
	l.jobs[jobID] = true
	return false
}

// splitUnasked says why a job must not run on the cards that slurmctld gave: it has split
// one share over several, which MULTIPLE_SHARING_GRES_PJ lets it do, and the job has not
// asked for several. A program that uses one card would have a part of its share. Where
// each task asks for shards, no task's may be split. Errors: of slurmctld that was asked.
func (s *Server) splitUnasked(ctx context.Context, w wire.Request, facts slurm.JobFacts, req request.Request) (why, err error) {
	if s.cfg().Placement.Mode != config.PlacementSlurm || len(facts.Units) < 2 || req.Cards > 1 || wholeParts(facts.Units, gpu.FullCard) {
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

// wholeParts says whether each card has a multiple of that many shards.
func wholeParts(units map[int]gpu.Share, of gpu.Share) bool {
	for _, n := range units {
		if n%of != 0 {
			return false
		}
	}
	return true
}
