// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func sorted(records map[uint32]Record) []Record {
	list := slices.Collect(maps.Values(records))
	slices.SortFunc(list, func(a, b Record) int { return cmp.Compare(a.JobID, b.JobID) })
	return list
}

// reread writes what was read and reads it again: both must be the same, or a
// restart of gresd would change what jobs hold.
func reread(t *testing.T, records map[uint32]Record) {
	t.Helper()
	first, err := encode(sorted(records)...)
	if err != nil {
		t.Fatalf("read, but cannot be written: %v", err)
	}
	_, again, err := decode(first)
	if err != nil {
		t.Fatalf("written, but cannot be read: %v\n%s", err, first)
	}
	second, err := encode(sorted(again)...)
	if err != nil || !bytes.Equal(first, second) {
		t.Fatalf("%v: first\n%s\nthen\n%s", err, first, second)
	}
	for id, r := range again {
		if r.JobID != id || records[id].State != r.State || len(records[id].Placement.Cards) != len(r.Placement.Cards) {
			t.Fatalf("job %d became %+v, was %+v", id, r, records[id])
		}
	}
}

// FuzzDecode: a file is read as it was written, or not at all.
func FuzzDecode(f *testing.F) {
	data, err := encode(record(7), record(8))
	if err != nil {
		f.Fatal(err)
	}
	empty, err := encode()
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range [][]byte{data, empty, data[:len(data)/2], nil, []byte("{}"), []byte(`{"version":1,"checksum":"crc32c:00000000","records":[]}`)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, records, err := decode(data); err == nil {
			reread(t, records)
		}
	})
}

// FuzzRecords has the right checksum always, so that the records are reached.
func FuzzRecords(f *testing.F) {
	full, err := json.Marshal([]Record{record(7), record(8)})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{
		string(full), "[]", "null", "[{}]", "[7]", `[{"job_id":1},{"job_id":1}]`, `[{"job_id":4294967296}]`, `[{"job_id":1,"JOB_ID":2}]`,
		`[{"state":"granted","placement":{"cards":[{"share":4294967295,"memory_bytes":18446744073709551615},{"share":4294967295}]}}]`,
		`[{"created":"9999-12-31T23:59:60Z"}]`, `[{"created":"2026-08-01T12:00:00+14:00","user":"\u0000\u2028\ud800<&>"}]`, `[{"restarts":-1,"request":{"memory":"8G"}}]`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var compact bytes.Buffer
		if json.Compact(&compact, []byte(text)) != nil {
			return
		}
		now := document{Version: version, Ledger: testName, Journal: 1}
		_, records, err := decode(fmt.Appendf(nil, `{"version":%d,"checksum":%q,"ledger":%q,"journal":1,"records":%s}`, version, checksum(seal(now.Ledger, now.Journal), compact.Bytes()), testName, text))
		if err != nil {
			return
		}
		reread(t, records)
		l := newLedger("", nil)
		if err := l.loadRecords(records); err != nil {
			t.Fatal(err)
		}
		l.InUse()
		for _, r := range l.List() {
			if got, known := l.Get(r.JobID); !known || got.JobID != r.JobID {
				t.Fatalf("job %d is listed, and is %+v, %v", r.JobID, got, known)
			}
		}
	})
}

// FuzzReplay: a journal is read up to where it is whole, what was read is read
// again, and a change that follows is found.
func FuzzReplay(f *testing.F) {
	h := head(1, 3)
	var seeds [][]byte
	text := appendHeader(nil, h)
	for i, id := range []uint32{7, 8} {
		line, err := json.Marshal(record(id))
		if err != nil {
			f.Fatal(err)
		}
		seeds = append(seeds, bytes.Clone(text))
		text = appendBatch(text, seal(h.Ledger, h.Journal), h.After+uint64(i)+1, fmt.Appendf(nil, `{"set":%s},{"delete":9}`, line))
	}
	for _, s := range append(seeds, text, text[:len(text)-1], text[:len(text)/2], append(bytes.Clone(text), make([]byte, 512)...), bytes.Replace(text, []byte("ada"), []byte("bob"), 1), nil) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text []byte) { checkReplay(t, text) })
}

// FuzzBatches has the right checksums always, so that the changes are reached. Each
// line is a batch.
func FuzzBatches(f *testing.F) {
	full, err := json.Marshal(record(7))
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{
		"4 [" + `{"set":` + string(full) + `}]`, "4 []\n5 []", "4 [{\"delete\":7}]\n5 [{\"set\":{}},{\"delete\":0}]", "4 [{}]", "4 null", "04 []", "4", "",
		`4 [{"set":{"job_id":1},"delete":1}]`, "4 [{\"SET\":{\"job_id\":1}}]\n6 []", "18446744073709551615 []", `4 [{"delete":-1}]`,
	} {
		f.Add(s)
	}
	h := head(1, 3)
	f.Fuzz(func(t *testing.T, batches string) {
		text := appendHeader(nil, h)
		for line := range strings.SplitSeq(batches, "\n") {
			text = appendLine(text, seal(h.Ledger, h.Journal), []byte(line))
		}
		checkReplay(t, text)
	})
}

func checkReplay(t *testing.T, text []byte) {
	t.Helper()
	read := func(text []byte) (map[uint32]Record, found, error) {
		records := map[uint32]Record{5: record(5)}
		f, err := replay(document{Ledger: testName, Journal: 1}, records, []uint64{1, 2}, func(n uint64) ([]byte, error) {
			return map[uint64][]byte{1: text, 2: nil}[n], nil
		})
		return records, f, err
	}
	records, f, err := read(text)
	if err != nil {
		return
	}
	reread(t, records)
	// Without the torn end it says the same, and then the next change is found.
	if f.torn > len(text) {
		t.Fatalf("torn: %d of %d bytes", f.torn, len(text))
	}
	text = text[:len(text)-f.torn]
	h := header{Ledger: testName, Journal: 1}
	again, g, err := read(appendBatch(bytes.Clone(text), seal(h.Ledger, h.Journal), f.seq+1, []byte(`{"delete":5}`)))
	if delete(records, 5); err != nil || g.torn != 0 || g.seq != f.seq+1 || len(again) != len(records) {
		t.Fatalf("one more change: %+v, then %+v, %d records, then %d: %v", f, g, len(records), len(again), err)
	}
}
