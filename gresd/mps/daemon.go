// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
)

const (
	// pollEvery is the time between two looks at something that is about to
	// happen.
	pollEvery = 50 * time.Millisecond
	// lookEvery is the same for the life of a daemon that an earlier gresd
	// started: it is not our child, so that nobody tells us of its end.
	lookEvery = 500 * time.Millisecond
	// killTime is how long a killed process may take to be gone.
	killTime = 2 * time.Second
)

// daemon is a control daemon that runs. It belongs to its server's goroutine.
type daemon struct {
	rec     record
	since   time.Time
	exited  chan struct{} // closed at its end
	percent gpu.Share     // what it allows a client; 0: not known
	silent  int
	seen    []identity // its family when last looked at
}

// gone says whether the daemon has ended.
func (d *daemon) gone() bool {
	select {
	case <-d.exited:
		return true
	default:
		return false
	}
}

func (d *daemon) endError(f folder) error {
	if said := f.said(); said != "" {
		return fmt.Errorf("the control daemon has ended; it said: %s", said)
	}
	return errors.New("the control daemon has ended")
}

// remember notes the family while the daemon lives: a server of it that has cut
// all ties is found by this.
func (d *daemon) remember() {
	now := d.rec.family()
	for _, p := range d.seen {
		if p.alive() && !slices.Contains(now, p) {
			now = append(now, p)
		}
	}
	d.seen = now
}

// start starts the daemon and waits until it answers. Whatever fails, nothing
// is left running, unless ctx ends: the next gresd then finds it.
func (s *server) start(ctx context.Context, percent gpu.Share) (*daemon, error) {
	d, err := s.launch(percent)
	if err != nil {
		return nil, err
	}
	if err = s.await(ctx, d); err == nil {
		err = s.setPercent(ctx, uint32(percent))
	}
	if err != nil && ctx.Err() == nil {
		s.end(d, false)
		return nil, err
	}
	return d, nil
}

// launch starts the process. The record is there before it, so that a kill at
// any moment leaves no daemon that nobody knows.
func (s *server) launch(percent gpu.Share) (*daemon, error) {
	program, err := exec.LookPath(s.m.cfg.Control)
	if err != nil {
		return nil, s.m.Available()
	}
	if err := s.folder.make(s.key.UID, s.gid); err != nil {
		return nil, fmt.Errorf("make folders: %w", err)
	}
	rec := record{Key: s.key, GID: s.gid, Token: rand.Text()}
	if err := s.folder.write(rec); err != nil {
		return nil, fmt.Errorf("write record: %w", err)
	}
	// It is written at its end, so that it can be cut while the daemon runs.
	out, err := os.OpenFile(s.folder.output(), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	// In the foreground: a daemon that detaches itself is nobody's child.
	args := []string{"-f"}
	if s.key.Everyone {
		args = append(args, "-M") // one server takes programs of all users
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(commandEnvironment(program), s.folder.environment()...)
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+string(s.key.Card), tokenVariable+"="+rec.Token)
	cmd.Stdout, cmd.Stderr = out, out
	s.asUser(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the control daemon as user %d: %w", s.key.UID, err)
	}
	d := &daemon{rec: rec, since: time.Now(), exited: make(chan struct{}), percent: percent}
	d.rec.PID = cmd.Process.Pid
	stat, _ := process.Of(d.rec.PID).Stat() // a zombie at worst: it was not waited for
	d.rec.Start = stat.Start
	err = s.folder.write(d.rec)
	// gresd is spared when memory runs out; its users' programs are not.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", d.rec.PID), []byte("0"), 0)
	go func() { // ends with the daemon, or with gresd
		_ = cmd.Wait()
		close(d.exited)
	}()
	if err != nil {
		s.end(d, false)
		return nil, fmt.Errorf("write record: %w", err)
	}
	return d, nil
}

// await waits until the daemon answers.
func (s *server) await(ctx context.Context, d *daemon) error {
	last := errors.New("it has made no socket")
	for deadline := d.since.Add(s.m.cfg.Times.Start); time.Now().Before(deadline); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.exited:
			return d.endError(s.folder)
		case <-time.After(pollEvery):
		}
		if _, err := os.Lstat(s.folder.socket()); err != nil {
			continue
		}
		if _, last = s.serverList(ctx); last == nil {
			return nil
		}
	}
	return fmt.Errorf("the control daemon does not answer %s after its start: %w", s.m.cfg.Times.Start, last)
}

// adopt takes over the daemon of a record, or ends what is left of it and
// returns nil.
func (s *server) adopt(ctx context.Context, rec record) *daemon {
	d := &daemon{rec: rec, since: time.Now(), exited: make(chan struct{})}
	if !rec.alive() {
		close(d.exited)
		s.log.Warn("remains of an MPS daemon are ended", "processes", len(rec.family()))
		s.end(d, false)
		s.report(nil, nil)
		return nil
	}
	d.remember()
	s.log.Info("MPS adopted", "pid", rec.PID)
	s.m.work.Go(func() {
		for rec.alive() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(lookEvery):
			}
		}
		close(d.exited)
	})
	return d
}

// end ends a daemon with all of its servers, and removes its files. If polite is set, it first asks the
// daemon to quit. Then it sends SIGTERM, then SIGKILL.
func (s *server) end(d *daemon, polite bool) {
	d.remember()
	gone := len(d.seen) == 0
	if !gone && polite {
		_, err := s.ask(context.Background(), "quit") // also while gresd stops
		if gone = d.emptied(s.m.cfg.Times.Quit); !gone {
			s.log.Warn("MPS does not quit", "pid", d.rec.PID, "error", err)
		}
	}
	if !gone && !d.killed(syscall.SIGTERM, s.m.cfg.Times.Term) && !d.killed(syscall.SIGKILL, killTime) {
		s.log.Error("processes of MPS cannot be ended: the driver holds them", "processes", fmt.Sprint(d.seen))
	}
	if err := s.folder.remove(); err != nil {
		s.log.Warn("remove folders of MPS", "error", err)
	}
}

// killed sends a signal to the family, and waits until nothing of it is left.
func (d *daemon) killed(signal syscall.Signal, limit time.Duration) bool {
	d.remember()
	for _, p := range d.seen {
		p.signal(signal)
	}
	return d.emptied(limit)
}

// emptied waits until nothing of the family is left.
func (d *daemon) emptied(limit time.Duration) bool {
	for deadline := time.Now().Add(limit); ; time.Sleep(pollEvery) {
		// A look at every process of the node only when those that are known are gone.
		if !slices.ContainsFunc(d.seen, identity.alive) {
			if d.remember(); len(d.seen) == 0 {
				return true
			}
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}
