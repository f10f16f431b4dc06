// SPDX-License-Identifier: Apache-2.0

// Package records reads the ledger of gresd as an outsider does.
package records

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"strings"
)

// Read reads gresd's durable record, by job, with nothing of gresd's own code.
// gresd may be writing: what it has not written whole is not there yet.
func Read(path string) (map[uint32]json.RawMessage, error) {
	for tries := 0; ; tries++ {
		before, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return map[uint32]json.RawMessage{}, nil // no job was here yet
		}
		if err != nil {
			return nil, err
		}
		records, err := recordsOf(before, strings.TrimSuffix(path, ".json")+".journal-")
		if err == nil || tries == 10 {
			return records, err
		}
		if after, _ := os.ReadFile(path); string(after) == string(before) {
			return nil, err
		} // else the journals go with the new snapshot
	}
}

// recordsOf reads a snapshot, and the journals that follow it.
func recordsOf(text []byte, journals string) (map[uint32]json.RawMessage, error) {
	var file struct {
		Version          int
		Checksum, Ledger string
		Journal          int
		Records          []json.RawMessage
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("ledger, %d bytes: %w", len(text), err)
	}
	compact, err := json.Marshal(file.Records)
	if err != nil {
		return nil, err
	}
	sum := Sum(fmt.Sprintf("%s/%d/%s", file.Ledger, file.Journal, compact))
	if file.Version == 1 { // no journals
		sum = Sum(string(compact))
	}
	if file.Checksum != sum || file.Version != 1 && file.Version != 2 {
		return nil, fmt.Errorf("ledger: version %d, checksum %s, want 1 or 2, %s", file.Version, file.Checksum, sum)
	}
	records := map[uint32]json.RawMessage{}
	for _, r := range file.Records {
		id, err := jobOf(r)
		if err != nil {
			return nil, err
		}
		if _, twice := records[id]; twice {
			return nil, fmt.Errorf("ledger: job %d twice", id)
		}
		records[id] = r
	}
	if file.Version == 1 {
		return records, nil
	}
	all, after, err := batchesOf(file.Ledger, file.Journal, journals)
	for number := after + 1; err == nil && len(all[number]) > 0; number++ {
		err = change(records, all[number])
	}
	return records, err
}

// batchesOf are the batches of all journals, by their numbers, and the number
// before the first. A later journal says which batches of those before count.
func batchesOf(ledger string, first int, journals string) (map[int]string, int, error) {
	all, start := map[int]string{}, 0
	for n := first; ; n++ {
		text, err := os.ReadFile(fmt.Sprint(journals, n))
		if errors.Is(err, fs.ErrNotExist) && n > first {
			return all, start, nil
		}
		if err != nil {
			return nil, 0, err
		}
		var head struct {
			Ledger         string
			Journal, After int
		}
		for i, line := range strings.SplitAfter(string(text), "\n") {
			sum, line, _ := strings.Cut(line, " ")
			line, whole := strings.CutSuffix(line, "\n")
			seal := fmt.Sprintf("%s/%d/", ledger, n)
			if i == 0 {
				seal = ""
			}
			switch good := whole && sum == Sum(seal+line); {
			case !good && i == 0 && n == first:
				return nil, 0, fmt.Errorf("journal %d has no beginning", n)
			case !good:
			case i > 0:
				var number int
				if _, err := fmt.Sscan(line, &number); err != nil {
					return nil, 0, err
				}
				_, all[number], _ = strings.Cut(line, " ")
				continue
			default:
				if err := json.Unmarshal([]byte(line), &head); err != nil || head.Ledger != ledger || head.Journal != n {
					return nil, 0, fmt.Errorf("journal %d says %s: %w", n, line, err)
				}
				for number := range all {
					if number > head.After {
						delete(all, number)
					}
				}
				if n == first {
					start = head.After
				}
				continue
			}
			break // at the first line that is not good
		}
	}
}

func change(records map[uint32]json.RawMessage, batch string) error {
	var changes []struct {
		Set    json.RawMessage
		Delete uint32
	}
	if err := json.Unmarshal([]byte(batch), &changes); err != nil {
		return err
	}
	for _, c := range changes {
		if c.Set == nil {
			delete(records, c.Delete)
			continue
		}
		id, err := jobOf(c.Set)
		if err != nil {
			return err
		}
		records[id] = c.Set
	}
	return nil
}

func jobOf(record json.RawMessage) (uint32, error) {
	var r struct {
		Job uint32 `json:"job_id"`
	}
	err := json.Unmarshal(record, &r)
	return r.Job, err
}

// Sum is the checksum of a text as the ledger writes it.
func Sum(text string) string {
	return fmt.Sprintf("crc32c:%08x", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
}
