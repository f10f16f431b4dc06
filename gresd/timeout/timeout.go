// SPDX-License-Identifier: Apache-2.0

// Package timeout runs calls that can block forever, and returns after a time limit.
//
// A driver can hang. Reading the memory map, command line or environment of a process can block on
// that process. Reading a file can block on its file system (NFS, FUSE). Go cannot cancel such a
// call. Its thread stays blocked, and its late answer is dropped. Package timeout limits the number
// of these threads.
package timeout

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// Calls are the calls that timed out and have not returned yet, by their subject.
type Calls[Subject cmp.Ordered] struct {
	// Timeout replaces the time limit of [Run] if it is not 0. For tests.
	Timeout time.Duration

	each, all int // limits of blocked calls: for each subject, and in total
	mu        sync.Mutex
	blocked   map[Subject]int
	sum       int
}

// Processes are the calls about processes: one for each process, and 32 for each user. A user cannot
// use up the calls of another user. The zero value is ready.
type Processes struct {
	Timeout time.Duration // 0: a second

	mu    sync.Mutex
	users map[uint32]*Calls[uint32]
}

// blockedPerUser limits the blocked calls about the processes of one user.
const blockedPerUser = 32

// RunForProcess is [Run] for a call about a process of a user.
func RunForProcess[T any](p *Processes, uid, pid uint32, call func() T) (T, bool) {
	p.mu.Lock()
	if p.users == nil {
		p.users = map[uint32]*Calls[uint32]{}
	}
	if p.users[uid] == nil {
		p.users[uid] = New[uint32](1, blockedPerUser)
	}
	c := p.users[uid]
	p.mu.Unlock()
	return Run(c, pid, cmp.Or(p.Timeout, time.Second), call)
}

// List returns the processes with a blocked call, by rising pid.
func (p *Processes) List() (all []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.users {
		all = append(all, c.List()...)
	}
	slices.Sort(all)
	return all
}

// New returns Calls with limits of blocked calls: for each subject, and in total.
func New[Subject cmp.Ordered](each, all int) *Calls[Subject] {
	return &Calls[Subject]{each: each, all: all, blocked: map[Subject]int{}}
}

// Run returns the result of call. It returns false if the result takes longer than limit, or if too
// many earlier calls are blocked.
func Run[Subject cmp.Ordered, T any](c *Calls[Subject], subject Subject, limit time.Duration, call func() T) (answer T, ok bool) {
	c.mu.Lock()
	full := c.blocked[subject] >= c.each || c.sum >= c.all
	c.mu.Unlock()
	if full {
		return answer, false
	}
	done := make(chan T)
	timedOut := make(chan struct{})
	go func() {
		answer := call()
		select {
		case done <- answer:
		case <-timedOut:
			c.add(subject, -1)
		}
	}()
	select {
	case answer = <-done:
		return answer, true
	case <-time.After(cmp.Or(c.Timeout, limit)):
		c.add(subject, 1)
		close(timedOut)
		return answer, false
	}
}

func (c *Calls[Subject]) add(subject Subject, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum += n
	if c.blocked[subject] += n; c.blocked[subject] == 0 {
		delete(c.blocked, subject)
	}
}

// Blocked returns the number of blocked calls about a subject.
func (c *Calls[Subject]) Blocked(subject Subject) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.blocked[subject]
}

// List returns the subjects with a blocked call.
func (c *Calls[Subject]) List() []Subject {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.blocked))
}
