// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
)

// How changes reach the disk. A change is made in memory at once, so that the
// next one is decided on top of it, and is put into the batch that collects. One
// goroutine writes batches: while the disk takes one, the next
// collects. A caller waits until the write with its change has returned.
//
// When a write fails, no caller of its batch has a success yet, and the next batch builds on it. So
// undo reverses both batches, and their callers get the error.

// write writes batches until there is none.
func (l *Ledger) write() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.openBatch != nil {
		l.writingBatch, l.openBatch = l.openBatch, nil
		begin := l.out.file == nil || l.out.size >= l.out.keep
		var all [][]byte // if a journal begins: the records with this batch, and nothing later
		if begin {
			for _, id := range slices.Sorted(maps.Keys(l.records)) {
				all = append(all, l.records[id].line)
			}
		}
		l.mu.Unlock()
		err := l.out.write(l.writingBatch.text, begin, all)
		l.mu.Lock()
		l.diskUnknown = err != nil
		if err != nil {
			l.undo(l.openBatch, err)
			l.openBatch = nil
		}
		l.undo(l.writingBatch, err)
		l.writingBatch = nil
		if err == nil && begin && l.out.journal != l.out.base {
			l.mu.Unlock()
			err = l.out.snapshot(all)
			l.mu.Lock()
			l.unsaved = err
		}
	}
	l.writing = false
	l.written.Broadcast()
}

// undo ends a batch. With an error it reverses the batch's changes. Call it with l.mu locked.
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

// A journal is kept until it is this many times as long as the snapshot, and at
// least so many bytes. Then another is begun, and a snapshot written.
const (
	journalFactor = 4
	minJournal    = 1 << 20
)

// output writes the files of a ledger, for one goroutine.
//
// After an error with a journal, and after a restart, gresd never writes to that journal again. The
// next batch begins another journal, and its header names the last valid batch. So no line follows
// a torn line. And gresd does not trust a failed sync, after which the kernel treats the pages as
// clean.
type output struct {
	path    string // of the snapshot
	ledger  string // its name
	based   bool   // there is a snapshot on the disk, and it knows journals
	base    uint64 // the journal of the first snapshot that was written here
	journal uint64 // number of the last one
	seq     uint64 // and of its last batch

	file *os.File // nil: the next batch begins another
	size int64    // length of the good part
	keep int64    // how long it may become
	text []byte   // for the next write
}

// write makes one batch durable. If the batch begins a journal, all is every record after it.
func (o *output) write(changes []byte, begin bool, all [][]byte) error {
	if !o.based {
		return o.first(all)
	}
	next := header{Version: version, Ledger: o.ledger, Journal: o.journal, After: o.seq}
	o.text = o.text[:0]
	if begin {
		next.Journal++
		o.text = appendHeader(o.text, next)
	}
	o.text = appendBatch(o.text, seal(next.Ledger, next.Journal), o.seq+1, changes)
	err := o.put(next.Journal, begin)
	if err == nil {
		o.journal, o.seq = next.Journal, o.seq+1
	}
	return err
}

// put appends the text to the journal, or begins the journal with this number.
func (o *output) put(number uint64, begin bool) error {
	if begin {
		_ = o.close()
		f, err := os.OpenFile(journalPath(o.path, number), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		o.file = f
	}
	_, err := o.file.Write(o.text)
	if err == nil {
		err = o.file.Sync()
	}
	if err == nil && begin {
		err = syncPath(filepath.Dir(o.path))
	}
	if err != nil {
		_ = o.file.Truncate(o.size) // so that a restart is not likely to find what was undone
		_ = o.close()
		return err
	}
	o.size += int64(len(o.text))
	return nil
}

// first begins a ledger: its first journal, and then the snapshot that names it. Without the
// snapshot the journal is nothing, so another try takes another number: the snapshot may have
// failed after it was there.
func (o *output) first(all [][]byte) error {
	if o.ledger == "" {
		o.ledger = rand.Text()
	}
	o.journal++
	o.text = appendHeader(o.text[:0], header{Version: version, Ledger: o.ledger, Journal: o.journal, After: o.seq})
	if err := o.put(o.journal, true); err != nil {
		return err
	}
	if err := o.snapshot(all); err != nil {
		_ = o.close()
		return err
	}
	o.based, o.base = true, o.journal
	return nil
}

// snapshot writes all records, and removes the journals before the current journal. A restart reads
// the snapshot and the current journal.
func (o *output) snapshot(all [][]byte) error {
	text := assemble(o.ledger, o.journal, all)
	if err := atomicfile.WriteFile(o.path, text); err != nil {
		return err
	}
	o.keep = max(minJournal, journalFactor*int64(len(text)))
	exist, err := journalsOf(o.path)
	errs := []error{err}
	for _, n := range exist {
		if n < o.journal {
			errs = append(errs, os.Remove(journalPath(o.path, n)))
		}
	}
	return errors.Join(errs...)
}

func (o *output) close() error {
	f := o.file
	o.file, o.size = nil, 0
	if f == nil {
		return nil
	}
	return f.Close()
}

// assemble is the text of a snapshot, one record a line: people read it when
// things go wrong. The checksum does not count the line breaks.
func assemble(ledger string, journal uint64, lines [][]byte) []byte {
	sum := checksum(seal(ledger, journal), []byte("["), bytes.Join(lines, []byte(",")), []byte("]"))
	return fmt.Appendf(nil, "{\"version\":%d,\"checksum\":%q,\"ledger\":%q,\"journal\":%d,\"records\":[\n%s\n]}\n",
		version, sum, ledger, journal, bytes.Join(lines, []byte(",\n")))
}

func appendHeader(text []byte, h header) []byte {
	line, _ := json.Marshal(h) // numbers and a string of plain letters
	return appendLine(text, nil, line)
}

func appendBatch(text, seal []byte, number uint64, changes []byte) []byte {
	return appendLine(text, seal, fmt.Appendf(nil, "%d [%s]", number, changes))
}

func appendLine(text, seal, line []byte) []byte {
	return fmt.Appendf(text, "%s %s\n", checksum(seal, line), line)
}
