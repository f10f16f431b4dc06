// SPDX-License-Identifier: Apache-2.0

// Package endedjobs keeps the results of jobs. A [Store] has reports of ended jobs on disk. A [Writer]
// writes the use of a job into its record in Slurm's accounting.
package endedjobs

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
	// MaxReports limits the number of reports, and KeepReportsFor their age.
	MaxReports     = 1000
	KeepReportsFor = 30 * 24 * time.Hour
	// maxReportBytes limits the size of a report that is read.
	maxReportBytes = 1 << 20
)

// ErrNone means that the Store has no report of a job.
var ErrNone = errors.New("no report of that job is kept")

// Store is a folder of reports, one file for each job. A crash of the host can lose a report. A Store
// is safe for concurrent use. A nil Store keeps nothing.
type Store struct {
	dir string

	mu   sync.Mutex
	kept []storedReport // the oldest first
}

type storedReport struct {
	job uint32
	at  time.Time
}

// Open makes the folder, which only root can read, and lists its reports.
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
		s.kept = append(s.kept, storedReport{uint32(job), info.ModTime()})
	}
	slices.SortFunc(s.kept, func(a, b storedReport) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.job, b.job)) })
	s.forget(time.Now())
	return s, nil
}

func (s *Store) path(job uint32) string { return filepath.Join(s.dir, fmt.Sprintf("%d.json", job)) }

// Keep writes a report, and replaces that of an earlier run of the job.
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
	s.kept = slices.DeleteFunc(s.kept, func(e storedReport) bool { return e.job == r.Job.JobID })
	s.kept = append(s.kept, storedReport{r.Job.JobID, now})
	s.forget(now)
	return nil
}

// forget removes reports that are too old or too many. Call it with s.mu locked.
func (s *Store) forget(now time.Time) {
	s.kept = slices.DeleteFunc(s.kept, func(e storedReport) bool {
		old := now.Sub(e.at) > KeepReportsFor
		if old {
			_ = os.Remove(s.path(e.job)) // tried again when gresd starts
		}
		return old
	})
	for len(s.kept) > MaxReports {
		_ = os.Remove(s.path(s.kept[0].job))
		s.kept = s.kept[1:]
	}
}

// Of returns the report of a job. Errors: [ErrNone].
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
	if err == nil && info.Size() > maxReportBytes {
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
