// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps the durable list of what jobs hold on this node.
// A record is on the disk, and survives a kill or a power cut, before
// [Ledger.Commit] returns. Commits that come while the disk is written share the
// next write. gresd is the only writer.
//
// On the disk it is a snapshot of all records (file.go), and journals of the
// changes since (journal.go).
package ledger

import (
	"bytes"
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

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
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
	engines map[gpu.Engine]int // of granted records that name one
	lock    *os.File           // nil once closed

	next, under *batch // of changes: the one that collects, the one that is being written
	writing     bool   // some goroutine writes
	doubtful    bool   // the last write failed: the disk may hold what nobody was told
	written     sync.Cond
	snapshots   int   // that are being written
	unsaved     error // why the last snapshot could not be written

	torn int // bytes, when it was opened

	out output // the writer's own
}

func newLedger(path string, lock *os.File) *Ledger {
	l := &Ledger{
		path: path, records: map[uint32]*Record{}, lines: map[uint32][]byte{}, inUse: place.InUse{}, engines: map[gpu.Engine]int{}, lock: lock,
		out: output{path: path, keep: minJournal},
	}
	l.written.L = &l.mu
	return l
}

// Open opens the ledger in path (…/ledger.json), makes its folder (0700) and
// takes an exclusive lock on path+".lock". An absent file is an empty ledger,
// whatever journals there are.
//
// When a file is torn, corrupt or of no known version, Open moves all aside
// and returns BOTH a usable empty ledger and a [*CorruptError], so that the
// caller can say so and rebuild. With every other error the ledger is nil; one
// that a newer gresd wrote is left alone ([ErrNewer]). A write at the end that
// was never finished is no error; see [Ledger.Torn].
func Open(path string) (*Ledger, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	lock, err := takeLock(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	l := newLedger(path, lock)
	why, err := l.load()
	if errors.Is(why, ErrNewer) {
		// Not corrupt: another gresd can read it, and knows more of the jobs.
		err = fmt.Errorf("open ledger %s: %w: start that gresd again, or move the file away: "+
			"this gresd then starts from the grants and jobs that exist", path, why)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if why == nil {
		return l, nil
	}
	moved, err := moveAside(path, time.Now())
	if err == nil {
		err = l.setAside(time.Now())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("move corrupt ledger %s aside: %w", path, err), lock.Close())
	}
	l = newLedger(path, lock)
	return l, &CorruptError{Path: path, MovedTo: moved, Why: why}
}

// load reads the files; why says that they are not to be trusted.
func (l *Ledger) load() (why, err error) {
	exist, err := journalsOf(l.path)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	data, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = l.setAside(time.Now()); err != nil {
			return nil, fmt.Errorf("open ledger: move journals of another aside: %w", err)
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	d, records, why := decode(data)
	if why != nil {
		return why, nil
	}
	f, why := replay(d, records, exist, func(n uint64) ([]byte, error) { return os.ReadFile(journalPath(l.path, n)) })
	if why != nil {
		return why, nil
	}
	l.torn = f.torn
	l.out.ledger, l.out.journal, l.out.seq, l.out.based = d.Ledger, f.last, f.seq, true
	// What a killed gresd wrote and did not sync is believed from now on.
	for n := d.Journal; n <= f.last && err == nil; n++ {
		err = syncPath(journalPath(l.path, n))
	}
	if err == nil {
		err = syncPath(l.path)
	}
	if err == nil {
		err = syncPath(filepath.Dir(l.path))
	}
	if err == nil {
		l.existed = true
		err = l.fill(records)
	}
	if err != nil {
		err = fmt.Errorf("open ledger: %w", err)
	}
	return nil, err
}

// setAside keeps journals that belong to no ledger for people to look at, and
// removes those that say nothing, as a killed gresd leaves that began a ledger.
func (l *Ledger) setAside(now time.Time) error {
	exist, err := journalsOf(l.path)
	for _, number := range exist {
		path := journalPath(l.path, number)
		var text []byte
		if text, err = os.ReadFile(path); err != nil {
			break
		}
		if bytes.Count(text, []byte("\n")) < 2 {
			err = os.Remove(path)
		} else {
			_, err = moveAside(path, now)
		}
		if err != nil {
			break
		}
	}
	return err
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

// OfEngine is the number of granted records whose request names that engine.
func (l *Ledger) OfEngine(engine gpu.Engine) int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.engines[engine]
}

// Existed says whether there was a good file when the ledger was opened; false
// on a first start and after a corrupt file.
func (l *Ledger) Existed() bool { return l.existed }

// Torn is the number of bytes at the end of the files, when the ledger was
// opened, of a write that was not finished, and that nobody was told of.
func (l *Ledger) Torn() int { return l.torn }

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
	for l.writing || l.snapshots > 0 {
		l.written.Wait()
	}
	if l.lock == nil {
		return nil
	}
	err := errors.Join(l.out.close(), l.lock.Close())
	l.lock = nil
	return err
}
