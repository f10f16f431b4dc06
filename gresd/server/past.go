// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/past"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/sample"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// report answers what a job did, while it runs and for some time after its end.
func (s *Server) report(jobID uint32, cred wire.Cred) wire.Reply {
	none := userError("vgpu: gresd: report: job %d: none of yours that has or had a share here; reports are kept for %d days, the last %d of this node",
		jobID, int(past.Longest.Hours()/24), past.Most)
	var r wire.Report
	rec, known := s.Ledger.Get(jobID)
	if known && rec.State == ledger.Granted {
		r = s.reportOf(rec, s.samplesOfJobs([]ledger.Record{rec}))
	} else {
		var err error
		if r, err = s.Past.Of(jobID); errors.Is(err, past.ErrNone) {
			return none
		} else if err != nil {
			s.Log.Warn("a report cannot be read", "job_id", jobID, "error", err)
			return none
		}
	}
	if r.Job.UID != cred.UID && !isRoot(cred.UID) {
		return none
	}
	return wire.Reply{OK: true, Report: &r}
}

// reportOf is the report of a job that has its grant.
func (s *Server) reportOf(rec ledger.Record, samples map[gpu.UUID]sample.Card) wire.Report {
	r := wire.Report{Node: strings.Join(s.node.List(), ","), Job: s.jobOf(rec, samples, false), Until: time.Now()}
	view, err := s.Grants.Cache(rec.JobID, viewAge)
	for i, c := range rec.Placement.Cards {
		card := wire.ReportCard{BoundSeconds: s.boundSeconds(rec.JobID, c.UUID)}
		if err == nil && i < len(view.Cards) {
			// The job could write what it liked: no more than it can have had is believed.
			card.PeakBytes = min(view.Cards[i].MemPeak, uint64(c.Memory))
		}
		r.Cards = append(r.Cards, card)
	}
	return r
}

// keepReport keeps what is known of a job that ends. s.mu is held: the driver is not asked.
func (s *Server) keepReport(rec ledger.Record) {
	r := s.reportOf(rec, nil)
	ended := r.Until
	r.Ended = &ended
	for i := range r.Job.Cards {
		// What it did last is over, and what its processes wrote need not be true.
		c := &r.Job.Cards[i]
		c.ComputePercent, c.WaitPercent, c.Processes, c.Bound = nil, nil, nil, ""
		if c.GPUSeconds != nil {
			*c.GPUSeconds = min(*c.GPUSeconds, ended.Sub(rec.Created).Seconds())
		}
	}
	if err := s.Past.Keep(r); err != nil {
		s.Log.Warn("what a job did is not kept", "error", err)
	}
}

// boundSeconds is how long each word bound a job.
func (s *Server) boundSeconds(job uint32, card gpu.UUID) map[string]float64 {
	s.spent.mu.Lock()
	defer s.spent.mu.Unlock()
	seconds := map[string]float64{}
	for word, d := range s.spent.bound[cardOfJob{job, card}] {
		seconds[word] = d.Seconds()
	}
	return seconds
}
