// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"context"
	"encoding/binary"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// A job without processes is asleep, and from its beginning: its cache file is not
// read again until somebody opens it, as each process does that wants to compute. A
// node may have thousands of jobs, most of which only live, and several parts of gresd
// look at every job many times a second.

// drowsy is how long a job is looked at after its cache file was opened, or a
// process seen in it: a process opens the file before it claims a slot. A variable
// for tests.
var drowsy = 5 * time.Second

const (
	// A process may have had the file open for long, as the child of one that has
	// ended: one of so many sleepers is looked at, shortly, each roundEvery.
	roundEvery = time.Second
	roundParts = 5
)

// watcher receives events when a cache file is opened, or written with a system call. Its methods need
// Store.mu held, except wait and close.
//
// Users cause these events, as many as they like. Go's poller wakes for each event, also while no
// goroutine waits: a loop that opened and wrote a cache took 70 % of a processor. So the watcher polls
// the inotify instance itself, in a thread that blocks in the kernel.
type watcher struct {
	fd   int // an inotify instance
	stop int // an eventfd that ends the wait
	jobs map[int]uint32
	of   map[uint32]int
}

func newWatcher() (*watcher, error) {
	w := &watcher{jobs: map[int]uint32{}, of: map[uint32]int{}}
	var err error
	if w.fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	if w.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		_ = unix.Close(w.fd)
		return nil, os.NewSyscallError("eventfd", err)
	}
	return w, nil
}

func (w *watcher) close() {
	_, _ = unix.Close(w.fd), unix.Close(w.stop)
}

// read waits for events and reads them. It returns 0 after a write to stop.
func (w *watcher) read(buf []byte) int {
	for {
		fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}, {Fd: int32(w.stop), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil { // interrupted, or without memory
			time.Sleep(shortestRest)
		}
		if fds[1].Revents != 0 {
			return 0
		}
		if n, err := unix.Read(w.fd, buf); err == nil && n > 0 {
			return n
		}
	}
}

// add reports whether the job is watched.
func (w *watcher) add(jobID uint32, path string) bool {
	watch, err := unix.InotifyAddWatch(w.fd, path, unix.IN_OPEN|unix.IN_MODIFY|unix.IN_DONT_FOLLOW)
	if err != nil {
		return false // it never sleeps
	}
	w.jobs[watch], w.of[jobID] = jobID, watch
	return true
}

func (w *watcher) remove(jobID uint32) {
	if watch, known := w.of[jobID]; known {
		delete(w.of, jobID)
		delete(w.jobs, watch)
		_, _ = unix.InotifyRmWatch(w.fd, uint32(watch)) // ended already where the file is gone
	}
}

// Watch lets jobs without processes sleep, until ctx is done, and wakes them.
func (s *Store) Watch(ctx context.Context) {
	w, err := newWatcher()
	if err != nil {
		s.log.Warn("jobs without processes are looked at as often as others", "error", err)
		return
	}
	defer w.close()
	s.mu.Lock()
	s.watcher = w
	for id, e := range s.open {
		e.wake()
		e.watched.Store(w.add(id, s.cacheOf(id)))
		s.cutBack(id, e) // whatever happened before
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watcher = nil
		for _, e := range s.open {
			e.watched.Store(false)
		}
	}()
	var listening sync.WaitGroup
	listening.Go(func() { s.listen(w) })
	// At the moment at which the auditor polls too: an idle gresd wakes once.
	for turn := uint32(0); wakeup.Wait(ctx, wakeup.Next(roundEvery)); turn++ {
		s.round(turn % roundParts)
	}
	_, _ = unix.Write(w.stop, binary.NativeEndian.AppendUint64(nil, 1))
	listening.Wait()
}

// listen wakes the jobs whose cache file is opened, until a write to stop.
func (s *Store) listen(w *watcher) {
	buf := make([]byte, 64<<10)
	for n := w.read(buf); n > 0; n = w.read(buf) {
		began, woken := time.Now(), false
		s.mu.Lock()
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			event := (*unix.InotifyEvent)(unsafe.Pointer(&buf[at]))
			at += unix.SizeofInotifyEvent + int(event.Len)
			switch {
			case event.Mask&unix.IN_Q_OVERFLOW != 0:
				for id, e := range s.open {
					woken = e.wake() || woken
					s.cutBack(id, e)
				}
			case event.Mask&(unix.IN_OPEN|unix.IN_MODIFY) != 0:
				id := w.jobs[int(event.Wd)]
				e := s.open[id]
				if e != nil {
					woken = e.wake() || woken
				}
				if e != nil && event.Mask&unix.IN_MODIFY != 0 {
					s.cutBack(id, e)
				}
			}
		}
		s.mu.Unlock()
		if woken {
			s.changed()
		}
		// Users make these events, as many as they like.
		time.Sleep(max(shortestRest, min(wakeup.Rest(time.Since(began)), longestRest)))
	}
}

// A job is not left asleep for long.
const (
	shortestRest = 10 * time.Millisecond // to be woken costs as much as a look
	longestRest  = 20 * time.Millisecond
)

// round wakes those that sleep although something has happened, of one part.
func (s *Store) round(part uint32) {
	var sleepers []*entry
	s.mu.Lock()
	for id, e := range s.open {
		if id%roundParts == part && e.asleep() {
			sleepers = append(sleepers, e)
		}
	}
	s.mu.Unlock()
	woken := false
	for _, e := range sleepers {
		e.cache.mu.Lock()
		if e.cache.file != nil && e.cache.file.Claimed() {
			woken = e.wake() || woken
		}
		e.cache.mu.Unlock()
	}
	if woken {
		s.changed()
	}
}

// epoch makes times short enough for an atomic number.
var epoch = time.Now()

// wake keeps a job awake for a while, and reports whether it was asleep.
func (e *entry) wake() bool {
	slept := e.asleep()
	e.awake.Store(int64(time.Since(epoch) + drowsy))
	return slept
}

// asleep says whether the job is to be left alone.
func (e *entry) asleep() bool {
	return e.watched.Load() && int64(time.Since(epoch)) > e.awake.Load()
}
