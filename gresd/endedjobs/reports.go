// SPDX-License-Identifier: Apache-2.0

// Package past keeps reports of jobs that have ended, for some time and up to some number. They
// are for people who look: what is lost in a crash is lost.
package past

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

const (
	// Most is how many reports are kept, and Longest for how long.
	Most    = 1000
	Longest = 30 * 24 * time.Hour
	// mostBytes bounds what is read of one.
	mostBytes = 1 << 20
)

// ErrNone says that there is no report of a job.
var ErrNone = errors.New("no report of that job is kept")

// Store is a folder of reports, one file a job. It is safe for concurrent use; a nil store keeps
// nothing.
type Store struct {
	dir string

	mu   sync.Mutex
	kept []entry // the oldest first
}

type entry struct {
	job uint32
	at  time.Time
}

// Open makes the folder, which root alone may read, and finds what it has.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("reports of jobs: %w", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reports of jobs: %w", err)
	}
	s := &Store{dir: dir}
	for _, f := range files {
		name, isReport := strings.CutSuffix(f.Name(), ".json")
		job, err := strconv.ParseUint(name, 10, 32)
		info, infoErr := f.Info()
		if !isReport || err != nil || infoErr != nil {
			continue
		}
		s.kept = append(s.kept, entry{uint32(job), info.ModTime()})
	}
	slices.SortFunc(s.kept, func(a, b entry) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.job, b.job)) })
	s.forget(time.Now())
	return s, nil
}

func (s *Store) path(job uint32) string { return filepath.Join(s.dir, fmt.Sprintf("%d.json", job)) }

// Keep keeps a report, in the place of an earlier run of the job.
func (s *Store) Keep(r wire.Report) error {
	if s == nil {
		return nil
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("report of job %d: %w", r.Job.JobID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	path := s.path(r.Job.JobID)
	if err := atomicfile.Replace(path, text, 0o600); err != nil {
		return fmt.Errorf("report of job %d: %w", r.Job.JobID, err)
	}
	now := time.Now()
	s.kept = slices.DeleteFunc(s.kept, func(e entry) bool { return e.job == r.Job.JobID })
	s.kept = append(s.kept, entry{r.Job.JobID, now})
	s.forget(now)
	return nil
}

// forget removes what is too old or too much. s.mu is held.
func (s *Store) forget(now time.Time) {
	s.kept = slices.DeleteFunc(s.kept, func(e entry) bool {
		old := now.Sub(e.at) > Longest
		if old {
			_ = os.Remove(s.path(e.job)) // tried again when gresd starts
		}
		return old
	})
	for len(s.kept) > Most {
		_ = os.Remove(s.path(s.kept[0].job))
		s.kept = s.kept[1:]
	}
}

// Of returns the report of a job. Errors: ErrNone.
func (s *Store) Of(job uint32) (r wire.Report, err error) {
	if s == nil {
		return r, ErrNone
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(time.Now())
	path := s.path(job)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, ErrNone
	}
	if err == nil && info.Size() > mostBytes {
		err = errors.New("file too large")
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && r.Job.JobID != job {
		err = errors.New("it is of another job")
	}
	if err != nil {
		return wire.Report{}, fmt.Errorf("report of job %d: %w", job, err)
	}
	return r, nil
}
