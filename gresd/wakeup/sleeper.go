// SPDX-License-Identifier: Apache-2.0

package wakeup

import (
	"sync/atomic"
	"time"
)

// Sleeper lets one goroutine sleep until a time or until [Sleeper.Wake]. The zero value is ready.
type Sleeper struct {
	bell  atomic.Pointer[Bell]
	timer *time.Timer // of the goroutine that sleeps
}

func (s *Sleeper) ring() Bell {
	if b := s.bell.Load(); b != nil {
		return *b
	}
	b := NewBell()
	s.bell.CompareAndSwap(nil, &b)
	return *s.bell.Load()
}

// Sleep returns when d has passed, or when Wake was called since the last return. woken says which.
// It is for one goroutine.
func (s *Sleeper) Sleep(d time.Duration) (woken bool) {
	if s.timer == nil {
		s.timer = time.NewTimer(d)
	} else {
		s.timer.Reset(d)
	}
	select {
	case <-s.ring():
		return true
	case <-s.timer.C:
		return false
	}
}

// Wake ends the sleep, or the next one at once. It never blocks.
func (s *Sleeper) Wake() { s.ring().Ring() }
