// SPDX-License-Identifier: Apache-2.0

package status

import (
	"errors"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/endedjobs"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Job answers what a job did, while it runs and for some time after its end.
func (r *Reporter) Job(jobID uint32, cred wire.Cred) wire.Reply {
	none := wire.UserError("vgpu: gresd: report: job %d: none of yours that has or had a share here; reports are kept for %d days, the last %d of this node",
		jobID, int(endedjobs.KeepReportsFor.Hours()/24), endedjobs.MaxReports)
	var rep wire.Report
	rec, known := r.Ledger.Get(jobID)
	if known && rec.State == ledger.Granted {
		rep = r.reportOf(rec, r.samplesOfJobs([]ledger.Record{rec}))
	} else {
		var err error
		if rep, err = r.Past.Of(jobID); errors.Is(err, endedjobs.ErrNone) {
			return none
		} else if err != nil {
			r.Log.Warn("a report cannot be read", "job_id", jobID, "error", err)
			return none
		}
	}
	if rep.Job.UID != cred.UID && !wire.IsRoot(cred.UID) {
		return none
	}
	return wire.Reply{OK: true, Report: &rep}
}

// reportOf is the report of a job that has its grant.
func (r *Reporter) reportOf(rec ledger.Record, samples map[gpu.UUID]gputime.Card) wire.Report {
	rep := wire.Report{Node: strings.Join(r.Node.List(), ","), Job: r.jobOf(rec, samples, false), Until: time.Now()}
	view, err := r.Grants.Cache(rec.JobID, viewAge)
	for i, c := range rec.Placement.Cards {
		card := wire.ReportCard{LimitedBySeconds: r.limitedSeconds(rec, c.UUID)}
		if err == nil && i < len(view.Cards) {
			// The job could write what it liked: no more than it can have had is believed.
			card.PeakBytes = min(view.Cards[i].MemPeak, uint64(c.Memory))
		}
		rep.Cards = append(rep.Cards, card)
	}
	return rep
}

// keepReport keeps what is known of a job that ends: the driver is not asked.
func (r *Reporter) keepReport(rec ledger.Record) {
	rep := r.reportOf(rec, nil)
	ended := rep.Until
	rep.Ended = &ended
	for i := range rep.Job.Cards {
		// What it did last is over, and what its processes wrote need not be true.
		c := &rep.Job.Cards[i]
		c.GotPercent, c.ThrottledPercent, c.Processes, c.LimitedBy = nil, nil, nil, ""
		if c.GPUSeconds != nil {
			*c.GPUSeconds = min(*c.GPUSeconds, ended.Sub(rec.Created).Seconds())
		}
	}
	if err := r.Past.Keep(rep); err != nil {
		r.Log.Warn("what a job did is not kept", "error", err)
	}
}
