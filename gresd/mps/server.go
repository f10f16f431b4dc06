// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"log/slog"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/timeout"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

const (
	// maxUnanswered are the questions in a row that a daemon may leave unanswered.
	// Its clients lose their work when it is ended.
	maxUnanswered = 3
	// settledAfter is how long a daemon must run for its start to count as good.
	settledAfter = time.Minute
	// mostBackoff is the longest pause between two starts.
	mostBackoff = time.Minute
)

// jobDemand is the demand of one job on a server.
type jobDemand struct {
	percent gpu.Share
	tries   int // starts that had ended when the job came
}

// server is the control daemon of one user, or of everyone, on one card, whether it runs or not.
type server struct {
	m      *Manager
	key    Key
	gid    uint32
	folder folder
	log    *slog.Logger
	calls  *timeout.Calls[gpu.UUID] // commands to the daemon
	left   record                   // of an earlier gresd; read by run only
	wake   wakeup.Bell              // makes run look again

	// Under m.mu.
	jobs        map[uint32]jobDemand
	up          bool
	applied     gpu.Share // what the daemon allows a client
	tries       int       // starts, and changes of its percentage, that have ended
	err         error     // of the last of them
	skipBackoff bool      // a job has come: do not wait for the end of a pause
}

// holds says whether a job has what it wants. m.mu is held.
func (s *server) holds(jobID uint32) bool {
	demand, known := s.jobs[jobID]
	return known && s.up && s.applied >= demand.percent
}

// report publishes what became of the daemon. d is nil where there is none.
func (s *server) report(d *daemon, err error) {
	defer s.m.cfg.Changed() // m.mu is free then
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.up, s.err, s.applied = d != nil, err, 0
	if d != nil {
		s.applied = d.percent
	}
	s.tries++
	s.m.broadcast()
}

// target is the state that a server should have.
type target struct {
	wanted      bool
	settled     bool // all jobs of the node are known
	percent     gpu.Share
	skipBackoff bool
}

func (s *server) target() target {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	w := target{wanted: len(s.jobs) > 0, settled: s.m.settled, skipBackoff: s.skipBackoff}
	s.skipBackoff = false
	for _, c := range s.jobs {
		w.percent = max(w.percent, c.percent)
	}
	return w
}

// forget takes the server off the list, unless a job has come.
func (s *server) forget() bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if len(s.jobs) > 0 {
		return false
	}
	delete(s.m.servers, s.key)
	return true
}

// retry spaces out starts that fail.
type retry struct {
	failures int
	next     time.Time
}

func (r *retry) failed(first time.Duration) {
	r.next = time.Now().Add(min(first<<min(r.failures, 10), mostBackoff))
	r.failures++
}

// run keeps the daemon as it is wanted, until nothing is, or ctx is done. It is
// the only goroutine that starts, asks or ends this daemon.
func (s *server) run(ctx context.Context) {
	var d *daemon
	var pause retry
	if s.left.Token != "" {
		d = s.adopt(ctx, s.left)
	}
	for ctx.Err() == nil {
		w := s.target()
		switch {
		case !w.wanted && d == nil:
			if s.forget() {
				return
			}
		case !w.settled && (!w.wanted || d != nil && d.percent == 0) && !d.gone():
			// Adopted, and not every job of it is known: it stays, and allows what it did.
			s.sleep(ctx, d, s.m.cfg.Times.Health)
		case !w.wanted:
			s.report(nil, nil)
			if w.settled {
				s.log.Info("MPS ends: its last job has ended", "pid", d.rec.PID)
			}
			s.end(d, w.settled)
			d = nil
		case d == nil && !w.skipBackoff && time.Now().Before(pause.next):
			s.sleep(ctx, nil, time.Until(pause.next))
		case d == nil:
			var err error
			if d, err = s.start(ctx, w.percent); err == nil {
				s.log.Info("MPS started", "pid", d.rec.PID, "percent", w.percent)
			} else if ctx.Err() == nil {
				pause.failed(s.m.cfg.Times.Backoff)
				s.log.Warn("MPS does not start", "error", err, "failures", pause.failures)
			}
			s.report(d, err)
		default:
			if err := s.tend(ctx, d, w.percent); err != nil {
				if time.Since(d.since) > settledAfter {
					pause = retry{}
				}
				pause.failed(s.m.cfg.Times.Backoff)
				s.report(nil, err)
				s.log.Error("MPS is started again: programs that used it have lost their work", "pid", d.rec.PID, "error", err)
				s.end(d, false)
				d = nil
			}
		}
	}
}

// tend looks after a running daemon until something is to be done. The error
// says why it must be started anew.
func (s *server) tend(ctx context.Context, d *daemon, percent gpu.Share) error {
	if d.percent != percent {
		err := s.setPercent(ctx, uint32(percent))
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			d.percent, d.silent = percent, 0
		}
		s.report(d, err)
		if err != nil {
			return s.silence(ctx, d, err)
		}
		return nil
	}
	timeUp := s.sleep(ctx, d, s.m.cfg.Times.Health)
	switch {
	case d.gone():
		return d.endError(s.folder)
	case timeUp:
		s.folder.cutOutput()
		if err := s.folder.bound(s.key.UID); err != nil {
			return err
		}
		d.remember()
		if _, err := s.serverList(ctx); err != nil && ctx.Err() == nil {
			return s.silence(ctx, d, err)
		}
		d.silent = 0
	}
	return nil
}

// silence counts a question that was not answered.
func (s *server) silence(ctx context.Context, d *daemon, err error) error {
	d.silent++
	if d.silent >= maxUnanswered || d.gone() {
		return err
	}
	s.log.Warn("MPS does not answer", "pid", d.rec.PID, "error", err, "times", d.silent)
	s.sleep(ctx, d, s.m.cfg.Times.Backoff)
	return nil
}

// sleep returns early when ctx is done, when a job comes or goes, or when the daemon ends. d may be nil.
func (s *server) sleep(ctx context.Context, d *daemon, length time.Duration) (timeUp bool) {
	var gone <-chan struct{}
	if d != nil {
		gone = d.exited
	}
	select {
	case <-ctx.Done():
	case <-s.wake:
	case <-gone:
	case <-time.After(length):
		return true
	}
	return false
}
