// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"slices"
)

// How changes reach the disk. A change is made in memory at once, so that the
// next one is decided on top of it, and is put into the batch that collects. One
// goroutine writes batches (output.go): while the disk takes one, the next
// collects. A caller is told when the write that holds its change has returned.
//
// When a write fails, nobody of its batch was told yes, and the next batch was
// decided on top of it: both are undone, and their callers get the error.

// write writes batches until there is none.
func (l *Ledger) write() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.openBatch != nil {
		l.writingBatch, l.openBatch = l.openBatch, nil
		var all [][]byte // for a snapshot: the records with this batch, and nothing later
		begin := l.out.wantsJournal(l.snapshots > 0)
		if begin {
			all = l.inOrder()
		}
		l.mu.Unlock()
		err := l.out.write(l.writingBatch.text, begin, all)
		l.mu.Lock()
		l.diskUnknown = err != nil
		if err != nil {
			l.undo(l.openBatch, err)
			l.openBatch = nil
		} else if begin && l.snapshots == 0 && l.out.journal != l.out.base {
			l.snapshots++
			go l.snapshot(l.out.snapshot(all))
		}
		l.undo(l.writingBatch, err)
		l.writingBatch = nil
	}
	l.writing = false
	l.written.Broadcast()
}

// inOrder are all records as JSON, by rising job id. l.mu is held.
func (l *Ledger) inOrder() [][]byte {
	all := make([][]byte, 0, len(l.records))
	for _, id := range slices.Sorted(maps.Keys(l.records)) {
		all = append(all, l.records[id].line)
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
			if l.records[c.jobID] = c.old; c.old == nil {
				delete(l.records, c.jobID)
			}
		}
	}
	b.err = err
	close(b.done)
}
