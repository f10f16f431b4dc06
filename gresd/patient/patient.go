// SPDX-License-Identifier: Apache-2.0

// Package patient asks about processes what their users can let wait for ever.
//
// Some questions about a process wait for what its user has in hand: its memory map, command line and
// environment for whoever holds its memory (a page of a file that does not come), a file for its file
// system (NFS, FUSE). Who asks waits a moment, and leaves that process out until the answer comes.
package patient

import (
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	patience = time.Second
	// mostStuck are the questions that may wait at once, each with a thread of gresd.
	mostStuck = 32
)

// Stuck are the questions that were given up and have no answer yet, by process.
type Stuck struct {
	Patience time.Duration // for one answer

	mu    sync.Mutex
	byPID map[uint32]int
	all   int
}

// New returns one where nothing waits.
func New() *Stuck { return &Stuck{Patience: patience, byPID: map[uint32]int{}} }

// Within returns what ask does; false where there is no answer in time, or one about the same process
// is still waited for.
func Within[T any](s *Stuck, pid uint32, ask func() T) (answer T, ok bool) {
	s.mu.Lock()
	given := s.byPID[pid] == 0 && s.all < mostStuck
	s.mu.Unlock()
	if !given {
		return answer, false
	}
	done := make(chan T)
	givenUp := make(chan struct{})
	go func() {
		answer := ask()
		select {
		case done <- answer:
		case <-givenUp:
			s.add(pid, -1)
		}
	}()
	late := time.NewTimer(s.Patience)
	defer late.Stop()
	select {
	case answer = <-done:
		return answer, true
	case <-late.C:
		s.add(pid, 1)
		close(givenUp)
		return answer, false
	}
}

func (s *Stuck) add(pid uint32, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all += n
	if s.byPID[pid] += n; s.byPID[pid] == 0 {
		delete(s.byPID, pid)
	}
}

// Processes are those that cannot be looked at now.
func (s *Stuck) Processes() []uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.byPID))
}
