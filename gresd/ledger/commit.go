// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// How changes reach the disk. A change is made in memory at once, so that the
// next one is decided on top of it, and is put into the batch that collects. One
// goroutine writes batches (output.go): while the disk takes one, the next
// collects. A caller is told when the write that holds its change has returned.
//
// When a write fails, nobody of its batch was told yes, and the next batch was
// decided on top of it: both are undone, and their callers get the error.

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
	old   *Record // nil: there was none
	line  []byte
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

// Commit adds the record, or replaces the one of the same job. When it returns
// nil the record is durable. With an error, readers see the ledger as before;
// the disk may already hold the record, until the next write.
func (l *Ledger) Commit(r Record) error { return l.Begin(r).Wait() }

// Begin is Commit without the wait. The caller tells nobody before Wait. Changes
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
	own := r.clone()
	l.set(&own, line)
	return p
}

// Delete removes the record of a job, durably like [Ledger.Commit]. Deleting an
// unknown job is no error and writes nothing, unless a write has failed and the
// disk may know the job; had says whether there was one.
func (l *Ledger) Delete(jobID uint32) (had bool, err error) {
	had, onDisk := l.BeginDelete(jobID)
	return had, onDisk.Wait()
}

// BeginDelete does so, and does not wait for the disk.
func (l *Ledger) BeginDelete(jobID uint32) (had bool, onDisk Pending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, had = l.records[jobID]; !had && !l.doubtful {
		return false, Pending{}
	}
	p := Pending{what: fmt.Sprintf("delete job %d from ledger %s", jobID, l.path), err: ErrClosed}
	if l.lock != nil {
		p.err = nil
		p.batch = l.collect(jobID, `{"delete":`, strconv.AppendUint(nil, uint64(jobID), 10), `}`)
		l.unset(jobID)
	}
	return had, p
}

// collect notes a change, and how the record is before it. l.mu is held.
func (l *Ledger) collect(jobID uint32, before string, change []byte, after string) *batch {
	if l.next == nil {
		l.next = &batch{done: make(chan struct{})}
	}
	if len(l.next.text) > 0 {
		l.next.text = append(l.next.text, ',')
	}
	l.next.text = append(append(append(l.next.text, before...), change...), after...)
	l.next.undo = append(l.next.undo, undoing{jobID, l.records[jobID], l.lines[jobID]})
	if !l.writing {
		l.writing = true
		go l.write()
	}
	return l.next
}

// write writes batches until there is none.
func (l *Ledger) write() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.next != nil {
		l.under, l.next = l.next, nil
		var all [][]byte // for a snapshot: the records with this batch, and nothing later
		begin := l.out.wantsJournal(l.snapshots > 0)
		if begin {
			all = l.inOrder()
		}
		l.mu.Unlock()
		err := l.out.write(l.under.text, begin, all)
		l.mu.Lock()
		l.doubtful = err != nil
		if err != nil {
			l.undo(l.next, err)
			l.next = nil
		} else if begin && l.snapshots == 0 && l.out.journal != l.out.base {
			l.snapshots++
			go l.snapshot(l.out.snapshot(all))
		}
		l.undo(l.under, err)
		l.under = nil
	}
	l.writing = false
	l.written.Broadcast()
}

// inOrder are all records as JSON, by rising job id. l.mu is held.
func (l *Ledger) inOrder() [][]byte {
	all := make([][]byte, len(l.ids))
	for i, id := range l.ids {
		all[i] = l.lines[id]
	}
	return all
}

// snapshot writes one while batches go on into the journal that it names.
func (l *Ledger) snapshot(write func() (size int64, err error)) {
	size, err := write()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unsaved = err; err == nil {
		l.out.keep = max(minJournal, journalFactor*size)
	}
	l.snapshots--
	l.written.Broadcast()
}

// undo ends a batch; with an error its changes are taken back. l.mu is held.
func (l *Ledger) undo(b *batch, err error) {
	if b == nil {
		return
	}
	if err != nil {
		for _, c := range slices.Backward(b.undo) {
			l.unset(c.jobID)
			if c.old != nil {
				l.set(c.old, c.line)
			}
		}
	}
	b.err = err
	close(b.done)
}

// set makes a record current, which nobody else may change. l.mu is held.
func (l *Ledger) set(r *Record, line []byte) {
	l.unset(r.JobID)
	l.records[r.JobID], l.lines[r.JobID] = r, line
	at, _ := slices.BinarySearch(l.ids, r.JobID)
	l.ids = slices.Insert(l.ids, at, r.JobID)
	if r.State == Granted {
		l.inUse.Add(r.Placement)
		l.engines[r.Request.Engine]++
	}
}

func (l *Ledger) unset(jobID uint32) {
	r, known := l.records[jobID]
	if !known {
		return
	}
	if r.State == Granted {
		l.inUse.Remove(r.Placement)
		l.engines[r.Request.Engine]--
	}
	at, _ := slices.BinarySearch(l.ids, jobID)
	l.ids = slices.Delete(l.ids, at, at+1)
	delete(l.records, jobID)
	delete(l.lines, jobID)
}

// fill makes what was read current.
func (l *Ledger) fill(records map[uint32]Record) error {
	for _, r := range records {
		line, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("open ledger %s: %w", l.path, err)
		}
		l.set(&r, line)
	}
	return nil
}
