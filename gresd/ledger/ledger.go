// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps the durable list of what jobs hold on this node.
// A record is on the disk, and survives a kill or a power cut, before
// [Ledger.Commit] returns. gresd is the only writer.
package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
)

// Sentinels for errors.Is.
var (
	// ErrCorrupt: the file could not be used and was moved aside; see [CorruptError].
	ErrCorrupt = errors.New("ledger is corrupt")
	// ErrLocked: another process has the ledger open.
	ErrLocked = errors.New("another gresd has it open")
	// ErrClosed: the ledger was used after Close.
	ErrClosed = errors.New("ledger is closed")
)

// CorruptError says what was wrong with the file and where it is now.
type CorruptError struct {
	Path    string // of the ledger
	MovedTo string // where the unusable file is kept for people to look at
	Why     error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("open ledger %s: %v: kept as %s, starting from live jobs", e.Path, e.Why, e.MovedTo)
}

// Is makes errors.Is(err, ErrCorrupt) true.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// Unwrap returns what was wrong.
func (e *CorruptError) Unwrap() error { return e.Why }

// Ledger is safe for concurrent use.
type Ledger struct {
	path    string
	existed bool

	// mu guards all below. It is held while the disk is written: answers wait
	// for the disk anyway, and a reader must not see what may still fail.
	mu      sync.RWMutex
	records map[uint32]Record
	lock    *os.File // nil once closed
}

// Open opens the ledger in path (…/ledger.json), makes its folder (0700) and
// takes an exclusive lock on path+".lock". An absent file is an empty ledger.
//
// When the file is torn, corrupt or of an unknown version, Open moves it aside
// and returns BOTH a usable empty ledger and a [*CorruptError], so that the
// caller can say so and rebuild. With every other error the ledger is nil.
func Open(path string) (*Ledger, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	lock, err := takeLock(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	l := &Ledger{path: path, records: map[uint32]Record{}, lock: lock}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open ledger: %w", err), lock.Close())
	}
	records, err := decode(data)
	if err == nil {
		l.records, l.existed = records, true
		return l, nil
	}
	moved, moveErr := moveAside(path, time.Now())
	if moveErr != nil {
		return nil, errors.Join(fmt.Errorf("move corrupt ledger %s aside: %w", path, moveErr), lock.Close())
	}
	return l, &CorruptError{Path: path, MovedTo: moved, Why: err}
}

// takeLock locks a file of its own: the ledger itself is replaced at each
// write, and a lock on a replaced file locks nothing.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Commit adds the record, or replaces the one of the same job. When it returns
// nil the record is durable. With an error, readers see the ledger as before;
// the disk may already hold the record, until the next write.
func (l *Ledger) Commit(r Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := maps.Clone(l.records)
	next[r.JobID] = r.clone()
	if err := l.save(next); err != nil {
		return fmt.Errorf("commit job %d to ledger %s: %w", r.JobID, l.path, err)
	}
	return nil
}

// Delete removes the record of a job, durably like [Ledger.Commit]. Deleting an
// unknown job is no error and writes nothing; had says whether there was one.
func (l *Ledger) Delete(jobID uint32) (had bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, had := l.records[jobID]; !had {
		return false, nil
	}
	next := maps.Clone(l.records)
	delete(next, jobID)
	if err := l.save(next); err != nil {
		return true, fmt.Errorf("delete job %d from ledger %s: %w", jobID, l.path, err)
	}
	return true, nil
}

// save writes the records, then makes them current. l.mu is held.
func (l *Ledger) save(next map[uint32]Record) error {
	if l.lock == nil {
		return ErrClosed
	}
	data, err := encode(sorted(next))
	if err != nil {
		return err
	}
	if err := write(l.path, data); err != nil {
		return err
	}
	l.records = next
	return nil
}

func sorted(records map[uint32]Record) []Record {
	// Not nil: an empty ledger is written as [], not null.
	list := slices.AppendSeq(make([]Record, 0, len(records)), maps.Values(records))
	slices.SortFunc(list, func(a, b Record) int { return cmp.Compare(a.JobID, b.JobID) })
	return list
}

// Get returns a copy of the record of a job.
func (l *Ledger) Get(jobID uint32) (Record, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	r, ok := l.records[jobID]
	return r.clone(), ok
}

// List returns copies of all records by rising job id.
func (l *Ledger) List() []Record {
	l.mu.RLock()
	defer l.mu.RUnlock()
	list := sorted(l.records)
	for i := range list {
		list[i] = list[i].clone()
	}
	return list
}

// InUse returns what granted records hold on each card.
func (l *Ledger) InUse() place.InUse {
	l.mu.RLock()
	defer l.mu.RUnlock()
	inUse := place.InUse{}
	for _, r := range l.records {
		if r.State == Granted {
			inUse.Add(r.Placement)
		}
	}
	return inUse
}

// Existed says whether there was a good file when the ledger was opened; false
// on a first start and after a corrupt file.
func (l *Ledger) Existed() bool { return l.existed }

// Close releases the lock. Reading still works afterwards, writing gives
// [ErrClosed]. Closing twice is no error.
func (l *Ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lock == nil {
		return nil
	}
	err := l.lock.Close()
	l.lock = nil
	return err
}
