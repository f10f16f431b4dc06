// SPDX-License-Identifier: Apache-2.0

package server

import (
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// maxDecisions is how many jobs are remembered: a few days of a busy node, in
// about 2 MiB on one with eight cards.
const maxDecisions = 1000

// decided is one placement, or why there was none.
type decided struct {
	jobID, uid uint32
	at         time.Time
	request    request.Request
	decision   place.Decision
	engine     choice
	err        error
}

// decisions remembers the last one of each job, also of jobs that ended or went
// back into the queue. It is not durable: a grant is, its reasons need not be.
type decisions struct {
	mu    sync.Mutex
	byJob map[uint32]decided
	order []uint32 // of jobs, by their first decision
}

func (d *decisions) put(made decided) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byJob == nil {
		d.byJob = map[uint32]decided{}
	}
	if _, known := d.byJob[made.jobID]; !known {
		if len(d.order) == maxDecisions {
			delete(d.byJob, d.order[0])
			d.order = d.order[1:]
		}
		d.order = append(d.order, made.jobID)
	}
	d.byJob[made.jobID] = made
}

func (d *decisions) get(jobID uint32) (decided, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	made, known := d.byJob[jobID]
	return made, known
}

// countCards tells the observer what was decided about each card.
func (s *Server) countCards(jobID uint32) {
	made, _ := s.decisions.get(jobID)
	for _, v := range made.decision.Verdicts {
		s.observer.CardDecided(string(v.Reason))
	}
}
