// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Open opens the ledger in path (…/ledger.json), makes its folder (0700) and
// takes an exclusive lock on path+".lock". An absent file is an empty ledger,
// even if journals exist.
//
// If a file is torn, corrupt or of an unknown version, Open renames all files and returns BOTH a usable
// empty ledger and an [ErrCorrupt]. The caller can then report this and rebuild the records. With every
// other error the ledger is nil. Open does not change a ledger of a newer gresd ([ErrNewer]). A write at the end that
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
	return l, fmt.Errorf("%w: %s: %w: kept as %s, starting from live jobs", ErrCorrupt, path, why, moved)
}

// load reads the files. why is set if their content is damaged.
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
	// A killed gresd can have written journals without a sync. From here on, their records count.
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
		err = l.loadRecords(records)
	}
	if err != nil {
		err = fmt.Errorf("open ledger: %w", err)
	}
	return nil, err
}

// loadRecords makes what was read current.
func (l *Ledger) loadRecords(records map[uint32]Record) error {
	for _, r := range records {
		line, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("open ledger %s: %w", l.path, err)
		}
		l.records[r.JobID] = &stored{r, line}
	}
	return nil
}

// setAside renames journals without a ledger, so that an administrator can read them. It removes empty
// journals: a gresd that was killed while it made a ledger leaves such files.
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

// lockWait is the time for children of a killed gresd to release the lock. A new child has the lock
// until its execve.
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
