// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
)

// A journal is kept until it is this many times as long as the snapshot, and at
// least so many bytes. Then another is begun, and a snapshot written beside it.
const (
	journalFactor = 4
	minJournal    = 1 << 20
)

// output writes the files of a ledger, for one goroutine; keep is under Ledger.mu.
//
// A journal is never written to again once anything went wrong with it, and not by
// a gresd that was started anew: the next batch begins another, whose header says
// how far the one before counts. So nothing follows what may be torn, and a sync
// that failed, after which the kernel takes the pages for clean, is not trusted.
type output struct {
	path    string // of the snapshot
	ledger  string // its name
	based   bool   // there is a snapshot on the disk, and it knows journals
	base    uint64 // the journal of the first snapshot that was written here
	journal uint64 // number of the last one
	seq     uint64 // and of its last batch

	file *os.File // nil: the next batch begins another
	size int64    // what is good of it
	keep int64    // how long it may become
	text []byte   // for the next write
}

// wantsJournal says whether the next batch is to begin a journal.
func (o *output) wantsJournal(snapshotting bool) bool {
	return o.file == nil || (o.size >= o.keep && !snapshotting)
}

// write makes one batch durable. all is every record after it, where it begins a journal.
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
	o.text = appendBatch(o.text, next.seal(), o.seq+1, changes)
	err := o.put(next.Journal, begin)
	if err == nil {
		o.journal, o.seq = next.Journal, o.seq+1
	}
	return err
}

// put appends the text to the journal, or begins the one of that number with it.
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
		err = syncData(o.file)
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
	if _, err := o.snapshot(all)(); err != nil {
		_ = o.close()
		return err
	}
	o.based, o.base = true, o.journal
	return nil
}

// snapshot returns what writes all records, which the journal in use goes on from,
// and removes the journals before that one. It may run beside other writes.
func (o *output) snapshot(all [][]byte) func() (size int64, err error) {
	path, ledger, number := o.path, o.ledger, o.journal
	return func() (int64, error) {
		text := assemble(nil, ledger, number, all)
		if err := atomicfile.WriteFile(path, text); err != nil {
			return 0, err
		}
		return int64(len(text)), removeBefore(path, number)
	}
}

func removeBefore(path string, number uint64) error {
	exist, err := journalsOf(path)
	errs := []error{err}
	for _, n := range exist {
		if n < number {
			errs = append(errs, os.Remove(journalPath(path, n)))
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

// syncData makes the content of a file durable, and its length.
func syncData(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
