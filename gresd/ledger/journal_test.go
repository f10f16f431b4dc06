// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func appendText(t *testing.T, path string, text []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		t.Fatal(err)
	}
}

// lines are batches of one record each, after h.After.
func lines(t *testing.T, h header, records ...Record) []byte {
	t.Helper()
	var text []byte
	for i, r := range records {
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		text = appendBatch(text, seal(h.Ledger, h.Journal), h.After+uint64(i)+1, fmt.Appendf(nil, `{"set":%s}`, line))
	}
	return text
}

// files is a ledger with a snapshot of job 7 and these journals, from number 1.
func files(t *testing.T, journals ...[]byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "ledger.json")
	text, err := encode(record(7))
	if err != nil {
		t.Fatal(err)
	}
	appendText(t, path, text)
	for i, text := range journals {
		if text != nil {
			appendText(t, journalPath(path, uint64(i+1)), text)
		}
	}
	return path
}

func head(number, after uint64) header {
	return header{Version: version, Ledger: testName, Journal: number, After: after}
}

func ids(l *Ledger) []uint32 {
	got := []uint32{}
	for _, r := range l.List() {
		got = append(got, r.JobID)
	}
	return got
}

func TestJournalsAreReadAfterTheSnapshot(t *testing.T) {
	one, two := head(1, 40), head(2, 42)
	first := appendHeader(nil, one)
	first = append(first, lines(t, one, record(8), record(9))...)
	second := append(appendHeader(nil, two), lines(t, two, record(10))...)
	gone := appendBatch(nil, seal(two.Ledger, two.Journal), 44, []byte(`{"delete":8},{"delete":77}`))

	newest := record(9)
	newest.User = "grace"
	third := head(3, 44)
	last := append(appendHeader(nil, third), lines(t, third, newest)...)

	l := open(t, files(t, first, append(second, gone...), last))
	if got := ids(l); !reflect.DeepEqual(got, []uint32{7, 9, 10}) || !l.Existed() || l.Torn() != 0 {
		t.Errorf("jobs %v, existed %v, torn %d", got, l.Existed(), l.Torn())
	}
	if got, _ := l.Get(9); got.User != "grace" {
		t.Errorf("job 9 is %+v", got)
	}
	// What follows the last batch that counts is of a write that failed.
	undone := append(bytes.Clone(first), lines(t, head(1, 42), record(11))...)
	for _, rest := range [][]byte{undone, undone[:len(undone)-9], append(bytes.Clone(first), "x"...)} {
		l := open(t, files(t, rest, second))
		if got := ids(l); !reflect.DeepEqual(got, []uint32{7, 8, 9, 10}) || l.Torn() != 0 {
			t.Errorf("jobs %v, torn %d", got, l.Torn())
		}
	}
}

// The last write may have been cut anywhere, by a kill or a power cut, and what is
// not there may be zeros: nobody was told of it.
func TestATornEndIsNoError(t *testing.T) {
	h := head(1, 0)
	whole := append(appendHeader(nil, h), lines(t, h, record(8))...)
	more := lines(t, head(1, 1), record(9))
	for length := range more {
		for _, zeros := range []int{0, 5, len(more) - length} {
			end := append(append(bytes.Clone(whole), more[:length]...), make([]byte, zeros)...)
			records := map[uint32]Record{}
			f, err := replay(document{Ledger: testName, Journal: 1}, records, []uint64{1}, func(uint64) ([]byte, error) { return end, nil })
			if err != nil || f != (found{last: 1, seq: 1, torn: length + zeros}) || len(records) != 1 {
				t.Fatalf("%d of %d bytes and %d zeros: found %+v, %d records, %v", length, len(more), zeros, f, len(records), err)
			}
		}
	}
	// And the next writes are found after it.
	l := open(t, files(t, append(whole, more[:len(more)/2]...)))
	if l.Torn() != len(more)/2 {
		t.Errorf("torn %d bytes, want %d", l.Torn(), len(more)/2)
	}
	commit(t, l, 10)
	commit(t, l, 11)
	if got := ids(reopen(t, l)); !reflect.DeepEqual(got, []uint32{7, 8, 10, 11}) {
		t.Errorf("jobs %v", got)
	}
	// A journal that was being begun.
	next := appendHeader(nil, head(2, 1))
	for length := 0; length < len(next); length += 9 {
		l := open(t, files(t, whole, append([]byte{}, next[:length]...)))
		if got := ids(l); !reflect.DeepEqual(got, []uint32{7, 8}) {
			t.Fatalf("%d of %d bytes of a journal: jobs %v", length, len(next), got)
		}
		commit(t, l, 10)
		if got := ids(reopen(t, l)); !reflect.DeepEqual(got, []uint32{7, 8, 10}) {
			t.Fatalf("%d of %d bytes of a journal, and a change: jobs %v", length, len(next), got)
		}
	}
}

func TestAJournalThatWasChangedIsNotBelieved(t *testing.T) {
	h := head(1, 0)
	whole := append(appendHeader(nil, h), lines(t, h, record(8), record(9), record(10))...)
	next := append(appendHeader(nil, head(2, 3)), lines(t, head(2, 3), record(11))...)
	all := bytes.SplitAfter(whole, []byte("\n"))
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	batch := func(text string) []byte {
		return append(appendHeader(nil, h), appendBatch(nil, seal(h.Ledger, h.Journal), 1, []byte(text))...)
	}
	for name, test := range map[string]struct {
		journals [][]byte
		want     string
	}{
		"none":                  {nil, "journal 1 is missing"},
		"the first is missing":  {[][]byte{nil, next}, "journal 1 is missing, and journal 2 exists"},
		"one between":           {[][]byte{whole, nil, next}, "journal 2 is missing, and journal 3 exists"},
		"empty":                 {[][]byte{{}}, "journal 1: torn"},
		"a torn header":         {[][]byte{whole[:20]}, "journal 1: torn"},
		"a line is missing":     {[][]byte{join(all[0], all[1], all[3])}, "journal 1: line 3 is batch 3: want batch 2"},
		"a line twice":          {[][]byte{join(all[0], all[1], all[1])}, "line 3 is batch 1: want batch 2"},
		"no header":             {[][]byte{join(all[1:]...)}, "line 1 is not what was written"},
		"a change in the first": {[][]byte{bytes.Replace(whole, []byte(`"share":30`), []byte(`"share":31`), 1)}, "journal 1: line 2 is not what was written, and what follows it is"},
		"cut, and others after": {[][]byte{whole[:len(whole)-2], next}, "journal 1: ends with batch 2: want batch 3"},
		"of another ledger": {
			[][]byte{appendHeader(nil, header{Version: version, Ledger: "other", Journal: 1})},
			"journal 1 of ledger other: want journal 1 of ledger " + testName,
		},
		"of another number":         {[][]byte{whole, whole}, "journal 1 of ledger " + testName + ": want journal 2"},
		"lines of another journal":  {[][]byte{whole, join(appendHeader(nil, head(2, 0)), all[1])}, "journal 2 begins"},
		"one that begins too early": {[][]byte{append(appendHeader(nil, head(1, 5)), lines(t, head(1, 5), record(8))...), next}, "journal 1 begins after batch 5"},
		"no change":                 {[][]byte{batch(`{}`)}, "want changes that each set or delete one record"},
		"both":                      {[][]byte{batch(`{"set":{"job_id":8},"delete":8}`)}, "want changes that each"},
		"no record":                 {[][]byte{batch(`{"set":7}`)}, "line 2: json"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "lines of another journal" {
				test.want = "" // they are what was never written whole
			}
			path := files(t, test.journals...)
			l, err := Open(path)
			if l == nil {
				t.Fatal(err)
			}
			defer l.Close()
			if test.want == "" {
				return
			}
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error is %v, want …%s", err, test.want)
			}
			if len(l.List()) != 0 || l.Existed() {
				t.Errorf("jobs %v, existed %v", ids(l), l.Existed())
			}
			// All is kept that says something, and a new ledger can be begun at once.
			kept, _ := filepath.Glob(filepath.Dir(path) + "/*.bad-*")
			want := 1
			for _, text := range test.journals {
				if bytes.Count(text, []byte("\n")) > 1 {
					want++
				}
			}
			if len(kept) != want {
				t.Errorf("kept %q, want %d files", kept, want)
			}
			commit(t, l, 1)
			if got := ids(reopen(t, l)); !reflect.DeepEqual(got, []uint32{1}) {
				t.Errorf("afterwards: jobs %v", got)
			}
		})
	}
}

// Each bit counts, but in the last batch, whose change cannot be told from a
// write that was cut.
func TestAJournalChangedInOneBitIsNotBelieved(t *testing.T) {
	h := head(1, 0)
	text := append(appendHeader(nil, h), lines(t, h, record(8), record(9))...)
	end := len(text) - len(lines(t, head(1, 1), record(9)))
	data, err := encode(record(7))
	if err != nil {
		t.Fatal(err)
	}
	for i := range text {
		for bit := range 8 {
			changed := bytes.Clone(text)
			changed[i] ^= 1 << bit
			d, records, err := decode(data)
			if err != nil {
				t.Fatal(err)
			}
			_, err = replay(d, records, []uint64{1}, func(uint64) ([]byte, error) { return changed, nil })
			if i < end && err == nil || i >= end && (err != nil || len(records) != 2) {
				t.Fatalf("bit %d of byte %d of %d (%q): %d records, %v", bit, i, end, changed[i], len(records), err)
			}
		}
	}
}

func TestAJournalOfANewerGresdIsLeftAlone(t *testing.T) {
	path := files(t, appendHeader(nil, header{Version: version + 1, Ledger: testName, Journal: 1}))
	if l, err := Open(path); l != nil || !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "start that gresd again") {
		t.Fatalf("Open: %v, %v", l, err)
	}
	if exist, err := journalsOf(path); err != nil || len(exist) != 1 {
		t.Errorf("journals %v, %v", exist, err)
	}
}

func TestAnAbsentSnapshotTakesItsJournalsWithIt(t *testing.T) {
	h := head(1, 0)
	path := files(t, append(appendHeader(nil, h), lines(t, h, record(8))...), appendHeader(nil, head(2, 1)))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	l := open(t, path)
	if l.Existed() || l.Len() != 0 {
		t.Errorf("existed %v, jobs %v", l.Existed(), ids(l))
	}
	commit(t, l, 1)
	if got := ids(reopen(t, l)); !reflect.DeepEqual(got, []uint32{1}) {
		t.Errorf("jobs %v", got)
	}
}

// A journal does not grow for ever, and what it held is in the snapshot.
func TestALongJournalMakesASnapshot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	l := open(t, path)
	commit(t, l, 1)
	l.mu.Lock()
	l.out.keep = 4 << 10
	l.mu.Unlock()
	for id := uint32(2); id < 40; id++ {
		commit(t, l, id)
		if id%3 == 0 {
			if _, err := l.Delete(id); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := l.List()
	last := l.out.journal
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// 38 records of half a KiB; the first journal has the first 4 KiB of them.
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d, records, err := decode(data)
	if err != nil || len(records) < 4 || d.Journal < 2 || l.Problems() != nil {
		t.Errorf("snapshot with %d records, journal %d, %v; problems %q", len(records), d.Journal, err, l.Problems())
	}
	exist, err := journalsOf(path)
	if err != nil || exist[0] != d.Journal || exist[len(exist)-1] != last {
		t.Errorf("journals %v, %v: want %d to %d", exist, err, d.Journal, last)
	}
	if got := open(t, path).List(); !reflect.DeepEqual(got, want) {
		t.Errorf("jobs %v", got)
	}
}

// A snapshot that cannot be written is said; changes are durable without it.
func TestASnapshotThatFailsIsSaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	l := open(t, path)
	commit(t, l, 1)
	if err := os.Mkdir(path+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	nextJournal(l)
	commit(t, l, 2)
	l = settle(l)
	if p := l.Problems(); len(p) != 1 || !strings.Contains(p[0], path) || !strings.Contains(p[0], "cannot be made shorter") {
		t.Errorf("problems %q", p)
	}
	if got := ids(reopen(t, l)); !reflect.DeepEqual(got, []uint32{1, 2}) {
		t.Errorf("jobs %v", got)
	}
}

// settle waits for snapshots.
func settle(l *Ledger) *Ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.writing {
		l.written.Wait()
	}
	return l
}
