// SPDX-License-Identifier: Apache-2.0

// Package patient asks what may let who asks wait for ever, and waits a moment.
//
// A driver may hang. Some questions about a process wait for what its user has in hand: its memory
// map, command line and environment for whoever holds its memory (a page of a file that does not
// come), a file for its file system (NFS, FUSE). Such a call cannot be taken back: its thread waits
// on, and its answer is dropped.
package patient

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// Stuck are the questions that were given up and have no answer yet, by what they are about.
type Stuck[About cmp.Ordered] struct {
	// Patience is how long an answer may take; 0: as long as who asks says. For tests.
	Patience time.Duration

	each, all int // the most that may wait, each with a thread of gresd
	mu        sync.Mutex
	waiting   map[About]int
	sum       int
}

// Processes has the questions about processes, one about each: one user's take none of the patience
// that there is for another's. The zero value is ready.
type Processes struct {
	Patience time.Duration // 0: a second

	mu    sync.Mutex
	users map[uint32]*Stuck[uint32]
}

// mostProcesses are those of a user about which a question may wait at once.
const mostProcesses = 32

// WithinProcess is [WithinTime] for a process of a user.
func WithinProcess[T any](p *Processes, uid, pid uint32, ask func() T) (T, bool) {
	p.mu.Lock()
	if p.users == nil {
		p.users = map[uint32]*Stuck[uint32]{}
	}
	if p.users[uid] == nil {
		p.users[uid] = Of[uint32](1, mostProcesses)
	}
	s := p.users[uid]
	p.mu.Unlock()
	return WithinTime(s, pid, cmp.Or(p.Patience, time.Second), ask)
}

// List is what cannot be asked about now.
func (p *Processes) List() (all []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.users {
		all = append(all, s.List()...)
	}
	slices.Sort(all)
	return all
}

// Of returns one where nothing waits: at most so many questions about each, and in all.
func Of[About cmp.Ordered](each, all int) *Stuck[About] {
	return &Stuck[About]{each: each, all: all, waiting: map[About]int{}}
}

// WithinTime returns what ask does; false where there is no answer in time, or too many earlier
// questions wait for theirs.
func WithinTime[About cmp.Ordered, T any](s *Stuck[About], about About, wait time.Duration, ask func() T) (answer T, ok bool) {
	s.mu.Lock()
	given := s.waiting[about] < s.each && s.sum < s.all
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
			s.add(about, -1)
		}
	}()
	late := time.NewTimer(cmp.Or(s.Patience, wait))
	defer late.Stop()
	select {
	case answer = <-done:
		return answer, true
	case <-late.C:
		s.add(about, 1)
		close(givenUp)
		return answer, false
	}
}

func (s *Stuck[About]) add(about About, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum += n
	if s.waiting[about] += n; s.waiting[about] == 0 {
		delete(s.waiting, about)
	}
}

// Waiting is how many questions about something wait.
func (s *Stuck[About]) Waiting(about About) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting[about]
}

// List is what cannot be asked about now.
func (s *Stuck[About]) List() []About {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.waiting))
}
