// SPDX-License-Identifier: Apache-2.0

// Package acct writes what an ended job has used of its share into its record
// in Slurm's accounting, as one word in a comment:
//
//	vgpu_used(node=gpu01,mem_mib=18432,gpu_s=812.4)
//
// slurmctld takes no changes of a job that has ended, and Epilog must not wait
// for a database. So the word goes to slurmdbd, later, by a [Writer].
package acct

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// Used is what one run of a job has used on this node.
type Used struct {
	JobID uint32
	Node  string // as Slurm names it
	Conf  string // slurm.conf of that node's slurmd; "" for Slurm's default

	Memory gpu.Bytes     // the most in use on each card, summed
	GPU    time.Duration // of all cards
}

// word is what is written for it, in small letters: sacctmgr makes all letters
// small.
func (u Used) word() string {
	return fmt.Sprintf("vgpu_used(node=%s,mem_mib=%d,gpu_s=%.1f)",
		strings.ToLower(u.Node), (u.Memory+gpu.MiB-1)/gpu.MiB, u.GPU.Seconds())
}

var words = regexp.MustCompile(`\s*\bvgpu_used\(node=([^,()]*),[^()]*\)`)

// with puts the word behind the text, in the place of an older one of the same
// node. Other nodes of the job write words of their own.
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
	// mostWaiting bounds what is kept while slurmdbd is away.
	mostWaiting = 10000
	// firstWait is what slurmctld needs to tell slurmdbd of a job's end; the
	// waits double up to lastWait.
	firstWait = 2 * time.Second
	lastWait  = 5 * time.Minute
	// giveUp is how long it is tried.
	giveUp = 24 * time.Hour
)

// Writer writes to the accounting. What it has not written when gresd ends is
// lost.
type Writer struct {
	field string
	books func(conf string) Books
	log   *slog.Logger
	wake  wakeup.Bell

	mu      sync.Mutex
	waiting []entry
	dropped bool
	taken   int // 1: an entry is being written, and may come back
}

type entry struct {
	Used
	since, next time.Time
	wait        time.Duration
	name        string // that slurmdbd had for the job when it was first seen to be over
}

// New returns a writer into that field ([slurm.AdminComment], …).
func New(field string, books func(conf string) Books, log *slog.Logger) *Writer {
	return &Writer{field: field, books: books, log: log, wake: wakeup.NewBell()}
}

// Note takes what a job has used. It never waits. A nil writer takes nothing.
func (w *Writer) Note(u Used) {
	if w == nil {
		return
	}
	now := time.Now()
	w.mu.Lock()
	// A job that runs again: what its earlier run used is not wanted any more.
	w.waiting = slices.DeleteFunc(w.waiting, func(e entry) bool { return e.JobID == u.JobID && e.Node == u.Node })
	full := len(w.waiting)+w.taken >= mostWaiting
	if !full {
		w.waiting = append(w.waiting, entry{Used: u, since: now, next: now, wait: firstWait})
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
	for ctx.Err() == nil {
		next := w.pass(ctx)
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-time.After(next):
		}
	}
}

// pass tries what is due, and returns how long nothing else is.
func (w *Writer) pass(ctx context.Context) time.Duration {
	for {
		e, wait, due := w.due()
		if !due || ctx.Err() != nil {
			return wait
		}
		done, err := w.write(ctx, &e)
		if err != nil && time.Since(e.since) > giveUp {
			w.log.Warn("usage of a job is lost", "job_id", e.JobID, "error", err)
			continue
		}
		if !done {
			w.log.Debug("usage of a job is not written yet", "job_id", e.JobID, "error", err)
			w.again(e)
		}
	}
}

// due takes the first entry whose time has come.
func (w *Writer) due() (e entry, wait time.Duration, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken = 0
	wait, now := lastWait, time.Now()
	for i, e := range w.waiting {
		if left := e.next.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		w.waiting = slices.Delete(w.waiting, i, i+1)
		w.taken = 1
		return e, 0, true
	}
	return entry{}, wait, false
}

// again puts an entry back, unless the job has run again meanwhile. Two nodes
// of a job that met must not meet again.
func (w *Writer) again(e entry) {
	e.next = time.Now().Add(e.wait/2 + rand.N(e.wait))
	e.wait = min(2*e.wait, lastWait)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken = 0
	newer := slices.ContainsFunc(w.waiting, func(o entry) bool { return o.JobID == e.JobID && o.Node == e.Node })
	if !newer {
		w.waiting = append(w.waiting, e)
	}
}

var (
	errNotOver = errors.New("slurmdbd does not know yet that the job has ended")
	errUnnamed = errors.New("slurmdbd may hear yet that the job is a task of an array")
)

// write writes one word. It is done when the word is seen there: two nodes of a
// job may have written at once, and the later one has won.
func (w *Writer) write(ctx context.Context, e *entry) (done bool, err error) {
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
	// One task of an array has the number of the whole array, by which all would be written.
	if e.name != had.Name && !strings.Contains(had.Name, "_") {
		e.name = had.Name
		return false, errUnnamed
	}
	return false, books.SetAccount(ctx, had.Name, w.field, e.with(had.Text))
}
