// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// A cluster may have thousands of nodes with a gresd and one slurmctld. So gresd asks it about
// single jobs, never for a list of all of them; only about jobs that nothing on this host speaks
// for; the less often, the longer the answer was the same; and no two nodes in step.

const (
	// Often is the time between two comparisons with slurmctld, on average.
	Often = time.Minute
	// Seldom is how often slurmctld is asked at least about a job that has no slurmstepd here.
	Seldom = 16 * time.Minute
)

// Around is a random time between three and five quarters of d.
func Around(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2) }

// Pace spreads the questions about jobs: the wait for the next one about a job doubles, from Often
// up to Seldom. The zero value is ready.
type Pace struct {
	mu    sync.Mutex
	byJob map[uint32]turn
}

type turn struct {
	due  time.Time
	wait time.Duration
}

// IsDue says whether slurmctld may be asked about a job.
func (p *Pace) IsDue(job uint32, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !now.Before(p.byJob[job].due)
}

// Answered is called when a question about the job has been answered.
func (p *Pace) Answered(job uint32, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byJob == nil {
		p.byJob = map[uint32]turn{}
	}
	wait := min(max(Often, 2*p.byJob[job].wait), Seldom)
	p.byJob[job] = turn{now.Add(Around(wait)), wait}
}

// Keep forgets all other jobs.
func (p *Pace) Keep(jobs []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.byJob, func(job uint32, _ turn) bool { return !slices.Contains(jobs, job) })
}
