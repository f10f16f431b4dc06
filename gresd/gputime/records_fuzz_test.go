// SPDX-License-Identifier: Apache-2.0

package gputime

import (
	"encoding/binary"
	"testing"
	"time"
	"unsafe"
)

// fuzzedRecords is one look at the buffer: what the driver has put there, of any kind,
// and the time until then.
type fuzzedRecords struct {
	ours    time.Duration // since the look before
	puts    uint32
	dropped bool
	record  []bufferRecord // as many as the input has, then again from the first
}

// looks takes an input apart: 8 bytes for a look, then 16 for each of its records.
func looks(input []byte) []fuzzedRecords {
	var all []fuzzedRecords
	for len(input) >= 8 && len(all) < 32 {
		head := input[:8]
		input = input[8:]
		l := fuzzedRecords{
			ours: time.Duration(binary.LittleEndian.Uint32(head)) * time.Microsecond, puts: uint32(binary.LittleEndian.Uint16(head[4:])),
			dropped: head[6]&1 != 0,
		}
		for n := int(head[7] % 16); n > 0 && len(input) >= 16; n-- {
			l.record = append(l.record, bufferRecord{
				kind: uint16(input[1]), tag: input[0], vm: input[2], seq: uint16(input[3]),
				pid: binary.LittleEndian.Uint32(input[4:]), at: binary.LittleEndian.Uint64(input[8:]),
			})
			input = input[16:]
		}
		all = append(all, l)
	}
	return all
}

func (l fuzzedRecords) bytes() []byte {
	out := binary.LittleEndian.AppendUint32(nil, uint32(l.ours/time.Microsecond))
	out = binary.LittleEndian.AppendUint16(out, uint16(l.puts))
	lost := byte(0)
	if l.dropped {
		lost = 1
	}
	out = append(out, lost, byte(len(l.record)))
	for _, r := range l.record {
		out = append(out, r.tag, byte(r.kind), r.vm, byte(r.seq))
		out = binary.LittleEndian.AppendUint32(out, uint32(r.pid))
		out = binary.LittleEndian.AppendUint64(out, r.at)
	}
	return out
}

// FuzzSwitches: whatever the driver has written into its buffer, each record is taken
// once; no process had the card for less than nothing, all together had it for no longer
// than our clock and jumps of the card's clock allow, and what was told stays told.
func FuzzSwitches(f *testing.F) {
	const s = uint64(time.Second)
	turn := func(pid uint32, from, to uint64) []bufferRecord {
		return []bufferRecord{{tag: tagStart, pid: pid, at: from}, {tag: tagEnd, pid: pid, at: to}}
	}
	add := func(all ...fuzzedRecords) {
		var input []byte
		for _, l := range all {
			input = append(input, l.bytes()...)
		}
		f.Add(input)
	}
	add(fuzzedRecords{time.Second, 2, false, turn(1, 5*s, 6*s)}, fuzzedRecords{time.Second, 2, true, turn(2, 6*s, 7*s)})
	add(fuzzedRecords{time.Second, 1, false, turn(1, 5*s, 6*s)}, fuzzedRecords{ours: time.Minute}, fuzzedRecords{time.Second, 2, false, turn(1, 9*s, 8*s)})
	add(fuzzedRecords{time.Second, records - 1, false, turn(1, 1, ^uint64(0))}, fuzzedRecords{time.Second, 65535, false, turn(0, 1<<63, 1<<63-1)})
	add(fuzzedRecords{time.Second, 2, false, turn(1, 9*s, 8*s)}, fuzzedRecords{time.Hour, 2, false, turn(1, s, 1<<62)})
	add(fuzzedRecords{time.Second, 2, false, turn(1, 5*s, 1<<61)}, fuzzedRecords{time.Second, 2, false, turn(1, 7*s, 8*s)})
	f.Fuzz(func(t *testing.T, input []byte) {
		tr := &trace{header: make([]byte, pageSize), records: make([]byte, records*unsafe.Sizeof(bufferRecord{}))}
		header := (*bufferHeader)(unsafe.Pointer(&tr.header[0]))
		a, ours, told := newAccount(), int64(time.Hour), int64(0)
		most := time.Duration(0)
		var before map[uint32]time.Duration
		for _, l := range looks(input) {
			ours += int64(l.ours)
			for i := range l.puts {
				if len(l.record) > 0 {
					at := uintptr((header.put+i)%records) * unsafe.Sizeof(bufferRecord{})
					*(*bufferRecord)(unsafe.Pointer(&tr.records[at])) = l.record[int(i)%len(l.record)]
				}
			}
			header.put += l.puts // of any size: the driver's word
			if header.dropped = 0; l.dropped {
				header.dropped = 1
			}
			taken := uint32(0)
			untold := tr.untold
			lost := tr.take(func(s Switch) { a.add(s, ours); taken++ })
			if lost != l.dropped || tr.untold-untold != l.puts%records || taken > l.puts%records || tr.get != header.put%records {
				t.Fatalf("%d of %d records, lost %v, %d to be told", taken, l.puts%records, lost, tr.untold-untold)
			}
			if lost {
				a.lost()
			}
			a.until(ours)
			most += l.ours + time.Duration(taken)*time.Duration(setBack+setAhead)
			before, told = checkAccount(t, a, before, told, most)
		}
	})
}

// checkAccount returns what was told, for the next check. most is what all processes
// together can have had.
func checkAccount(t *testing.T, a *account, before map[uint32]time.Duration, told int64, most time.Duration) (map[uint32]time.Duration, int64) {
	t.Helper()
	now, all := map[uint32]time.Duration{}, time.Duration(0)
	for pid, u := range a.use {
		had := u.Had
		if had < before[pid] {
			t.Fatalf("process %d had the card for %v, now for %v", pid, before[pid], had)
		}
		now[pid] = had
		if all += had; all < 0 || all > most {
			t.Fatalf("together %v, want at most %v: %v", all, most, a.uses())
		}
	}
	up := a.upTo()
	if up < told {
		t.Fatalf("all was counted up to %d, now up to %d", told, up)
	}
	return now, up
}
