// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Cache returns what the processes of a job say, not older than maxAge; of a job
// that sleeps (see [Store.Watch]), that it has none.
func (s *Store) Cache(jobID uint32, maxAge time.Duration) (libvgpu.CacheView, error) {
	e := s.entry(jobID)
	if e == nil {
		return libvgpu.CacheView{}, ErrNotOpen
	}
	view, err := e.cache(func() string { return filepath.Join(s.Dir(jobID), cacheFile) }, maxAge)
	if err != nil {
		s.cutBack(jobID, e)
	}
	return view, err
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

func (e *entry) cache(path func() string, maxAge time.Duration) (libvgpu.CacheView, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed { // the name may be another job's by now
		return libvgpu.CacheView{}, ErrNotOpen
	}
	if !e.read.IsZero() && time.Since(e.read) < maxAge {
		return e.view, e.err
	}
	if e.reader != nil && e.err == nil && len(e.view.Slots) == 0 && e.asleep() {
		view := e.view
		view.Asleep = true
		return view, nil
	}
	if e.reader == nil {
		if e.reader, e.err = libvgpu.OpenCache(path()); e.err != nil {
			e.reader = nil
			return libvgpu.CacheView{}, e.err
		}
	}
	e.view, e.err = e.reader.Read()
	e.read = time.Now()
	if e.err != nil || len(e.view.Slots) > 0 {
		e.wake()
	}
	return e.view, e.err
}
