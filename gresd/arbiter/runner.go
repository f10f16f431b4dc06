// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"context"
	"log/slog"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Grants is what the runner needs of the open grants of the node.
type Grants interface {
	Open() []uint32
	Spec(jobID uint32) (libvgpu.GrantSpec, bool)
	Cache(jobID uint32, maxAge time.Duration) (libvgpu.CacheView, error)
	SetSchedule(jobID uint32, card int, s libvgpu.Schedule) bool
}

// Runner applies [Plan] to the open grants, again and again.
type Runner struct {
	grants  Grants
	params  Params
	tick    time.Duration
	log     *slog.Logger
	wake    chan struct{}
	sampler *sampler
	broken  map[uint32]bool // jobs whose cache could not be read, already said
}

// NewRunner returns a runner that does nothing before [Runner.Run].
func NewRunner(grants Grants, params Params, tick time.Duration, log *slog.Logger) *Runner {
	return &Runner{
		grants: grants, params: params, tick: tick, log: log, wake: make(chan struct{}, 1),
		sampler: newSampler(), broken: map[uint32]bool{},
	}
}

// Wake tells the runner that jobs have come or gone. It never blocks.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run looks at the jobs at every tick, and sleeps while there are none. It
// returns when ctx is done; the last schedules stay in force.
func (r *Runner) Run(ctx context.Context) {
	ticker := time.NewTicker(r.tick)
	defer ticker.Stop()
	for {
		if r.step(time.Now()) == 0 {
			ticker.Stop()
			select {
			case <-ctx.Done():
				return
			case <-r.wake:
			}
			ticker.Reset(r.tick)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-ticker.C:
		}
	}
}

// step looks once, publishes what has changed, and returns the number of jobs.
func (r *Runner) step(now time.Time) int {
	jobs := r.grants.Open()
	var claims []Claim
	place := map[Key]int{} // where a card is in the job's grant
	for _, job := range jobs {
		spec, ok := r.grants.Spec(job)
		if !ok {
			continue
		}
		acts := r.look(job, len(spec.Cards), now)
		for i, card := range spec.Cards {
			key := Key{job, gpu.UUID(card.UUID)}
			place[key] = i
			claims = append(claims, Claim{
				Key: key, Cores: card.Cores, Mode: card.Mode, Ceiling: card.Ceiling,
				Busy: acts[i].busy, NoSlices: acts[i].noSlices,
			})
		}
	}
	r.sampler.forget(now)
	for key, s := range Plan(claims, r.params) {
		if r.grants.SetSchedule(key.JobID, place[key], s) {
			r.log.Debug("schedule", "job_id", key.JobID, "gpu_uuid", key.Card, "slice_us", s.SliceUS,
				"gate", s.Gate, "busy_procs", s.BusyProcs, "others", s.Others)
		}
	}
	return len(jobs)
}

// look returns what a job does. A cache that cannot be read, because its owner
// cut it or wrote over it, shows nothing: the job then counts as idle, its gate
// stays shut and its slice stays its share.
func (r *Runner) look(job uint32, cards int, now time.Time) []activity {
	view, err := r.grants.Cache(job, 0)
	if err == nil && len(view.Cards) == cards {
		delete(r.broken, job)
		return r.sampler.look(job, view, now)
	}
	if !r.broken[job] {
		r.broken[job] = true
		r.log.Warn("cache of a job cannot be read", "job_id", job, "error", err)
	}
	return make([]activity, cards)
}
