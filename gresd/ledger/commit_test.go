// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// nextJournal makes the next batch begin a journal, and returns its path.
func nextJournal(l *Ledger) string {
	_ = l.out.close()
	return journalPath(l.path, l.out.journal+1)
}

// A pipe in the place of the next journal holds the writer until somebody reads,
// and then fails, because a pipe cannot be synced.
func holdWriter(t *testing.T, l *Ledger) (release func()) {
	t.Helper()
	pipe := nextJournal(l)
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		f, err := os.Open(pipe)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := os.Remove(pipe); err != nil {
			t.Error(err)
		}
		buf := make([]byte, 1<<16)
		for {
			if _, err := f.Read(buf); err != nil {
				return
			}
		}
	}
}

// Changes that were decided on top of one that fails fail with it: nothing stays
// half done.
func TestAWriteThatFailsTakesBackWhatWasBuiltOnIt(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.json"))
	commit(t, l, 1, 2)
	before, inUse := l.List(), l.InUse()
	release := holdWriter(t, l)

	first := l.Begin(record(3)) // it is being written
	other := record(1)
	other.User = "grace"
	later := []Pending{l.Begin(record(4)), l.Begin(other)}
	deleted := make(chan error)
	go func() {
		_, err := l.Delete(2)
		deleted <- err
	}()
	for l.Len() != 3 { // 1, 3 and 4: readers see all of it
	}
	if got, _ := l.Get(1); got.User != "grace" {
		t.Errorf("a change that is on its way is not seen: %+v", got)
	}
	release()
	for i, p := range append(later, first) {
		if err := p.Wait(); err == nil {
			t.Errorf("change %d: no error", i)
		}
	}
	if err := <-deleted; err == nil {
		t.Error("delete: no error")
	}
	if got := l.List(); !reflect.DeepEqual(got, before) {
		t.Errorf("records %+v\nwant %+v", got, before)
	}
	if got := l.InUse(); !reflect.DeepEqual(got, inUse) {
		t.Errorf("in use %v, want %v", got, inUse)
	}
	commit(t, l, 5)
	if got := reopen(t, l).List(); len(got) != 3 {
		t.Errorf("afterwards: %+v", got)
	}
}

// A write may fail after it has reached the disk, which then knows a job that
// nobody was promised, and that must not come back once it is deleted.
func TestADeleteAfterAFailedWriteReachesTheDisk(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.json"))
	commit(t, l, 1)
	l.mu.Lock()
	l.diskUnknown = true // as when the journal cannot be synced
	l.mu.Unlock()
	appendText(t, journalPath(l.path, l.out.journal), lines(t, header{Ledger: l.out.ledger, Journal: l.out.journal, After: l.out.seq}, record(2)))
	_ = l.out.close()
	if had, err := l.Delete(2); had || err != nil {
		t.Errorf("Delete: %v, %v", had, err)
	}
	if got := reopen(t, l).List(); len(got) != 1 || got[0].JobID != 1 {
		t.Errorf("got %+v", got)
	}
}

// The point of waiting together: many callers, few writes.
func TestChangesThatComeDuringAWriteShareTheNext(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.json"))
	commit(t, l, 1)
	release := holdWriter(t, l)
	first := l.Begin(record(1))
	for l.batches() != 1 { // taken by the writer
	}
	var later []Pending
	for id := uint32(2); id < 100; id++ {
		later = append(later, l.Begin(record(id)))
	}
	for _, p := range later {
		if p.batch != later[0].batch || p.batch == first.batch {
			t.Fatal("changes that came during one write are in several batches")
		}
	}
	release()
	_ = first.Wait() // the error of the pipe
	commit(t, l, 1)
}

// batches counts those that are being written.
func (l *Ledger) batches() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.writingBatch == nil {
		return 0
	}
	return 1
}

func TestCloseWaitsForWhatIsBeingWritten(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.json"))
	var all []Pending
	for id := range uint32(20) {
		all = append(all, l.Begin(record(id+1)))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
	}
	if got := open(t, l.path).List(); len(got) != 20 {
		t.Errorf("%d records, want 20", len(got))
	}
}
