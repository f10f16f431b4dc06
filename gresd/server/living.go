// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

// firstWithin is how soon after the start the first is that asks slurmctld: all nodes may have
// been started at once.
const firstWithin = 20 * time.Second

// compareScope selects the jobs without a slurmstepd that gresd asks slurmctld about.
type compareScope int

const (
	unrecorded compareScope = iota // those without a record
	due                            // those whose time has come
	all
)

// Steps knows jobs by their slurmstepd on this host ([stepd.Steps]).
type Steps interface {
	Living(jobs []uint32) map[uint32]bool
	Jobs() []uint32
}

// jobsHere are the jobs that something on this host is kept for: records, folders, marks, whole
// cards.
func (s *Server) jobsHere(records map[uint32]time.Time) []uint32 {
	jobs := slices.Collect(maps.Keys(records))
	if folders, err := s.grants.Listed(); err == nil { // else Sweep meets the same error
		jobs = append(jobs, folders...)
	}
	marks, _ := s.plainMarks() // nor is this the place to say so
	jobs = slices.AppendSeq(jobs, maps.Keys(marks))
	jobs = append(jobs, s.queue.JobIDs()...)
	slices.Sort(jobs)
	return slices.Compact(jobs)
}

// plainMarks returns the state files of the Prolog (config.Paths.JobStates).
func (s *Server) plainMarks() (map[uint32]os.DirEntry, error) {
	entries, err := os.ReadDir(s.cfg().Paths.JobStates())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	marks := map[uint32]os.DirEntry{}
	for _, entry := range entries {
		if id, err := strconv.ParseUint(entry.Name(), 10, 32); err == nil {
			marks[uint32(id)] = entry
		}
	}
	return marks, err
}

// livingJobs returns the jobs that hold resources of this node: the job has a slurmstepd here, or
// slurmctld confirms it. A job that gresd does not ask about now counts as living. A job without a clear
// answer counts as living, too, and the error has the answer. If slurmctld is silent, the map is nil.
func (s *Server) livingJobs(ctx context.Context, jobs []uint32, whom compareScope) (map[uint32]bool, error) {
	live := s.steps.Living(jobs)
	silent := slices.DeleteFunc(jobs, func(job uint32) bool { return live[job] })
	s.pace.Keep(silent)
	if len(s.node.All()) == 0 && (len(silent) != 0 || s.isLost()) {
		return nil, node.ErrNoName
	}
	var skipped error // the first one
	for _, job := range silent {
		_, recorded := s.ledger.Get(job)
		if whom == unrecorded && recorded || whom == due && !s.pace.IsDue(job, time.Now()) {
			live[job] = true
			continue
		}
		facts, err := s.node.Lives(ctx, job)
		switch {
		case err == nil:
			live[job] = true
		case errors.Is(err, slurm.ErrSilent), ctx.Err() != nil:
			return nil, fmt.Errorf("ask about job %d: %w", job, err)
		case errors.Is(err, slurm.ErrUnavailable):
			live[job] = true
			if skipped == nil {
				skipped = fmt.Errorf("ask about job %d: %w", job, err)
			}
			continue
		case !errors.Is(err, slurm.ErrNoJob):
			live[job] = true // what cannot be read is no end
		}
		if facts.State != slurm.Completing { // one that ends is soon gone: it is asked about each time
			s.pace.Answered(job, time.Now())
		}
		s.log.Debug("asked slurmctld about a job without a process here", "job_id", job, "state", facts.State, "error", err)
	}
	return live, skipped
}
