// SPDX-License-Identifier: Apache-2.0

package server

import "sync"

// jobLocks order the work on each job. The zero value is ready.
type jobLocks struct {
	mu    sync.Mutex
	byJob map[uint32]*jobLock
	asked map[uint32]bool // jobs whose Prolog or Epilog came while the ledger was being rebuilt
}

type jobLock struct {
	sync.Mutex
	users int // those that hold it or wait
}

func (l *jobLocks) lock(jobID uint32) (unlock func()) {
	l.mu.Lock()
	if l.byJob == nil {
		l.byJob = map[uint32]*jobLock{}
	}
	own := l.byJob[jobID]
	if own == nil {
		own = &jobLock{}
		l.byJob[jobID] = own
	}
	own.users++
	l.mu.Unlock()
	own.Lock()
	return func() {
		own.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(l.byJob, jobID)
		}
	}
}

// lockJob is for work on the record and the folder of one job. Work on other jobs
// goes on meanwhile, and shares its writes to the disk.
func (s *Server) lockJob(jobID uint32) (unlock func()) {
	unlock = s.lockQuietly(jobID)
	if s.lost {
		s.jobLocks.mu.Lock()
		defer s.jobLocks.mu.Unlock()
		if s.jobLocks.asked == nil {
			s.jobLocks.asked = map[uint32]bool{}
		}
		s.jobLocks.asked[jobID] = true
	}
	return unlock
}

// lockQuietly is lockJob for gresd's own wishes.
func (s *Server) lockQuietly(jobID uint32) (unlock func()) {
	s.mu.RLock()
	own := s.jobLocks.lock(jobID)
	return func() {
		own()
		s.mu.RUnlock()
	}
}

// wasAsked says whether this gresd has heard of a job itself. Its lock is held.
func (l *jobLocks) wasAsked(jobID uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked[jobID]
}

func (l *jobLocks) forgetAsked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = nil
}
