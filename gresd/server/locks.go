// SPDX-License-Identifier: Apache-2.0

package server

import "sync"

// jobLocks order the work on each job. The zero value is ready.
type jobLocks struct {
	mu    sync.Mutex
	byJob map[uint32]*jobLock
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
// goes on meanwhile, and shares its writes to the disk; what looks at all jobs
// waits.
func (s *Server) lockJob(jobID uint32) (unlock func()) {
	s.mu.RLock()
	own := s.jobLocks.lock(jobID)
	return func() {
		own()
		s.mu.RUnlock()
	}
}
