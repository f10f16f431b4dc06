// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Where gresd chooses the cards, slurmctld starts jobs that no card has room for. Such a job
// waits in its Prolog, and has the first room that another leaves: one that is sent back starts
// no sooner than slurmd forgets its run (AuthInfo=cred_expire), whatever becomes free meanwhile.
// Jobs wait in the order of the line; one that only a later, smaller one leaves room for lets
// that one go first, until cards are kept free for it.

const (
	// interactiveWait bounds the wait of a job that cannot be sent back: srun gives up after 20 s.
	interactiveWait = 10 * time.Second
)

// looks are the times between two questions to slurmctld about a job that waits: it may have been
// cancelled, and another may have ended without its Epilog.
var looks = []time.Duration{20 * time.Second, 40 * time.Second}

// errLeft is for a job that ended, or was asked for anew, while it waited.
var errLeft = errors.New("the job has ended while it waited for room")

// errNoTurn is for a job that had no look in time: gresd is being stopped.
var errNoTurn = errors.New("gresd stopped while the job waited for room")

// waiter is a job that waits in its Prolog.
type waiter struct {
	jobID uint32
	since time.Time     // it has been in the line
	wake  chan struct{} // something became free, and those before have had their look
	left  chan struct{} // closed when it need not wait any more
	over  bool          // its Epilog has come; with room.mu
	whole []gpu.UUID    // cards that Slurm has chosen for it as a whole
}

// room is the jobs that wait, in the order in which they may have what becomes free.
type room struct {
	mu      sync.Mutex
	waiters []*waiter
	waited  map[uint32]time.Duration // by jobs whose Prolog is not answered yet
}

func (r *room) hasWaited(jobID uint32, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waited == nil {
		r.waited = map[uint32]time.Duration{}
	}
	r.waited[jobID] = d
}

// answered forgets a job, and returns how long it has waited.
func (r *room) answered(jobID uint32) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.waited[jobID]
	delete(r.waited, jobID)
	return d
}

// join adds a job. One of the same job leaves: its Prolog has asked again.
func (r *room) join(jobID uint32, since time.Time, whole []gpu.UUID) *waiter {
	r.end(jobID, false)
	w := &waiter{jobID: jobID, since: since, whole: whole, wake: make(chan struct{}, 1), left: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	i := 0
	for i < len(r.waiters) && !r.waiters[i].since.After(since) {
		i++
	}
	r.waiters = slices.Insert(r.waiters, i, w)
	return w
}

// leave takes a job out.
func (r *room) leave(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiters = slices.DeleteFunc(r.waiters, func(other *waiter) bool { return other == w })
}

// end lets a job leave that waits no more; over says that it was its Epilog.
func (r *room) end(jobID uint32, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, w := range r.waiters {
		if w.jobID == jobID {
			w.over = over
			close(w.left)
			r.waiters = slices.Delete(r.waiters, i, i+1)
			return
		}
	}
}

// isOver says whether the Epilog of a job came while it waited.
func (r *room) isOver(w *waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return w.over
}

// has says whether a job waits here.
func (r *room) has(jobID uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.waiters, func(w *waiter) bool { return w.jobID == jobID })
}

// wholeBefore are the cards that Slurm has chosen as a whole for jobs that wait, and that come
// before a job.
func (r *room) wholeBefore(jobID uint32) (cards []gpu.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.waiters {
		if w.jobID == jobID {
			break
		}
		cards = append(cards, w.whole...)
	}
	return cards
}

// changed has all look again, one after the other.
func (r *room) changed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiters) > 0 {
		r.waiters[0].look()
	}
}

// passOn lets the next one look.
func (r *room) passOn(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.waiters, w) + 1; i > 0 && i < len(r.waiters) {
		r.waiters[i].look()
	}
}

func (w *waiter) look() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// wanted is what a job looks for: a share, or whole cards.
type wanted struct {
	facts slurm.JobFacts
	req   request.Request
	whole []gpu.UUID
	try   func() (dir string, err error) // one look
}

// findRoom takes the cards of a job, for which it may wait, and says how long it has. A job that
// comes has its look after those that wait.
func (s *Server) findRoom(ctx context.Context, w wire.Request, want wanted) (dir string, waited time.Duration, err error) {
	wait := s.roomWait(ctx, w, want.facts)
	if wait <= 0 {
		if dir, err = want.try(); errors.Is(err, place.ErrNoRoom) {
			dir, err = s.lookOnce(ctx, want, err)
		}
		return dir, 0, err
	}
	began := time.Now()
	dir, err = s.inTurn(ctx, w, want, wait)
	waited = time.Since(began)
	s.room.hasWaited(w.JobID, waited)
	return dir, waited, err
}

// inTurn looks for room when it is the job's turn, for as long as it may wait.
func (s *Server) inTurn(ctx context.Context, w wire.Request, want wanted, wait time.Duration) (string, error) {
	self := s.room.join(w.JobID, s.inLineSince(w.JobID), want.whole)
	defer s.leaveRoom(self)
	s.room.changed()
	var why error // of the last look; nil before the first
	end, next := time.NewTimer(never), time.NewTimer(never)
	defer end.Stop()
	defer next.Stop()
	gone, looks := make(chan struct{}, len(looks)), looks
	for {
		select {
		case <-self.left:
			return "", errLeft
		case <-gone:
			return "", errLeft
		case <-end.C:
			return "", why
		case <-ctx.Done():
			return "", errNoTurn
		case <-next.C:
			go s.lookAfter(ctx, w, gone)
			if looks = looks[1:]; len(looks) > 0 {
				next.Reset(looks[0])
			}
			self.look()
		case <-self.wake:
			dir, err := want.try()
			if err == nil && s.room.isOver(self) {
				s.release(w)
				return "", errLeft
			}
			if !errors.Is(err, place.ErrNoRoom) {
				return dir, err
			}
			s.room.passOn(self)
			if first := why == nil; first {
				s.foundNoRoom(want)
				s.log.Info("waits for room", "job_id", w.JobID, "at_most", wait.Round(time.Second), "error", err)
				end.Reset(wait)
				next.Reset(looks[0])
			}
			why = err
		}
	}
}

// never is longer than any job waits.
const never = time.Hour

// lookOnce is for a job that found no room and may not wait for it: one may have ended without its
// Epilog.
func (s *Server) lookOnce(ctx context.Context, want wanted, why error) (string, error) {
	s.foundNoRoom(want)
	if s.Reconcile(ctx) != nil {
		return "", why
	}
	return want.try()
}

// lookAfter says of a job that waits whether it has ended, and looks for others that have.
func (s *Server) lookAfter(ctx context.Context, w wire.Request, gone chan<- struct{}) {
	now, err := s.node.Slurm(w.Conf).Job(ctx, w.JobID, w.Node)
	if errors.Is(err, slurm.ErrNoJob) || err == nil && !waits(now.State) {
		gone <- struct{}{}
	}
	if time.Since(*s.compared.Load()) > looks[0] {
		_ = s.Reconcile(ctx)
	}
}

// leaveRoom is for a job that waits no more: cards that were kept idle for it are for all.
func (s *Server) leaveRoom(w *waiter) {
	s.room.leave(w)
	s.room.changed()
}

// waits says of a job's state whether its Prolog may still wait for room.
func waits(state string) bool {
	return slices.Contains([]string{"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"}, state)
}

// roomWait is how long a job may wait for room here; 0: not at all, as for what slurmctld chooses,
// and for a task whose job had no Prolog. Its end leaves time to send the job back.
func (s *Server) roomWait(ctx context.Context, w wire.Request, facts slurm.JobFacts) time.Duration {
	most := s.cfg().Placement.Wait()
	if s.cfg().Placement.Mode != config.PlacementGresd || most == 0 || w.Node == "" {
		return 0
	}
	// Where Prologs and Epilogs run one at a time, nobody could leave while one waits.
	if settings, err := s.node.Settings(ctx, w.Conf); err != nil || settings.SerialProlog {
		return 0
	}
	if !facts.Batch {
		most = min(most, interactiveWait)
	}
	if facts.TimeLimit > 0 {
		most = min(most, facts.TimeLimit/2) // which goes on meanwhile
	}
	if until, bounded := ctx.Deadline(); bounded {
		left := time.Until(until)
		most = min(most, left-max(3*time.Second, left/7))
	}
	return most
}
