// SPDX-License-Identifier: Apache-2.0

// Package endedjobs keeps the results of jobs. A [Store] has reports of ended jobs on disk. A [Writer]
// writes the use of a job into its record in Slurm's accounting.
package endedjobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Used is the use of one run of a job on this node. The Writer writes it as one word into a comment:
//
//	vgpu_used(node=gpu01,mem_mib=18432,gpu_s=812.4)
//
// slurmctld does not change the record of an ended job, and the Epilog must not wait for a database.
// So the Writer sends the word to slurmdbd later.
type Used struct {
	JobID uint32
	Node  string // as Slurm names it
	Conf  string // slurm.conf of that node's slurmd; "" for Slurm's default

	Memory gpu.Bytes     // the most in use on each card, summed
	GPU    time.Duration // of all cards
}

// word returns the word for the comment in lower case, because sacctmgr converts to lower case.
func (u Used) word() string {
	return fmt.Sprintf("vgpu_used(node=%s,mem_mib=%d,gpu_s=%.1f)",
		strings.ToLower(u.Node), (u.Memory+gpu.MiB-1)/gpu.MiB, u.GPU.Seconds())
}

var words = regexp.MustCompile(`\s*\bvgpu_used\(node=([^,()]*),[^()]*\)`)

// with appends the word to the text and removes an older word of the same node. Each node of the job
// writes its own word.
func (u Used) with(text string) string {
	text = words.ReplaceAllStringFunc(text, func(word string) string {
		if words.FindStringSubmatch(word)[1] == strings.ToLower(u.Node) {
			return ""
		}
		return word
	})
	return strings.TrimSpace(strings.TrimSpace(text) + " " + u.word())
}

// Books is Slurm's accounting, as [slurm.Client] has it.
type Books interface {
	Account(ctx context.Context, jobID uint32, field string) (slurm.Account, error)
	SetAccount(ctx context.Context, name, field, text string) error
}

const (
	// mostWaiting limits the queue while slurmdbd does not answer.
	mostWaiting = 10000
	// firstWait is the time that slurmctld needs to report the end of a job to slurmdbd. The waits
	// double up to lastWait.
	firstWait = 2 * time.Second
	lastWait  = 5 * time.Minute
	// giveUp is the time after which a word is dropped.
	giveUp = 24 * time.Hour
)

// Writer writes to the accounting. If gresd ends, pending words are lost.
type Writer struct {
	field string
	books func(conf string) Books
	log   *slog.Logger
	wake  wakeup.Bell

	mu      sync.Mutex
	waiting map[runOnNode]*pendingUse
	dropped bool
}

type runOnNode struct {
	job  uint32
	node string
}

type pendingUse struct {
	Used
	since, next time.Time
	wait        time.Duration
	name        string // that slurmdbd had for the job when it was first seen to be over
}

// NewWriter returns a Writer into that field ([slurm.AdminComment], …).
func NewWriter(field string, books func(conf string) Books, log *slog.Logger) *Writer {
	return &Writer{field: field, books: books, log: log, wake: wakeup.NewBell(), waiting: map[runOnNode]*pendingUse{}}
}

// Note queues the use of a job, without waiting. A nil Writer ignores it.
func (w *Writer) Note(u Used) {
	if w == nil {
		return
	}
	run, now := runOnNode{u.JobID, u.Node}, time.Now()
	w.mu.Lock()
	_, known := w.waiting[run] // an earlier run of the job, which no longer counts
	full := !known && len(w.waiting) >= mostWaiting
	if !full {
		w.waiting[run] = &pendingUse{Used: u, since: now, next: now, wait: firstWait}
	}
	say := full && !w.dropped
	w.dropped = full
	w.mu.Unlock()
	if say {
		w.log.Warn("usage of jobs is lost: Slurm's accounting does not take it", "waiting", mostWaiting)
	}
	w.wake.Ring()
}

// Run writes until ctx is done. It does nothing for a nil writer.
func (w *Writer) Run(ctx context.Context) {
	if w == nil {
		return
	}
	defer context.AfterFunc(ctx, w.wake.Ring)()
	for ctx.Err() == nil {
		w.wake.Sleep(w.pass(ctx))
	}
}

// pass writes all words that are due, and returns the time until the next one.
func (w *Writer) pass(ctx context.Context) time.Duration {
	for {
		first, wait := w.first()
		if wait > 0 || ctx.Err() != nil {
			return wait
		}
		done, err := w.write(ctx, first)
		w.finish(first, done, err)
	}
}

// first returns the entry that is due first, and the time until then.
func (w *Writer) first() (first *pendingUse, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.waiting {
		if first == nil || e.next.Before(first.next) {
			first = e
		}
	}
	if first == nil {
		return nil, lastWait
	}
	return first, min(lastWait, time.Until(first.next))
}

// finish removes an entry, or sets the time of its next try. This time is random, because two nodes of
// a job must not write at the same time again.
func (w *Writer) finish(e *pendingUse, done bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	run := runOnNode{e.JobID, e.Node}
	switch {
	case w.waiting[run] != e: // the job has run again
	case done:
		delete(w.waiting, run)
	case err != nil && time.Since(e.since) > giveUp:
		delete(w.waiting, run)
		w.log.Warn("usage of a job is lost", "job_id", e.JobID, "error", err)
	default:
		w.log.Debug("usage of a job is not written yet", "job_id", e.JobID, "error", err)
		e.next = time.Now().Add(e.wait/2 + rand.N(e.wait))
		e.wait = min(2*e.wait, lastWait)
	}
}

var (
	errNotOver = errors.New("slurmdbd does not know yet that the job has ended")
	errUnnamed = errors.New("slurmdbd may hear yet that the job is a task of an array")
)

// write writes one word. It is done when a later read finds the word: two nodes of a job can write at
// the same time, and then only one of the words stays.
func (w *Writer) write(ctx context.Context, e *pendingUse) (done bool, err error) {
	books := w.books(e.Conf)
	had, err := books.Account(ctx, e.JobID, w.field)
	if err != nil {
		return false, err
	}
	if strings.Contains(had.Text, e.word()) {
		return true, nil
	}
	if !had.Over {
		return false, errNotOver
	}
	// One task of an array has the number of the whole array: a write would change all tasks.
	if e.name != had.Name && !strings.Contains(had.Name, "_") {
		e.name = had.Name
		return false, errUnnamed
	}
	return false, books.SetAccount(ctx, had.Name, w.field, e.with(had.Text))
}

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
