// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Cache returns what the processes of a job say, not older than maxAge; of a job
// that sleeps (see [Store.Watch]), that it has none.
func (s *Store) Cache(jobID uint32, maxAge time.Duration) (libvgpu.CacheView, error) {
	e := s.entry(jobID)
	if e == nil {
		return libvgpu.CacheView{}, ErrNotOpen
	}
	view, err := e.look(s.cacheOf(jobID), maxAge)
	if err != nil {
		s.cutBack(jobID, e)
	}
	return view, err
}

const (
	// endedWait is how long a question about ended processes may take: those who ask
	// wait for it little longer (libvgpu/memory/ended.c).
	endedWait = 150 * time.Millisecond
	// mostEnded fit into the answer that libvgpu has room for.
	mostEnded = 128
)

// Ended returns the owners of slots of a job whose processes have ended for certain,
// those that hold the most memory first. The kernel is asked about all now, also where
// the job sleeps, but a question that follows another at once gets the same answer:
// users ask, and all questions about a job together take a tenth of a core.
func (s *Store) Ended(jobID uint32) ([]uint64, error) {
	e := s.entry(jobID)
	if e == nil {
		return nil, ErrNotOpen
	}
	return e.ended.get(s.cacheOf(jobID))
}

// ended is what was last said of the ended processes of a job. It has a reader of its
// own, so that nobody else waits for a question.
type ended struct {
	reader
	owners []uint64
	err    error
	until  time.Time // the answer stands
}

func (e *ended) get(path string) ([]uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	began := time.Now()
	if !e.closed && began.Before(e.until) {
		return e.owners, e.err
	}
	if err := e.open(path); err != nil {
		return nil, err
	}
	var took time.Duration
	e.owners, took, e.err = e.file.Ended(mostEnded, began.Add(endedWait))
	e.until = time.Now().Add(wakeup.Rest(took))
	return e.owners, e.err
}

// reader reads a cache file, for one goroutine at a time.
type reader struct {
	mu     sync.Mutex
	closed bool
	file   *libvgpu.CacheReader // nil: not opened yet
}

// open opens the file, if that was not done yet. r.mu is held, or nobody else knows r yet.
func (r *reader) open(path string) (err error) {
	if r.closed { // the name may be another job's by now
		return ErrNotOpen
	}
	if r.file == nil {
		r.file, err = libvgpu.OpenCache(path)
	}
	return err
}

func (r *reader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	if r.file != nil {
		_ = r.file.Close()
		r.file = nil
	}
}

// OpenCache opens the cache file of a job for reading and writing. It must not
// be mapped by this process: its owner can cut it.
func (s *Store) OpenCache(jobID uint32) (*os.File, error) {
	// O_NONBLOCK: a root process must not be made to wait by a file's owner.
	f, err := os.OpenFile(filepath.Join(s.Dir(jobID), cacheFile), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open cache of job %d: %w", jobID, err)
	}
	return f, nil
}

func (e *entry) look(path string, maxAge time.Duration) (libvgpu.CacheView, error) {
	e.cache.mu.Lock()
	defer e.cache.mu.Unlock()
	if !e.cache.closed && !e.read.IsZero() && time.Since(e.read) < maxAge {
		return e.view, e.err
	}
	// One look at least: who opened the file before anybody listened may have a slot.
	if e.cache.file != nil && !e.read.IsZero() && e.err == nil && len(e.view.Slots) == 0 && e.asleep() {
		view := e.view
		view.Asleep = true
		return view, nil
	}
	if err := e.cache.open(path); err != nil {
		e.err = err
		return libvgpu.CacheView{}, err
	}
	e.view, e.err = e.cache.file.Read()
	e.read = time.Now()
	if e.err != nil || len(e.view.Slots) > 0 {
		e.wake()
	}
	return e.view, e.err
}

// A cache file belongs to its job's user, who can enlarge it, and run_dir is memory that the whole
// node shares. Programs only map the file. A call that writes to it or allocates space wakes
// cutBack.

// slackBytes is the limit of allocated bytes beyond the file's size. Files have whole pages, which
// are large on some filesystems.
const slackBytes = 2 << 20

// cutPause bounds how often a file is cut.
const cutPause = time.Millisecond

// cutBack gives the cache file of a job its size again. It works in the background, because freeing
// gigabytes takes time.
func (s *Store) cutBack(jobID uint32, e *entry) {
	if e.written.Add(1) > 1 {
		return // the running goroutine will check once more
	}
	go func() {
		for seen := int32(1); ; seen = e.written.Load() {
			if grown, err := s.cut(jobID); grown && !e.toldGrown.Swap(true) {
				s.log.Warn("a job made its cache file larger: it is cut back", "job_id", jobID, "error", err)
				_, _ = s.Tell(jobID, fmt.Sprintf("vgpu: cache: job %d: its cache file was made larger than its %d bytes: "+
					"it is cut back whenever that happens; no program of a job has to write it", jobID, libvgpu.CacheSize))
			}
			if e.written.CompareAndSwap(seen, 0) {
				return
			}
			time.Sleep(cutPause)
		}
	}()
}

// cut reports whether the file was too large.
func (s *Store) cut(jobID uint32) (grown bool, err error) {
	f, err := s.OpenCache(jobID)
	if err != nil {
		return false, err // gone with its job
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size <= libvgpu.CacheSize && st.Blocks*512 <= libvgpu.CacheSize+slackBytes {
		return false, nil
	}
	// Also frees what was allocated beyond an end that did not move.
	return true, f.Truncate(libvgpu.CacheSize)
}
