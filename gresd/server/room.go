// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

const (
	// interactiveWait bounds the wait of a job that cannot be sent back: srun gives up after 20 s.
	interactiveWait = 10 * time.Second
	// compareLife is how long a comparison with slurmctld's jobs is good for jobs that may not wait.
	// Each comparison asks about all jobs. The Prologs of other jobs wait for it.
	compareLife = 5 * time.Second
)

// looks are the times between two questions to slurmctld about a job that waits: it may have been
// cancelled, and another may have ended without its Epilog.
var looks = []time.Duration{20 * time.Second, 40 * time.Second}

// laterLooks are those of a job that has been sent back: it waits behind jobs that run for long.
var laterLooks = []time.Duration{time.Minute}

// errLeft is for a job that ended, or was asked for anew, while it waited.
var errLeft = errors.New("the job has ended meanwhile")

// errNoTurn is for a job that had no look in time: gresd is being stopped.
var errNoTurn = errors.New("gresd stopped while the job waited for room")

// errNotItsTurn is for a job that would look before one that has waited longer.
var errNotItsTurn = errors.New("not its turn")

// wanted is what a job looks for: a share, or whole cards.
type wanted struct {
	facts slurm.JobFacts
	req   request.Request
	whole []gpu.UUID
	try   func() error // one look
}

// findRoom takes the cards of a job, for which it may wait, and says how long it has. A job that
// comes has its look after those that wait.
func (s *Server) findRoom(ctx context.Context, w wire.Request, want wanted) (waited time.Duration, err error) {
	wait := s.roomWait(ctx, w, want.facts)
	if wait <= 0 {
		if err = want.try(); errors.Is(err, place.ErrNoRoom) {
			err = s.lookOnce(ctx, want, err)
		}
		return 0, err
	}
	began := time.Now()
	err = s.inTurn(ctx, w, want, wait)
	waited = time.Since(began)
	s.room.HasWaited(w.JobID, waited)
	return waited, err
}

// inTurn looks for room when it is the job's turn, for as long as it may wait.
func (s *Server) inTurn(ctx context.Context, w wire.Request, want wanted, wait time.Duration) error {
	self := s.room.Join(w.JobID, want.whole)
	defer s.room.Leave(self)
	var why error // of the last look; nil before the first
	end, next := time.NewTimer(never), time.NewTimer(never)
	defer end.Stop()
	defer next.Stop()
	gone, looks := make(chan struct{}, len(looks)), looks
	if s.room.Times(w.JobID) > 0 {
		looks = laterLooks
	}
	for {
		select {
		case <-self.Left:
			return errLeft
		case <-gone:
			return errLeft
		case <-end.C:
			return why
		case <-ctx.Done():
			if isOver(ctx) {
				return errLeft
			}
			return errNoTurn
		case <-next.C:
			go s.lookAfter(ctx, w, gone)
			if looks = looks[1:]; len(looks) > 0 {
				next.Reset(looks[0])
			}
			s.room.Changed()
		case <-self.Wake:
			err := want.try()
			if err == nil && s.room.IsOver(self) {
				s.release(w)
				return errLeft
			}
			if errors.Is(err, errNotItsTurn) {
				continue
			}
			if !errors.Is(err, place.ErrNoRoom) {
				return err
			}
			s.room.PassOn(self)
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

// foundNoRoom puts a job into the line that found no card here and will come again.
func (s *Server) foundNoRoom(want wanted) {
	if want.facts.Batch && want.whole == nil && s.cfg().Placement.By == config.PlacementGresd {
		s.room.FoundNone(want.facts.JobID, want.req)
	}
}

// lookOnce is for a job that found no room and may not wait for it: one may have ended without its
// Epilog.
func (s *Server) lookOnce(ctx context.Context, want wanted, why error) error {
	s.foundNoRoom(want)
	if s.comparedSince(ctx, time.Now().Add(-s.compareLife)) != nil {
		return why
	}
	return want.try()
}

// lookAfter says of a job that waits whether it has ended, and looks for others that have.
func (s *Server) lookAfter(ctx context.Context, w wire.Request, gone chan<- struct{}) {
	now, err := s.node.Slurm(w.Conf).Job(ctx, w.JobID, w.Node)
	if errors.Is(err, slurm.ErrNoJob) || err == nil && !waits(now.State) {
		gone <- struct{}{}
	}
	_ = s.comparedSince(ctx, time.Now().Add(-looks[0]))
}

// comparedSince sees to it that jobs have been compared with slurmctld's since a time. Many may want
// it at once, and each comparison asks about each job.
func (s *Server) comparedSince(ctx context.Context, since time.Time) error {
	select {
	case s.comparing <- struct{}{}:
		defer func() { <-s.comparing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.compared.Load().After(since) {
		return nil
	}
	return s.Reconcile(ctx)
}

// waits says of a job's state whether its Prolog may still wait for room.
func waits(state string) bool {
	return slices.Contains([]string{"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"}, state)
}

// roomWait is how long a job may wait for room here; 0: not at all, as for what slurmctld chooses,
// and for a task whose job had no Prolog. Its end leaves time to send the job back.
func (s *Server) roomWait(ctx context.Context, w wire.Request, facts slurm.JobFacts) time.Duration {
	most := s.cfg().Placement.Wait()
	if s.cfg().Placement.By != config.PlacementGresd || most == 0 || w.Node == "" {
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
