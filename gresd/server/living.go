// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

// A cluster may have thousands of nodes with a gresd and one slurmctld. So gresd asks it about
// single jobs, never for a list of all of them; only about jobs that nothing on this host speaks
// for; the less often, the longer the answer was the same; and no two nodes in step.

// reconcileEvery is the time between two comparisons with slurmctld, on average.
const reconcileEvery = time.Minute

// firstWithin is how soon after the start the first is that asks slurmctld: all nodes may have
// been started at once.
const firstWithin = 20 * time.Second

// seldom is how often slurmctld is asked at least about a job that has no slurmstepd here.
const seldom = 16 * time.Minute

// around is a random time between three and five quarters of d.
func around(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2) }

// asking says whom slurmctld is asked about, of the jobs without a slurmstepd.
type asking int

const (
	askStrays asking = iota // those without a record
	askDue                  // those whose time has come
	askAll
)

// Steps knows jobs by their slurmstepd on this host ([slurm.Steps]).
type Steps interface {
	Living(jobs []uint32) map[uint32]bool
	Jobs() []uint32
}

// pace spreads the questions about a job: the wait for the next doubles up to seldom.
type pace struct {
	mu    sync.Mutex
	byJob map[uint32]turn
}

type turn struct {
	due  time.Time
	wait time.Duration
}

func (p *pace) isDue(job uint32, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !now.Before(p.byJob[job].due)
}

// answered is called when a question about the job has been answered.
func (p *pace) answered(job uint32, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byJob == nil {
		p.byJob = map[uint32]turn{}
	}
	wait := min(max(reconcileEvery, 2*p.byJob[job].wait), seldom)
	p.byJob[job] = turn{now.Add(around(wait)), wait}
}

// keep forgets all other jobs.
func (p *pace) keep(jobs []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.byJob, func(job uint32, _ turn) bool { return !slices.Contains(jobs, job) })
}

// jobsHere are the jobs that something on this host is kept for: records, folders, marks, whole
// cards.
func (s *Server) jobsHere(records map[uint32]time.Time) []uint32 {
	jobs := slices.Collect(maps.Keys(records))
	if folders, err := s.Grants.Listed(); err == nil { // else Sweep meets the same error
		jobs = append(jobs, folders...)
	}
	marks, _ := s.plainMarks() // nor is this the place to say so
	jobs = slices.AppendSeq(jobs, maps.Keys(marks))
	jobs = append(jobs, s.whole.jobs()...)
	slices.Sort(jobs)
	return slices.Compact(jobs)
}

// plainMarks are those of jobs without a share.
func (s *Server) plainMarks() (map[uint32]os.DirEntry, error) {
	entries, err := os.ReadDir(s.cfg().Paths.Plain())
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

// living are those of the jobs that hold resources of this node: they have a slurmstepd here, or
// slurmctld says so. One that is not asked about now counts as living. An error makes the whole
// answer unknown.
func (s *Server) living(ctx context.Context, jobs []uint32, whom asking) (map[uint32]bool, error) {
	live := s.Steps.Living(jobs)
	silent := slices.DeleteFunc(jobs, func(job uint32) bool { return live[job] })
	s.pace.keep(silent)
	if len(s.nodes.all()) == 0 && (len(silent) != 0 || s.isLost()) {
		return nil, errNoNode
	}
	for _, job := range silent {
		_, recorded := s.Ledger.Get(job)
		if whom == askStrays && recorded || whom == askDue && !s.pace.isDue(job, time.Now()) {
			live[job] = true
			continue
		}
		facts, _, err := s.factsHere(ctx, job, Slurm.Brief, slurm.JobFacts.Lives)
		switch {
		case err == nil:
			live[job] = true
		case errors.Is(err, slurm.ErrUnavailable):
			return nil, fmt.Errorf("ask about job %d: %w", job, err)
		case !errors.Is(err, slurm.ErrNoJob):
			live[job] = true // what cannot be read is no end
		}
		s.pace.answered(job, time.Now())
		s.Log.Debug("asked slurmctld about a job without a process here", "job_id", job, "state", facts.State, "error", err)
	}
	return live, nil
}

// forgetNames forgets names of this node that Slurm does not know any more, but for the last one.
// Only where there are several is slurmctld asked.
func (s *Server) forgetNames(ctx context.Context) error {
	known := s.nodes.all()
	if len(known) < 2 || time.Now().Before(s.namesDue) {
		return nil
	}
	var gone []string
	for node, conf := range known {
		_, err := s.Slurm(conf).Node(ctx, node)
		switch {
		case errors.Is(err, slurm.ErrNoNode):
			gone = append(gone, node)
		case err != nil:
			return fmt.Errorf("ask about node %s: %w", node, err)
		}
	}
	s.namesDue = time.Now().Add(around(seldom))
	if len(gone) == 0 {
		return nil
	}
	s.Log.Info("Slurm does not know this node by that name any more", "node", strings.Join(gone, ","))
	return s.nodes.forget(gone)
}

// factsOfLive asks about a job by each name of this node.
func (s *Server) factsOfLive(ctx context.Context, jobID uint32) (slurm.JobFacts, string, error) {
	return s.factsHere(ctx, jobID, Slurm.Job, func(f slurm.JobFacts) bool { return f.OnNode })
}

// question is how a client is asked about a job on a node.
type question func(client Slurm, ctx context.Context, jobID uint32, node string) (slurm.JobFacts, error)

// factsHere asks about a job by each name of this node, for facts that are as wanted. Errors:
// ErrNoJob where all that were asked know of none, else why one could not say.
func (s *Server) factsHere(ctx context.Context, jobID uint32, ask question, wanted func(slurm.JobFacts) bool) (slurm.JobFacts, string, error) {
	names := s.nodes.all()
	if len(names) == 0 {
		return slurm.JobFacts{}, "", errNoNode
	}
	none := slurm.ErrNoJob
	for node, conf := range names {
		facts, err := ask(s.Slurm(conf), ctx, jobID, node)
		switch {
		case err == nil && wanted(facts):
			return facts, node, nil
		case err != nil && !errors.Is(err, slurm.ErrNoJob):
			none = err
		}
	}
	return slurm.JobFacts{}, "", none
}
