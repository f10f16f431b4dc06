// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
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
// Until that is known the job has no answer: it may be one with a share.
func (s *Server) decideWithoutCard(ctx context.Context, w wire.Request) outcome {
	if !s.losesShards(ctx, w.Conf) {
		return none()
	}
	facts, err := s.factsAtOnce(ctx, w)
	if errors.Is(err, slurm.ErrNoJob) || errors.Is(err, slurm.ErrUnavailable) {
		return unknown(w, err)
	}
	if err == nil && (!facts.MayAskForShards || facts.Holds()) {
		return none()
	}
	return s.decideLost(ctx, w, facts, err)
}

// factsAtOnce asks for a Prolog once: jobs without a share do not wait for slurmctld. A task has
// reason to ask.
func (s *Server) factsAtOnce(ctx context.Context, w wire.Request) (slurm.JobFacts, error) {
	if w.Node == "" {
		return s.facts(ctx, w)
	}
	return s.node.Slurm(w.Conf).Job(ctx, w.JobID, w.Node)
}

// decideLost is for a job that seems to be without the share that it asks for; misread: its record
// cannot be read. What squeue prints holds no words of its user, and decides.
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
	case s.shardless.again(w.JobID, w.UID, w.Restart):
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

// losesShards says whether this Slurm may start a job without its shards; one that does not say its
// release may. It keeps config.Paths.Loses.
func (s *Server) losesShards(ctx context.Context, conf string) bool {
	if s.keeps.Load() {
		return false
	}
	loses, err := s.node.Slurm(conf).LosesShards(ctx)
	if err != nil || loses {
		return true
	}
	_ = os.Remove(s.cfg().Paths.Loses()) // with it, tasks only ask more
	s.keeps.Store(true)
	return false
}

// markLoss makes config.Paths.Loses, unless the release is known to be a later one.
func (s *Server) markLoss() error {
	if err := os.WriteFile(s.cfg().Paths.Loses(), nil, 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseWait)
	defer cancel()
	s.losesShards(ctx, "")
	return nil
}

// shardless are the jobs that were started without their shards, and in which run: each is sent
// back once.
type shardless struct {
	mu   sync.Mutex
	jobs map[numberOf]uint32
}

// numberOf is a job's number and user: a slurmctld that lost its state gives numbers again.
type numberOf struct{ job, uid uint32 }

// mostShardless bounds what is kept of jobs that have never come again.
const mostShardless = 10_000

// again notes a job, and says whether it was noted in an earlier run. A Prolog may ask twice.
func (l *shardless) again(jobID, uid, restart uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	job := numberOf{jobID, uid}
	if before, known := l.jobs[job]; known && before != restart {
		delete(l.jobs, job)
		return true
	}
	if l.jobs == nil || len(l.jobs) >= mostShardless {
		l.jobs = map[numberOf]uint32{}
	}
	l.jobs[job] = restart
	return false
}

// splitUnasked says why a job must not run on the cards that slurmctld gave: it has split
// one share over several, which MULTIPLE_SHARING_GRES_PJ lets it do, and the job has not
// asked for several. A program that uses one card would have a part of its share. Where
// each task asks for shards, no task's may be split. Errors: of slurmctld that was asked.
func (s *Server) splitUnasked(ctx context.Context, w wire.Request, facts slurm.JobFacts, req request.Request) (why, err error) {
	if s.cfg().Placement.By != config.PlacementSlurm || len(facts.Units) < 2 || req.Cards > 1 || wholeParts(facts.Units, gpu.FullCard) {
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
