// SPDX-License-Identifier: Apache-2.0

// Package mps runs NVIDIA's Multi-Process Service for the jobs that chose it
// over time slices.
//
// There is one control daemon for each user and card, run as that user and able
// to see that card only; it starts the server, which the CUDA programs of all
// jobs of that user on that card share. Or it is for everyone: then it is root's,
// and its server takes programs of all users. A [Manager] starts it before the
// first of those jobs begins, watches it, starts it again when it dies, and ends
// it after the last of them.
//
// One goroutine for each control daemon does all that can block, within time
// limits: neither a daemon that hangs nor one that cannot be ended holds up
// anything else. Daemons outlive gresd, as grants do. The next gresd finds them
// by the records beside their folders, and takes over what it can prove to be
// its own: a process id with the start time that belongs to it, or a word in the
// environment that nobody else was given; never a name alone.
package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/timeout"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Program is NVIDIA's control daemon.
const Program = "nvidia-cuda-mps-control"

// Sentinels for errors.Is.
var (
	// ErrNoProgram: the control program is not on this node.
	ErrNoProgram = errors.New("no MPS on this node")
	// ErrNoJob: the job was not given to [Manager.Keep], or was released.
	ErrNoJob = errors.New("the job has no MPS server")
)

// Key names one control daemon.
type Key struct {
	Card gpu.UUID
	UID  uint32
	// Everyone says that programs of all users share its server. It is root's then.
	Everyone bool `json:",omitempty"`
}

// ForEveryone names the control daemon of a card that serves all users.
func ForEveryone(card gpu.UUID) Key { return Key{Card: card, Everyone: true} }

// whose says whom the daemon serves.
func (k Key) whose() string {
	if k.Everyone {
		return "all users"
	}
	return fmt.Sprintf("user %d", k.UID)
}

// Times limit everything that can block.
type Times struct {
	Start   time.Duration // from the start of a daemon to its first answer
	Answer  time.Duration // for an answer of a daemon
	Quit    time.Duration // from the command "quit" to the end of a daemon
	Term    time.Duration // from SIGTERM to the end of a daemon
	Health  time.Duration // between two health checks
	Backoff time.Duration // before the second start after a failure; doubles with each failure
}

var defaultTimes = Times{
	Start: 10 * time.Second, Answer: 3 * time.Second, Quit: 5 * time.Second, Term: 3 * time.Second, Health: 10 * time.Second,
	Backoff: time.Second,
}

// Config has the parts of a manager. All but Changed and Times must be set.
type Config struct {
	Dir     string // <run_dir>/mps; made when it is first needed
	Control string // Program, or its path
	Times   Times  // zero: the defaults
	Log     *slog.Logger
	// Changed is called when what [Manager.Serves] and [Manager.Holds] say of a job may have changed,
	// from [New] on. It must not block.
	Changed func()
}

// Manager keeps the control daemons of the node. It is safe for concurrent use,
// and no method but [Manager.Wait] and [Manager.Close] blocks.
type Manager struct {
	cfg  Config
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex // guards what follows and all fields of servers marked so
	servers map[Key]*server
	jobs    map[uint32]*server
	settled bool
	changed chan struct{} // closed and replaced at every change that Wait may wait for
}

// New returns a manager that has found what an earlier gresd left running, and
// keeps it until [Manager.Settle].
func New(cfg Config) (*Manager, error) {
	cfg.Times = cmp.Or(cfg.Times, defaultTimes)
	if cfg.Changed == nil {
		cfg.Changed = func() {}
	}
	ctx, stop := context.WithCancel(context.Background())
	m := &Manager{
		cfg: cfg, ctx: ctx, stop: stop,
		servers: map[Key]*server{}, jobs: map[uint32]*server{}, changed: make(chan struct{}),
	}
	left, err := previousDaemons(cfg.Dir)
	if err != nil {
		stop()
		return nil, fmt.Errorf("find MPS daemons that were left: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, rec := range left {
		s := m.add(rec.Key, rec.GID)
		s.left = rec
		if rec.alive() { // until it was asked: its clients must not be taken for others
			s.up, s.applied = true, gpu.FullCard
		}
		m.launch(s)
	}
	return m, nil
}

// Available says whether the control program is on this node; else the error is
// ErrNoProgram, in words for the user of a job.
func (m *Manager) Available() error {
	if _, err := exec.LookPath(m.cfg.Control); err != nil {
		return fmt.Errorf("%w: %q is not installed here", ErrNoProgram, m.cfg.Control)
	}
	return nil
}

// Keep gives a job to the daemon of its user and card, and has the daemon
// started if need be. gid is that of the job, percent its part of the card's
// multiprocessors. A job that is there already gets the new percent.
func (m *Manager) Keep(jobID uint32, key Key, gid uint32, percent gpu.Share) {
	if m.keep(jobID, key, gid, percent) {
		m.cfg.Changed()
	}
}

// keep also says whether that is new.
func (m *Manager) keep(jobID uint32, key Key, gid uint32, percent gpu.Share) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.jobs[jobID]; old != nil && old.key != key {
		delete(old.jobs, jobID)
		old.wake.Ring()
	}
	s := m.servers[key]
	if s == nil {
		s = m.add(key, gid)
		m.launch(s)
	}
	if have, known := s.jobs[jobID]; known && have.percent == percent {
		return false
	}
	s.jobs[jobID] = jobDemand{percent: percent, tries: s.tries}
	s.skipBackoff = true
	m.jobs[jobID] = s
	s.wake.Ring()
	return true
}

// Wait returns once the daemon of a job answers and allows the job's percent.
// The error is why it could not be started, ErrNoJob, or ctx's.
func (m *Manager) Wait(ctx context.Context, jobID uint32) error {
	for {
		m.mu.Lock()
		s, changed := m.jobs[jobID], m.changed
		if s == nil {
			m.mu.Unlock()
			return ErrNoJob
		}
		demand, up, tries, err := s.jobs[jobID], s.holds(jobID), s.tries, s.err
		m.mu.Unlock()
		switch {
		case up:
			return nil
		case tries > demand.tries && err != nil:
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the MPS daemon: %w", ctx.Err())
		case <-changed:
		}
	}
}

// Release takes a job away. The daemon ends after its last job.
func (m *Manager) Release(jobID uint32) {
	defer m.cfg.Changed() // m.mu is free then
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.jobs[jobID]; s != nil {
		delete(s.jobs, jobID)
		delete(m.jobs, jobID)
		s.wake.Ring()
		m.broadcast()
	}
}

// Serves says whether the job has a daemon that is up and allows its percent.
func (m *Manager) Serves(jobID uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.jobs[jobID]
	return s != nil && s.holds(jobID)
}

// Holds says whether the job is held at its percent by such a daemon. One that is for
// everyone holds nobody.
func (m *Manager) Holds(jobID uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.jobs[jobID]
	return s != nil && !s.key.Everyone && s.holds(jobID)
}

// Problems are the daemons that are wanted and do not run, in words for an
// administrator.
func (m *Manager) Problems() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for _, s := range m.servers {
		if len(s.jobs) > 0 && s.err != nil && !s.up {
			all = append(all, fmt.Sprintf("MPS of %s on %s: %v", s.key.whose(), s.key.Card, s.err))
		}
	}
	slices.Sort(all)
	return all
}

// Settle says that every job of this node was given to Keep: what was left
// running for no job is ended from now on.
func (m *Manager) Settle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled = true
	for _, s := range m.servers {
		s.wake.Ring()
	}
}

// Close stops the watching. Daemons and their clients go on.
func (m *Manager) Close() {
	m.stop()
	m.work.Wait()
}

// add makes a server. m.mu is held.
func (m *Manager) add(key Key, gid uint32) *server {
	if key.Everyone {
		gid = 0
	}
	s := &server{
		m: m, key: key, gid: gid, folder: folderOf(m.cfg.Dir, key), log: m.cfg.Log.With("gpu_uuid", key.Card, "of", key.whose()),
		calls: timeout.New[gpu.UUID](mostUnanswered, mostUnanswered), jobs: map[uint32]jobDemand{}, wake: wakeup.NewBell(),
	}
	m.servers[key] = s
	return s
}

func (m *Manager) launch(s *server) { m.work.Go(func() { s.run(m.ctx) }) }

// broadcast wakes those who wait. m.mu is held.
func (m *Manager) broadcast() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// Environment is what the tasks of a job need to become clients of their
// daemon, as NAME=VALUE. MPS limits each process, so the tasks of a step divide the
// percentage ([wire.PerTask]). CUDA then sees the card as the daemon does: alone.
// So CUDA_VISIBLE_DEVICES names it by UUID; an index of Slurm's would count cards
// that the daemon does not see.
func Environment(dir string, key Key, percent gpu.Share) []string {
	f, visible := folderOf(dir, key), "CUDA_VISIBLE_DEVICES="+string(key.Card)
	if key.Everyone { // its folder of logs is closed to users, and nobody has a percentage
		return []string{f.pipeVariable(), visible}
	}
	return append(f.environment(), fmt.Sprintf("%s%s=%d", PercentVariable, wire.PerTask, percent), visible)
}

// Names of variables that NVIDIA defines.
const (
	PipeVariable    = "CUDA_MPS_PIPE_DIRECTORY"
	LogVariable     = "CUDA_MPS_LOG_DIRECTORY"
	PercentVariable = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
)
