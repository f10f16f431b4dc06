// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// State says how a job's request ended.
type State string

// States of a record.
const (
	Granted State = "granted"
	Refused State = "refused" // Reason says why; it holds nothing
)

// UnknownRun stands for a run of a job that nobody could tell.
const UnknownRun = -1

// Record is one job of this node.
type Record struct {
	JobID     uint32          `json:"job_id"`
	UID       uint32          `json:"uid"`
	GID       uint32          `json:"gid"`
	User      string          `json:"user"`
	Account   string          `json:"account"`
	Partition string          `json:"partition"`
	Request   request.Request `json:"request"`
	Placement place.Placement `json:"placement"`
	Mode      gpu.Mode        `json:"mode"`
	Ceiling   gpu.Share       `json:"ceiling"` // 0: none
	Priority  gpu.Priority    `json:"priority"`
	Created   time.Time       `json:"created"`
	State     State           `json:"state"`
	Reason    string          `json:"reason,omitempty"`
	// Restarts is the run of the job, SLURM_JOB_RESTART_COUNT; [UnknownRun] in a
	// record that was rebuilt from a grant.
	Restarts int64 `json:"restarts"`
	// EngineWhy is why gresd took the engine of Request, for a job that leaves it to gresd (gpu.Auto);
	// "" where the job or the site names one.
	EngineWhy string `json:"engine_why,omitempty"`
}

// clone returns a copy that shares no memory with r.
func (r *Record) clone() Record {
	copied := *r
	copied.Placement.Cards = slices.Clone(r.Placement.Cards)
	return copied
}
