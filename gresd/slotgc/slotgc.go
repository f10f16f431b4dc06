// SPDX-License-Identifier: Apache-2.0

// Package slotgc frees the slots of processes that died without freeing them.
//
// The processes of a job do it for each other when they need room, and ask gresd who
// has ended in other PID namespaces; this is for jobs whose processes do not, so that
// what everybody is told is true.
//
// Why a child. Between "this slot belongs to a dead process" and a write that
// clears it, a new process of the job can take the slot over; clearing it then
// would hide the new process's memory from the limit, and worse, give its slot
// to a third. pwrite cannot exclude that, however short the time: only a
// compare-and-swap can, and that needs the file mapped. A file that its owner
// can cut must not be mapped by gresd (SIGBUS), so a short-lived child maps it,
// as the job's user, with nothing open but that file. If it is killed, it has
// cleared a slot or not, and nothing else is lost.
//
// Who is dead. A process that has ended for certain (see hostpid.go in libvgpu: of
// other PID namespaces, one that a scan of all processes does not find), at two looks
// at least a second apart.
package slotgc

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	// every is the time between two looks.
	every = time.Second
	// pause is how long a job is left alone after a child failed for it.
	pause = 30 * time.Second
)

// Grants is what the reclaimer needs of the open grants.
type Grants interface {
	Open() []uint32
	Spec(jobID uint32) (libvgpu.GrantSpec, bool)
	Cache(jobID uint32, maxAge time.Duration) (libvgpu.CacheView, error)
	OpenCache(jobID uint32) (*os.File, error)
}

// Clear clears slots of a cache file, as that user.
type Clear func(ctx context.Context, cache *os.File, uid, gid uint32, dead []libvgpu.SlotOwner) (int, error)

// Reclaimer looks at the open grants, again and again.
type Reclaimer struct {
	grants Grants
	clear  Clear
	log    *slog.Logger
	wake   wakeup.Bell
	first  map[victim]time.Time // when a dead process was first seen dead
	shun   map[uint32]time.Time // jobs to leave alone until then
	warned bool
}

type victim struct {
	job  uint32
	slot libvgpu.SlotOwner
}

// New returns a reclaimer that does nothing before [Reclaimer.Run].
func New(grants Grants, clear Clear, log *slog.Logger) *Reclaimer {
	return &Reclaimer{
		grants: grants, clear: clear, log: log, wake: wakeup.NewBell(),
		first: map[victim]time.Time{}, shun: map[uint32]time.Time{},
	}
}

// Wake tells the reclaimer that jobs have come or gone. It never blocks.
func (r *Reclaimer) Wake() { r.wake.Ring() }

// Run looks while jobs are awake, until ctx is done.
func (r *Reclaimer) Run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		awake, took := r.step(ctx, began), time.Since(began)
		if awake == 0 {
			select {
			case <-ctx.Done():
			case <-r.wake:
			}
		}
		wakeup.Wait(ctx, max(wakeup.Next(every), wakeup.Rest(took))) // however often jobs come and go
	}
}

// step looks once and returns the number of jobs that are awake.
func (r *Reclaimer) step(ctx context.Context, now time.Time) int {
	jobs, awake := r.grants.Open(), 0
	first := map[victim]time.Time{}
	for _, job := range jobs {
		var ripe []libvgpu.SlotOwner
		dead, asleep := r.dead(job)
		if !asleep {
			awake++
		}
		for _, slot := range dead {
			v := victim{job, slot}
			seen, known := r.first[v]
			if !known {
				seen = now
			}
			first[v] = seen
			if now.Sub(seen) >= every {
				ripe = append(ripe, slot)
			}
		}
		if len(ripe) > 0 && now.After(r.shun[job]) {
			r.reclaim(ctx, job, ripe, now)
		}
	}
	r.first = first
	for job := range r.shun {
		if !slices.Contains(jobs, job) {
			delete(r.shun, job)
		}
	}
	return awake
}

// dead returns the slots of processes of a job that are surely dead.
func (r *Reclaimer) dead(job uint32) (dead []libvgpu.SlotOwner, asleep bool) {
	view, err := r.grants.Cache(job, every/2)
	if err != nil {
		return nil, false // the arbiter says it
	}
	for _, slot := range view.Slots {
		if slot.Gone {
			dead = append(dead, slot.SlotOwner)
		}
	}
	return dead, view.Asleep
}

func (r *Reclaimer) reclaim(ctx context.Context, job uint32, dead []libvgpu.SlotOwner, now time.Time) {
	spec, ok := r.grants.Spec(job)
	if !ok {
		return
	}
	cache, err := r.grants.OpenCache(job)
	if err != nil {
		return // cut or removed
	}
	defer cache.Close()
	n, err := r.clear(ctx, cache, spec.UID, spec.GID, dead[:min(len(dead), mostSlots)])
	switch {
	case err == nil && n > 0:
		r.log.Info("slots of dead processes cleared", "job_id", job, "slots", n)
	case err != nil && ctx.Err() == nil:
		r.shun[job] = now.Add(pause)
		level := slog.LevelDebug // its user can make it fail again and again
		if !r.warned {
			level, r.warned = slog.LevelWarn, true
		}
		r.log.Log(ctx, level, "slots of dead processes are left to the job's own processes", "job_id", job, "error", err)
	}
}
