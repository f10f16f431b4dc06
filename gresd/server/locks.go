// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"slices"
	"sync"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/waitqueue"
)

// jobLocks order the work on each job. The zero value is ready.
type jobLocks struct {
	mu    sync.Mutex
	byJob map[uint32]*jobLock
	asked map[uint32]bool // jobs whose Prolog or Epilog came while the ledger was being rebuilt
}

type jobLock struct {
	sync.Mutex
	users int // those that hold it or wait
}

func (l *jobLocks) lock(jobID uint32) (unlock func()) {
	l.mu.Lock()
	if l.byJob == nil {
		l.byJob = map[uint32]*jobLock{}
	}
	own := l.byJob[jobID]
	if own == nil {
		own = &jobLock{}
		l.byJob[jobID] = own
	}
	own.users++
	l.mu.Unlock()
	own.Lock()
	return func() {
		own.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(l.byJob, jobID)
		}
	}
}

// lockJob is for work on the record and the folder of one job. Work on other jobs
// goes on meanwhile, and shares its writes to the disk.
func (s *Server) lockJob(jobID uint32) (unlock func()) {
	unlock = s.lockQuietly(jobID)
	if s.isLost() {
		s.jobLocks.mu.Lock()
		defer s.jobLocks.mu.Unlock()
		if s.jobLocks.asked == nil {
			s.jobLocks.asked = map[uint32]bool{}
		}
		s.jobLocks.asked[jobID] = true
	}
	return unlock
}

// lockQuietly is lockJob for gresd's own wishes.
func (s *Server) lockQuietly(jobID uint32) (unlock func()) { return s.jobLocks.lock(jobID) }

// wasAsked says whether this gresd has heard of a job itself. Its lock is held.
func (l *jobLocks) wasAsked(jobID uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked[jobID]
}

func (l *jobLocks) forgetAsked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = nil
}

// deciding are the requests for shares that are being decided. The zero value is ready. Whose job ends
// meanwhile is told so: what is decided then leaves nothing behind.
type deciding struct {
	mu   sync.Mutex
	jobs map[uint32][]*context.CancelCauseFunc
	// latest is the order of each job's last grant ([wire.Request.Order]), until the job's release.
	latest map[uint32]uint64
}

// begin is for a request of the job; [waitqueue.HasEnded] says of ctx whether the job has ended.
func (d *deciding) begin(ctx context.Context, jobID uint32, order uint64) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.jobs == nil {
		d.jobs, d.latest = map[uint32][]*context.CancelCauseFunc{}, map[uint32]uint64{}
	}
	if order > d.latest[jobID] {
		d.latest[jobID] = order
	}
	d.jobs[jobID] = append(d.jobs[jobID], &cancel)
	return ctx, func() {
		cancel(nil)
		d.mu.Lock()
		defer d.mu.Unlock()
		left := slices.DeleteFunc(d.jobs[jobID], func(c *context.CancelCauseFunc) bool { return c == &cancel })
		if d.jobs[jobID] = left; len(left) == 0 {
			delete(d.jobs, jobID)
		}
	}
}

// end ends the requests of the job. It returns false if a later grant has come: that grant is of the
// job's next run, or of a second Prolog. Call end with the job's lock held.
func (d *deciding) end(jobID uint32, order uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if order > 0 && order < d.latest[jobID] {
		return false
	}
	delete(d.latest, jobID)
	for _, cancel := range d.jobs[jobID] {
		(*cancel)(waitqueue.ErrJobEnded)
	}
	return true
}
