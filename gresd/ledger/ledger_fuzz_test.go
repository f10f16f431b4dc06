// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
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
	first, err := encode(sorted(records))
	if err != nil {
		t.Fatalf("read, but cannot be written: %v", err)
	}
	again, err := decode(first)
	if err != nil {
		t.Fatalf("written, but cannot be read: %v\n%s", err, first)
	}
	second, err := encode(sorted(again))
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
	data, err := encode([]Record{record(7), record(8)})
	if err != nil {
		f.Fatal(err)
	}
	empty, err := encode(nil)
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range [][]byte{data, empty, data[:len(data)/2], nil, []byte("{}"), []byte(`{"version":1,"checksum":"crc32c:00000000","records":[]}`)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if records, err := decode(data); err == nil {
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
		records, err := decode(fmt.Appendf(nil, `{"version":%d,"checksum":%q,"records":%s}`, version, checksum(compact.Bytes()), text))
		if err != nil {
			return
		}
		reread(t, records)
		l := newLedger("", nil)
		if err := l.fill(records); err != nil {
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
