// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps the durable list of what jobs hold on this node.
// A record is on the disk, and survives a kill or a power cut, before
// [Ledger.Commit] returns. Commits that come while the disk is written share the
// next write. gresd is the only writer.
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
	// ErrNewer: a newer gresd wrote the file.
	ErrNewer = errors.New("written by a newer gresd")
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

	// mu guards all below. It is not held while the disk is written: changes that
	// come meanwhile share the next write (see commit.go).
	mu      sync.RWMutex
	records map[uint32]*Record // never changed; with what is on its way to the disk
	lines   map[uint32][]byte  // each record as JSON
	ids     []uint32           // of all, rising
	inUse   place.InUse
	lock    *os.File // nil once closed

	next, under *batch // of changes: the one that collects, the one that is being written
	writing     bool   // some goroutine writes
	doubtful    bool   // the last write failed: the disk may hold what nobody was told
	written     sync.Cond

	// The writer's own, kept for the next write.
	inOrder [][]byte
	text    []byte
}

func newLedger(path string, lock *os.File) *Ledger {
	l := &Ledger{
		path: path, records: map[uint32]*Record{}, lines: map[uint32][]byte{}, inUse: place.InUse{}, lock: lock,
	}
	l.written.L = &l.mu
	return l
}

// Open opens the ledger in path (…/ledger.json), makes its folder (0700) and
// takes an exclusive lock on path+".lock". An absent file is an empty ledger.
//
// When the file is torn, corrupt or of no known version, Open moves it aside
// and returns BOTH a usable empty ledger and a [*CorruptError], so that the
// caller can say so and rebuild. With every other error the ledger is nil; one
// that a newer gresd wrote is left alone ([ErrNewer]).
func Open(path string) (*Ledger, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	lock, err := takeLock(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	l := newLedger(path, lock)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open ledger: %w", err), lock.Close())
	}
	records, err := decode(data)
	if errors.Is(err, ErrNewer) {
		// Not corrupt: another gresd can read it, and knows more of the jobs.
		return nil, errors.Join(fmt.Errorf("open ledger %s: %w: start that gresd again, or move the file away: "+
			"this gresd then starts from the grants and jobs that exist", path, err), lock.Close())
	}
	if err == nil {
		l.existed = true
		return l, l.fill(records)
	}
	moved, moveErr := moveAside(path, time.Now())
	if moveErr != nil {
		return nil, errors.Join(fmt.Errorf("move corrupt ledger %s aside: %w", path, moveErr), lock.Close())
	}
	return l, &CorruptError{Path: path, MovedTo: moved, Why: err}
}

// lockWait is for the children of a gresd that was killed: one that was just being
// started has the lock until it has become another program.
const lockWait = time.Second

// takeLock locks a file of its own: the ledger itself is replaced at each
// write, and a lock on a replaced file locks nothing.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(lockWait); ; time.Sleep(lockWait / 100) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			break
		}
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
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
		if wanted(r) {
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
	return maps.Clone(l.inUse)
}

// Beside returns the record of a job, as [Ledger.Get] does, and what all other jobs
// hold on each card, both of the same moment.
func (l *Ledger) Beside(jobID uint32) (rec Record, others place.InUse, known bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	others = maps.Clone(l.inUse)
	r, known := l.records[jobID]
	if !known {
		return Record{}, others, false
	}
	if r.State == Granted {
		others.Remove(r.Placement)
	}
	return r.clone(), others, true
}

// Existed says whether there was a good file when the ledger was opened; false
// on a first start and after a corrupt file.
func (l *Ledger) Existed() bool { return l.existed }

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
	err := l.lock.Close()
	l.lock = nil
	return err
}
