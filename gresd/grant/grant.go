// SPDX-License-Identifier: Apache-2.0

// Package grant makes the files through which a job sees its share, and keeps
// the grants of living jobs mapped so that their schedule can change.
//
// A job's folder appears complete, by one rename. Only gresd's user may write
// in it: the job's user may read the grant and write into the cache file, but
// cannot rename, replace or remove anything, so no path below the jobs folder
// can be turned into a link behind gresd's back.
package grant

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// ErrNotOpen says that the store has no grant of that job.
var ErrNotOpen = errors.New("no grant of this job is open")

// Store is all job folders of the node. It is safe for concurrent use; calls
// that make or remove the folder of one and the same job must not overlap.
type Store struct {
	layout Layout
	log    *slog.Logger

	saidACL  atomic.Bool
	messages sync.Mutex // one line after the other, and none while a folder is removed

	mu       sync.Mutex
	open     map[uint32]*entry
	jobs     map[string]int // of open, on each card, by UUID
	watcher  *watcher       // nil: jobs do not sleep
	onChange func()
}

// entry is one open grant.
type entry struct {
	grant *libvgpu.Grant
	spec  libvgpu.GrantSpec // of the record: the file's cores follow the schedule; under Store.mu

	watched atomic.Bool  // it is told when the cache file is opened
	awake   atomic.Int64 // until when the cache file is read; since epoch

	written   atomic.Int32 // how often since cutBack last looked
	toldGrown atomic.Bool

	ended ended

	cache reader // of what follows, which its lock guards
	view  libvgpu.CacheView
	err   error
	read  time.Time
}

// NewStore makes the run folder and its fixed files. No job is open yet.
func NewStore(layout Layout, log *slog.Logger) (*Store, error) {
	layout.SelfDir, layout.HostPreload = cmp.Or(layout.SelfDir, SelfDir), cmp.Or(layout.HostPreload, HostPreload)
	if err := layout.prepare(); err != nil {
		return nil, err
	}
	return &Store{layout: layout, log: log, open: map[uint32]*entry{}, jobs: map[string]int{}}, nil
}

// OnChange sets what is called after a grant was opened or closed. It must be
// set before the store is used.
func (s *Store) OnChange(f func()) { s.onChange = f }

func (s *Store) changed() {
	if s.onChange != nil {
		s.onChange()
	}
}

// Dir is the folder of a job.
func (s *Store) Dir(jobID uint32) string { return filepath.Join(s.layout.Jobs, fmt.Sprint(jobID)) }

func (s *Store) cacheOf(jobID uint32) string { return filepath.Join(s.Dir(jobID), cacheFile) }

// ReadFile returns what the grant file of a job says; it need not be open.
func (s *Store) ReadFile(jobID uint32) (libvgpu.GrantSpec, error) {
	spec, _, err := libvgpu.ReadGrant(filepath.Join(s.Dir(jobID), grantFile))
	return spec, err
}

// Has says whether the grant of a job is open and its file is in place.
func (s *Store) Has(jobID uint32) bool {
	if s.entry(jobID) == nil {
		return false
	}
	_, err := os.Lstat(filepath.Join(s.Dir(jobID), grantFile))
	return err == nil
}

// Revoke marks an open grant as that of a job that has ended. Its limits stay.
func (s *Store) Revoke(jobID uint32) {
	if e := s.entry(jobID); e != nil {
		e.grant.Revoke()
	}
}

// Remove marks the grant as revoked, closes it and removes the job's folder.
// It reports whether there was a folder.
func (s *Store) Remove(jobID uint32) (had bool, err error) {
	s.mu.Lock()
	e := s.open[jobID]
	delete(s.open, jobID)
	s.count(e, -1)
	if s.watcher != nil {
		s.watcher.remove(jobID)
	}
	s.mu.Unlock()
	if e != nil {
		e.grant.Revoke()
		e.close()
		s.changed()
	}
	had, err = s.removeDir(fmt.Sprint(jobID))
	if err != nil {
		return had, fmt.Errorf("remove folder of job %d: %w", jobID, err)
	}
	return had, nil
}

// removeDir removes one entry of the jobs folder. It works below an open
// folder and follows no link.
func (s *Store) removeDir(name string) (bool, error) {
	root, err := os.OpenRoot(s.layout.Jobs)
	if err != nil {
		return false, err
	}
	defer root.Close()
	// A line that is told meanwhile would be a file in a folder that is empty already.
	s.messages.Lock()
	defer s.messages.Unlock()
	if _, err := root.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return true, root.RemoveAll(name)
}

// put opens a job. A new one sleeps from the start, where it is heard when its cache
// file is opened; one that was there may have processes that had it open before.
func (s *Store) put(jobID uint32, g *libvgpu.Grant, spec libvgpu.GrantSpec, isNew bool) {
	e := &entry{grant: g, spec: spec}
	// Before anybody listens, who would hear this.
	_ = e.cache.open(s.cacheOf(jobID)) // who reads it tries again
	if !isNew {
		e.wake()
	}
	s.mu.Lock()
	old := s.open[jobID]
	s.open[jobID] = e
	s.count(old, -1)
	s.count(e, 1)
	if s.watcher != nil {
		s.watcher.remove(jobID)
		e.watched.Store(s.watcher.add(jobID, s.cacheOf(jobID)))
	}
	s.mu.Unlock()
	if old != nil {
		old.close()
	}
	s.changed()
}

// count keeps the number of jobs of each card. e may be nil. s.mu is held.
func (s *Store) count(e *entry, by int) {
	if e == nil {
		return
	}
	for _, card := range e.spec.Cards {
		if s.jobs[card.UUID] += by; s.jobs[card.UUID] == 0 {
			delete(s.jobs, card.UUID)
		}
	}
}

// Jobs returns how many open grants each card has, by UUID; cards without are absent.
func (s *Store) Jobs() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.jobs)
}

// Close unmaps all grants. Files and limits stay in force.
func (s *Store) Close() {
	s.mu.Lock()
	all := s.open
	s.open, s.jobs = map[uint32]*entry{}, map[string]int{}
	s.mu.Unlock()
	for _, e := range all {
		e.close()
	}
}

// jobOf returns the job that a folder is named after.
func jobOf(name string) (jobID uint32, isJob bool) {
	id, err := strconv.ParseUint(name, 10, 32)
	return uint32(id), err == nil && id != 0 && strconv.FormatUint(id, 10) == name
}

// Sweep returns the job folders that exist, by rising id. It removes all else from the folder of jobs,
// as a kill in the middle of Create leaves behind. lock keeps others from making the
// folder of a job meanwhile.
func (s *Store) Sweep(lock func(jobID uint32) (unlock func())) (jobs []uint32, err error) {
	entries, err := os.ReadDir(s.layout.Jobs)
	errs := []error{err}
	for _, e := range entries {
		if id, isJob := jobOf(e.Name()); isJob && e.IsDir() {
			jobs = append(jobs, id)
			continue
		}
		unlock := func() {}
		if id, isNew := jobOf(strings.TrimPrefix(e.Name(), newPrefix)); isNew {
			unlock = lock(id)
		}
		_, err := s.removeDir(e.Name())
		unlock()
		errs = append(errs, err)
	}
	slices.Sort(jobs)
	return jobs, errors.Join(errs...)
}

// Open are the jobs whose grant is open, by rising id.
func (s *Store) Open() []uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.open))
}

func (s *Store) entry(jobID uint32) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[jobID]
}

// Spec returns what an open grant gives. The caller must not change its cards.
func (s *Store) Spec(jobID uint32) (libvgpu.GrantSpec, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.open[jobID]
	if e == nil {
		return libvgpu.GrantSpec{}, false
	}
	return e.spec, true
}

// SetCores changes the compute share that an open grant gives of each card. The
// schedule follows with the arbiter's next look, which comes at once.
func (s *Store) SetCores(jobID uint32, cores gpu.Share) {
	s.mu.Lock()
	if e := s.open[jobID]; e != nil {
		cards := slices.Clone(e.spec.Cards) // others hold the old ones
		for i := range cards {
			cards[i].Cores = uint32(cores)
		}
		e.spec.Cards = cards
	}
	s.mu.Unlock()
	s.changed()
}

// SetSchedule changes the schedule of one card of a job, the card being its
// place in the grant. It reports whether anything changed.
func (s *Store) SetSchedule(jobID uint32, card int, sched libvgpu.Schedule) bool {
	e := s.entry(jobID)
	return e != nil && e.grant.SetSchedule(card, sched)
}

// SetOutside publishes what a card counts for a job beyond what its processes
// announce.
func (s *Store) SetOutside(jobID uint32, card int, bytes int64) bool {
	e := s.entry(jobID)
	return e != nil && e.grant.SetOutside(card, bytes)
}

// Outside returns what SetOutside published last; 0 for an unknown job or card.
func (s *Store) Outside(jobID uint32, card int) int64 {
	e := s.entry(jobID)
	if e == nil {
		return 0
	}
	return e.grant.Outside(card)
}

// AddCredit adds a correction to the budget of a job on a card.
func (s *Store) AddCredit(jobID uint32, card int, d time.Duration) {
	if e := s.entry(jobID); e != nil {
		e.grant.AddCredit(card, d)
	}
}

// SetGaps publishes the idle part of the gaps in a job's batches (libvgpu.Grant.SetGaps).
func (s *Store) SetGaps(jobID uint32, card int, idle float64, valid time.Duration) {
	if e := s.entry(jobID); e != nil {
		e.grant.SetGaps(card, idle, valid)
	}
}

// Schedule returns the schedule in force; zero for an unknown job or card.
func (s *Store) Schedule(jobID uint32, card int) libvgpu.Schedule {
	e := s.entry(jobID)
	if e == nil {
		return libvgpu.Schedule{}
	}
	return e.grant.Schedule(card)
}

func (e *entry) close() {
	e.cache.close()
	e.ended.close()
	_ = e.grant.Close()
}
