// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A journal holds the changes since a snapshot, as lines of text:
//
//	crc32c:XXXXXXXX {"version":2,"ledger":NAME,"journal":8,"after":41}
//	crc32c:XXXXXXXX 42 [{"set":RECORD},{"delete":JOB}]
//	crc32c:XXXXXXXX 43 [{"set":RECORD}]
//
// Each line but the first is one batch: one write, made durable before the next.
// Batches are numbered through all journals. "after" is the last batch of the
// journals before that counts: what follows it there is of a write that failed.
//
// So a line that is not good is the end, if no good line follows: its write was
// never finished, and nobody was told of it. If one follows, the file was changed.

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

// seal is what the checksums of batches cover before the line: a line of another
// journal is not good in this one.
func (h *header) seal() []byte { return fmt.Appendf(nil, "%s/%d/", h.Ledger, h.Journal) }

func appendHeader(text []byte, h header) []byte {
	line, _ := json.Marshal(h) // numbers and a string of plain letters
	return appendLine(text, nil, line)
}

func appendBatch(text, seal []byte, number uint64, changes []byte) []byte {
	return appendLine(text, seal, strconv.AppendUint(nil, number, 10), []byte(" ["), changes, []byte("]"))
}

func appendLine(text, seal []byte, parts ...[]byte) []byte {
	sum := crc32.Update(0, castagnoli, seal)
	for _, part := range parts {
		sum = crc32.Update(sum, castagnoli, part)
	}
	text = append(append(text, checksumText(sum)...), ' ')
	for _, part := range parts {
		text = append(text, part...)
	}
	return append(text, '\n')
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
	want := header{Ledger: ledger, Journal: number}
	line, rest, good := cutLine(data, nil)
	j := journal{batches: rest}
	if !good {
		if goodAfter(data, want.seal()) {
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

// goodAfter says whether a good line begins in data after its first byte, on a line
// of its own or not: the end of the line before it may be what was changed.
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

// apply makes the changes of the batches up to the last that counts. In the last
// journal, end is true, the file may end in what was not written whole: torn is the
// number of these bytes. It returns the last batch that was made.
func (j *journal) apply(records map[uint32]Record, upTo uint64, end bool) (last uint64, torn int, err error) {
	seal, data := j.seal(), j.batches
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

// found is what the journals say.
type found struct {
	last uint64 // number of the last journal
	seq  uint64 // and of its last batch
	torn int    // bytes at its end of a write that was not finished
}

// replay makes the changes of all journals that follow a snapshot. read returns
// the text of one of those that exist, which are sorted. Every error means that
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

// journalPrefix is the path of a journal without its number.
func journalPrefix(path string) string {
	return strings.TrimSuffix(path, filepath.Ext(path)) + ".journal-"
}

func journalPath(path string, number uint64) string {
	return journalPrefix(path) + strconv.FormatUint(number, 10)
}

// journalsOf are the numbers of the journals that exist, rising.
func journalsOf(path string) ([]uint64, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	prefix := filepath.Base(journalPrefix(path))
	var numbers []uint64
	for _, e := range entries {
		text, is := strings.CutPrefix(e.Name(), prefix)
		number, err := strconv.ParseUint(text, 10, 64)
		if is && err == nil && strconv.FormatUint(number, 10) == text {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}
