// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps the durable list of what jobs hold on this node.
// A record is on the disk, and survives a kill or a power cut, before
// [Ledger.Commit] returns. Commits that come while the disk is written share the
// next write. gresd is the only writer.
//
// On the disk it is a snapshot of all records, and journals of the changes since (read.go, write.go).
package ledger

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// Sentinels for errors.Is.
var (
	// ErrCorrupt: the file could not be used and was moved aside. The text of the error names both.
	ErrCorrupt = errors.New("ledger is corrupt")
	// ErrLocked: another process has the ledger open.
	ErrLocked = errors.New("another gresd has it open")
	// ErrNewer: a newer gresd wrote the file.
	ErrNewer = errors.New("written by a newer gresd")
	// ErrClosed: the ledger was used after Close.
	ErrClosed = errors.New("ledger is closed")
)

// State is the result of a job's request.
type State string

// States of a record.
const (
	Granted State = "granted"
	Refused State = "refused" // Reason says why; it holds nothing
)

// UnknownRun is the run of a job whose number of restarts is unknown.
const UnknownRun = -1

// Record is one job of this node.
type Record struct {
	JobID     uint32          `json:"job_id"`
	UID       uint32          `json:"uid"`
	GID       uint32          `json:"gid"`
	User      string          `json:"user"`
	Account   string          `json:"account"`
	Partition string          `json:"partition"`
	Request   request.Request `json:"request"`
	Placement place.Placement `json:"placement"`
	Mode      gpu.Mode        `json:"mode"`
	Ceiling   gpu.Share       `json:"ceiling"` // 0: none
	Priority  gpu.Priority    `json:"priority"`
	Created   time.Time       `json:"created"`
	State     State           `json:"state"`
	Reason    string          `json:"reason,omitempty"`
	// Restarts is the run of the job, SLURM_JOB_RESTART_COUNT; [UnknownRun] in a
	// record that was rebuilt from a grant.
	Restarts int64 `json:"restarts"`
	// EngineWhy is why gresd took the engine of Request, for a job that leaves it to gresd (gpu.Auto);
	// "" where the job or the site names one.
	EngineWhy string `json:"engine_why,omitempty"`
}

// clone returns a copy that shares no memory with r.
func (r *Record) clone() Record {
	copied := *r
	copied.Placement.Cards = slices.Clone(r.Placement.Cards)
	return copied
}

// Ledger is safe for concurrent use.
type Ledger struct {
	path    string
	existed bool

	// mu guards all below. It is not held while the disk is written: changes that
	// come meanwhile share the next write (see write.go).
	mu      sync.RWMutex
	records map[uint32]*stored // immutable records, also the unwritten ones
	lock    *os.File           // nil once closed

	openBatch, writingBatch *batch // collects changes; is being written
	writing                 bool   // some goroutine writes
	diskUnknown             bool   // the last write failed: the disk can have changes that were reported as failed
	written                 sync.Cond
	unsaved                 error // why the last snapshot could not be written

	torn int // bytes, when it was opened

	out output // the writer's own
}

// stored is a record, and its JSON.
type stored struct {
	Record
	line []byte
}

// Get returns a copy of the record of a job.
func (l *Ledger) Get(jobID uint32) (Record, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	r, ok := l.records[jobID]
	if !ok {
		return Record{}, false
	}
	return r.clone(), true
}

// Len is the number of records.
func (l *Ledger) Len() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.records)
}

// List returns copies of all records by rising job id.
func (l *Ledger) List() []Record {
	return l.Find(func(*Record) bool { return true })
}

// Find returns copies of the records that are wanted, by rising job id. wanted must
// not change a record or keep it.
func (l *Ledger) Find(wanted func(*Record) bool) []Record {
	list := []Record{}
	l.mu.RLock()
	for _, r := range l.records {
		if wanted(&r.Record) {
			list = append(list, r.clone())
		}
	}
	l.mu.RUnlock()
	slices.SortFunc(list, func(a, b Record) int { return cmp.Compare(a.JobID, b.JobID) })
	return list
}

// InUse returns what granted records hold on each card, those that are on their
// way to the disk included.
func (l *Ledger) InUse() place.InUse {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.useWithout(0)
}

// useWithout is InUse without one job. Call it with l.mu.
func (l *Ledger) useWithout(jobID uint32) place.InUse {
	inUse := place.InUse{}
	for _, r := range l.records {
		if r.State == Granted && r.JobID != jobID {
			inUse.Add(r.Placement)
		}
	}
	return inUse
}

// GetWithOtherUse returns the record of a job, as [Ledger.Get] does, and the use of each card by all
// other jobs at the same moment.
func (l *Ledger) GetWithOtherUse(jobID uint32) (rec Record, others place.InUse, known bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	r, known := l.records[jobID]
	if known {
		rec = r.clone()
	}
	return rec, l.useWithout(jobID), known
}

// Pending is a change that is in force for readers and on its way to the disk.
type Pending struct {
	batch *batch
	what  string
	err   error // of a change that was never made
}

// Wait returns once the change is durable, or why it is not; it is then undone,
// though the disk may hold it until the next write.
func (p Pending) Wait() error {
	err := p.err
	if p.batch != nil {
		<-p.batch.done
		err = p.batch.err
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.what, err)
	}
	return nil
}

// Commit adds a record, or replaces the record of the same job. When it returns
// nil the record is durable. With an error, readers see the ledger as before;
// the disk may already hold the record, until the next write.
func (l *Ledger) Commit(r Record) error { return l.Begin(r).Wait() }

// Begin is Commit without the wait. The caller must not reply before Wait returns. Changes
// of one and the same job must not overlap.
func (l *Ledger) Begin(r Record) Pending {
	p := Pending{what: fmt.Sprintf("commit job %d to ledger %s", r.JobID, l.path)}
	line, err := json.Marshal(r)
	if err != nil {
		p.err = err
		return p
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lock == nil {
		p.err = ErrClosed
		return p
	}
	p.batch = l.collect(r.JobID, `{"set":`, line, `}`)
	l.records[r.JobID] = &stored{r.clone(), line}
	return p
}

// BeginDelete does so, and does not wait for the disk.
func (l *Ledger) BeginDelete(jobID uint32) (had bool, onDisk Pending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, had = l.records[jobID]; !had && !l.diskUnknown {
		return false, Pending{}
	}
	p := Pending{what: fmt.Sprintf("delete job %d from ledger %s", jobID, l.path), err: ErrClosed}
	if l.lock != nil {
		p.err = nil
		p.batch = l.collect(jobID, `{"delete":`, strconv.AppendUint(nil, uint64(jobID), 10), `}`)
		delete(l.records, jobID)
	}
	return had, p
}

// batch is the changes of one write.
type batch struct {
	undo []undoing
	text []byte        // the changes, as a journal has them
	done chan struct{} // closed when the outcome is known
	err  error         // the outcome, once done is closed
}

// undoing is how one record was before.
type undoing struct {
	jobID uint32
	old   *stored // nil: there was none
}

// collect adds a change, and the record before the change, to the open batch. Call it with l.mu.
func (l *Ledger) collect(jobID uint32, before string, change []byte, after string) *batch {
	if l.openBatch == nil {
		l.openBatch = &batch{done: make(chan struct{})}
	}
	if len(l.openBatch.text) > 0 {
		l.openBatch.text = append(l.openBatch.text, ',')
	}
	l.openBatch.text = append(append(append(l.openBatch.text, before...), change...), after...)
	l.openBatch.undo = append(l.openBatch.undo, undoing{jobID, l.records[jobID]})
	if !l.writing {
		l.writing = true
		go l.write()
	}
	return l.openBatch
}

// Problems is what an administrator should look at.
func (l *Ledger) Problems() []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.unsaved == nil {
		return nil
	}
	return []string{fmt.Sprintf("the journal of ledger %s cannot be made shorter: %v", l.path, l.unsaved)}
}

// Close waits for what is being written and releases the lock. Reading still
// works afterwards, writing gives [ErrClosed]. Closing twice is no error.
func (l *Ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.writing {
		l.written.Wait()
	}
	if l.lock == nil {
		return nil
	}
	err := errors.Join(l.out.close(), l.lock.Close())
	l.lock = nil
	return err
}
