// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
		err = fmt.Errorf("%w: start that gresd again, or move the file away: "+
			"this gresd then starts from the grants and jobs that exist", why)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open ledger %s: %w", path, err), lock.Close())
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
	return newLedger(path, lock), fmt.Errorf("%w: %s: %w: kept as %s, starting from live jobs", ErrCorrupt, path, why, moved)
}

func newLedger(path string, lock *os.File) *Ledger {
	l := &Ledger{
		path: path, records: map[uint32]*stored{}, lock: lock, out: output{path: path, keep: minJournal},
	}
	l.written.L = &l.mu
	return l
}

// load reads the files. why is set if their content is damaged.
func (l *Ledger) load() (why, err error) {
	exist, err := journalsOf(l.path)
	var data []byte
	if err == nil {
		data, err = os.ReadFile(l.path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, l.setAside(time.Now())
	} else if err != nil {
		return nil, err
	}
	d, records, why := decode(data)
	if why != nil {
		return why, nil
	}
	f, why := replay(d, records, exist, func(n uint64) ([]byte, error) { return os.ReadFile(journalPath(l.path, n)) })
	if why != nil {
		return why, nil
	}
	l.torn, l.existed = f.torn, true
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
		err = l.loadRecords(records)
	}
	return nil, err
}

// loadRecords makes what was read current.
func (l *Ledger) loadRecords(records map[uint32]Record) error {
	for _, r := range records {
		line, err := json.Marshal(r)
		if err != nil {
			return err
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
		text, err := os.ReadFile(path)
		if err == nil && bytes.Count(text, []byte("\n")) < 2 {
			err = os.Remove(path)
		} else if err == nil {
			_, err = moveAside(path, now)
		}
		if err != nil {
			return err
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

// Existed reports whether there was a good file when the ledger was opened. It is false on a first
// start and after a corrupt file.
func (l *Ledger) Existed() bool { return l.existed }

// Torn is the number of bytes of an unfinished write at the end of the files when the ledger was
// opened. No caller got a success for that write.
func (l *Ledger) Torn() int { return l.torn }

// version of the files. A daemon does not start with files of a newer version. With files of an
// older version, it starts from live jobs.
const version = 2

// document is the snapshot, ledger.json: the records before the first line of
// the journal that it names, or later. A change that is in both is made twice,
// which changes nothing. The checksum is over the names and the records as
// compact JSON, so that a reformatted file is still good and a changed one is not.
type document struct {
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"`
	Ledger   string          `json:"ledger"`  // name of this ledger, drawn when it was begun
	Journal  uint64          `json:"journal"` // number of the first journal to read
	Records  json.RawMessage `json:"records"`
}

// decode is the inverse of assemble. Every error means that the file is not to
// be trusted.
func decode(data []byte) (document, map[uint32]Record, error) {
	var d document
	decoder := json.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&d); err != nil {
		return d, nil, fmt.Errorf("torn or not JSON (%d bytes): %w", len(data), err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return d, nil, errors.New("something follows the records")
	}
	switch {
	case d.Version > version:
		return d, nil, fmt.Errorf("%w: version %d, this gresd reads version %d", ErrNewer, d.Version, version)
	case d.Version != version:
		return d, nil, fmt.Errorf("version %d, this gresd reads version %d", d.Version, version)
	case d.Ledger == "" || d.Journal == 0:
		return d, nil, fmt.Errorf("ledger %q, journal %d: want a name and a number", d.Ledger, d.Journal)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, d.Records); err != nil {
		return d, nil, fmt.Errorf("no records: %w", err)
	}
	if sum := checksum(seal(d.Ledger, d.Journal), compact.Bytes()); sum != d.Checksum {
		return d, nil, fmt.Errorf("checksum is %s, the file says %q", sum, d.Checksum)
	}
	var list []Record
	if err := json.Unmarshal(d.Records, &list); err != nil {
		return d, nil, fmt.Errorf("read records: %w", err)
	}
	records := make(map[uint32]Record, len(list))
	for _, r := range list {
		if _, twice := records[r.JobID]; twice {
			return d, nil, fmt.Errorf("job %d twice", r.JobID)
		}
		records[r.JobID] = r
	}
	return d, records, nil
}

// syncPath makes a file durable as it is; of a folder, its names.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// moveAside keeps an unusable file for people to look at, under a name that
// was free.
func moveAside(path string, now time.Time) (string, error) {
	base := path + ".bad-" + now.UTC().Format("20060102T150405Z")
	name := base
	_, err := os.Lstat(name)
	for n := 1; err == nil; n++ {
		name = fmt.Sprintf("%s-%d", base, n)
		_, err = os.Lstat(name)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.Rename(path, name); err != nil {
		return "", err
	}
	return name, syncPath(filepath.Dir(path))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const sumPrefix = "crc32c:"

func checksum(parts ...[]byte) string {
	var sum uint32
	for _, part := range parts {
		sum = crc32.Update(sum, castagnoli, part)
	}
	return fmt.Sprintf(sumPrefix+"%08x", sum)
}

// seal is the text that checksums cover before a line or the records. So lines of another journal
// are not good in this journal.
func seal(ledger string, journal uint64) []byte { return fmt.Appendf(nil, "%s/%d/", ledger, journal) }

// A journal holds the changes since a snapshot, as lines of text:
//
//	crc32c:XXXXXXXX {"version":2,"ledger":NAME,"journal":8,"after":41}
//	crc32c:XXXXXXXX 42 [{"set":RECORD},{"delete":JOB}]
//	crc32c:XXXXXXXX 43 [{"set":RECORD}]
//
// Each line but the first is one batch: one write, made durable before the next. Batches are
// numbered through all journals. "after" is the last valid batch of the journals before; the lines
// after it are from a write that failed.
//
// A bad line without a good line after it is the end: its write was never finished, and no caller
// got a success. If a good line follows, the file was changed.

// header is the first line of a journal.
type header struct {
	Version int    `json:"version"`
	Ledger  string `json:"ledger"`
	Journal uint64 `json:"journal"`
	After   uint64 `json:"after"`
}

// logged is one change: the record of a job, or that it has none.
type logged struct {
	Set    *Record `json:"set"`
	Delete *uint32 `json:"delete"`
}

// cutLine takes one line off data. It is good if it is whole and its checksum is right.
func cutLine(data, seal []byte) (line, rest []byte, good bool) {
	line, rest, whole := bytes.Cut(data, []byte("\n"))
	sum, line, parted := bytes.Cut(line, []byte(" "))
	return line, rest, whole && parted && string(sum) == checksum(seal, line)
}

// journal is one file that was read up to its header.
type journal struct {
	header
	batches []byte
}

// errUnborn is a journal that was being made, and that no batch is in.
var errUnborn = errors.New("torn")

func readHeader(data []byte, ledger string, number uint64) (journal, error) {
	line, rest, good := cutLine(data, nil)
	j := journal{batches: rest}
	if !good {
		if goodAfter(data, seal(ledger, number)) {
			return j, errors.New("line 1 is not what was written, and what follows it is")
		}
		return j, errUnborn
	}
	if err := json.Unmarshal(line, &j.header); err != nil {
		return j, fmt.Errorf("line 1: %w", err)
	}
	switch {
	case j.Version > version:
		return j, fmt.Errorf("%w: version %d, this gresd reads version %d", ErrNewer, j.Version, version)
	case j.Ledger != ledger || j.Journal != number:
		return j, fmt.Errorf("journal %d of ledger %s: want journal %d of ledger %s", j.Journal, j.Ledger, number, ledger)
	}
	return j, nil
}

// goodAfter reports whether a good line begins in data after its first byte. The line may begin in
// the middle of a line, because the change may have removed the line's end.
func goodAfter(data, seal []byte) bool {
	for len(data) > 0 {
		at := bytes.Index(data[1:], []byte(sumPrefix))
		if at < 0 {
			break
		}
		data = data[1+at:]
		if _, _, good := cutLine(data, seal); good {
			return true
		}
	}
	return false
}

// apply makes the changes of the batches up to upTo. In the last journal, end is true, and the file
// may end in an unfinished write: torn is the number of these bytes. It returns the last batch that
// it made.
func (j *journal) apply(records map[uint32]Record, upTo uint64, end bool) (last uint64, torn int, err error) {
	seal, data := seal(j.Ledger, j.Journal), j.batches
	last = j.After
	for n := 2; len(data) > 0 && last < upTo; n++ {
		line, rest, good := cutLine(data, seal)
		if !good {
			if goodAfter(data, seal) {
				return last, 0, fmt.Errorf("line %d is not what was written, and what follows it is", n)
			}
			if end {
				torn = len(data)
			}
			break
		}
		number, changes, _ := bytes.Cut(line, []byte(" "))
		if want := strconv.FormatUint(last+1, 10); string(number) != want {
			return last, 0, fmt.Errorf("line %d is batch %s: want batch %s", n, number, want)
		}
		if err := applyBatch(records, changes); err != nil {
			return last, 0, fmt.Errorf("line %d: %w", n, err)
		}
		last, data = last+1, rest
	}
	if !end && last != upTo {
		return last, 0, fmt.Errorf("ends with batch %d: want batch %d", last, upTo)
	}
	return last, torn, nil
}

func applyBatch(records map[uint32]Record, text []byte) error {
	var changes []logged
	if err := json.Unmarshal(text, &changes); err != nil {
		return err
	}
	for _, c := range changes {
		switch {
		case c.Set != nil && c.Delete == nil:
			records[c.Set.JobID] = *c.Set
		case c.Delete != nil && c.Set == nil:
			delete(records, *c.Delete)
		default:
			return errors.New("want changes that each set or delete one record")
		}
	}
	return nil
}

// found is the result of the journals.
type found struct {
	last uint64 // number of the last journal
	seq  uint64 // and of its last batch
	torn int    // bytes at its end of a write that was not finished
}

// replay makes the changes of all journals that follow a snapshot. exist is sorted, and read
// returns the text of an existing journal. Every error means that
// the ledger is not to be trusted.
func replay(d document, records map[uint32]Record, exist []uint64, read func(uint64) ([]byte, error)) (found, error) {
	f := found{last: d.Journal}
	from, _ := slices.BinarySearch(exist, d.Journal)
	exist = exist[from:] // those before are in the snapshot
	if len(exist) == 0 {
		return f, fmt.Errorf("journal %d is missing", d.Journal)
	}
	journals := make([]journal, 0, len(exist))
	for i, number := range exist {
		if want := d.Journal + uint64(i); number != want {
			return f, fmt.Errorf("journal %d is missing, and journal %d exists", want, number)
		}
		text, err := read(number)
		if err != nil {
			return f, err
		}
		j, err := readHeader(text, d.Ledger, number)
		if errors.Is(err, errUnborn) && i > 0 && i == len(exist)-1 {
			break
		}
		if err != nil {
			return f, fmt.Errorf("journal %d: %w", number, err)
		}
		journals = append(journals, j)
	}
	for i := range journals {
		upTo, end := uint64(math.MaxUint64), i == len(journals)-1
		if !end {
			upTo = journals[i+1].After
		}
		j := &journals[i]
		if upTo < j.After {
			return f, fmt.Errorf("journal %d begins after batch %d, and journal %d before it ends, after batch %d",
				j.Journal, j.After, j.Journal+1, upTo)
		}
		var err error
		if f.seq, f.torn, err = j.apply(records, upTo, end); err != nil {
			return f, fmt.Errorf("journal %d: %w", j.Journal, err)
		}
		f.last = j.Journal
	}
	return f, nil
}

func journalPath(path string, number uint64) string {
	return fmt.Sprintf("%s.journal-%d", strings.TrimSuffix(path, filepath.Ext(path)), number)
}

// journalsOf are the numbers of the journals that exist, rising.
func journalsOf(path string) ([]uint64, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var numbers []uint64
	for _, e := range entries {
		_, text, _ := strings.Cut(e.Name(), ".journal-")
		number, err := strconv.ParseUint(text, 10, 64)
		if err == nil && e.Name() == filepath.Base(journalPath(path, number)) {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}
