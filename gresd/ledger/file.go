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
	"os"
	"path/filepath"
	"time"
)

// version of the files. A daemon that meets a newer one does not start; one that
// meets an older one starts from live jobs.
const version = 2

// document is the snapshot, ledger.json: the records before the first line of
// the journal that it names, or later. A change that is in both is made twice,
// which changes nothing. The checksum is over the names and the records as
// compact JSON, so that a reformatted file is still good and a changed one is not.
type document struct {
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"`
	Ledger   string          `json:"ledger"`  // name of this ledger, drawn when it was begun
	Journal  uint64          `json:"journal"` // number of the first that is to be read
	Records  json.RawMessage `json:"records"`
}

// seal is what the checksum covers before the records.
func (d *document) seal() []byte {
	return fmt.Appendf(nil, "%s/%d/", d.Ledger, d.Journal)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(parts ...[]byte) string {
	var sum uint32
	for _, part := range parts {
		sum = crc32.Update(sum, castagnoli, part)
	}
	return checksumText(sum)
}

const sumPrefix = "crc32c:"

func checksumText(sum uint32) string { return fmt.Sprintf(sumPrefix+"%08x", sum) }

// assemble appends the text of a snapshot, one record a line: people read it when
// things go wrong. The checksum does not count the line breaks.
func assemble(text []byte, ledger string, journal uint64, lines [][]byte) []byte {
	d := document{Version: version, Ledger: ledger, Journal: journal}
	sum := crc32.Update(0, castagnoli, append(d.seal(), '['))
	for i, line := range lines {
		if i > 0 {
			sum = crc32.Update(sum, castagnoli, []byte(","))
		}
		sum = crc32.Update(sum, castagnoli, line)
	}
	sum = crc32.Update(sum, castagnoli, []byte("]"))
	text = fmt.Appendf(text, "{\"version\":%d,\"checksum\":%q,\"ledger\":%q,\"journal\":%d,\"records\":[",
		version, checksumText(sum), ledger, journal)
	for i, line := range lines {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(text, '\n'), line...)
	}
	return append(text, "\n]}\n"...)
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
	if sum := checksum(d.seal(), compact.Bytes()); sum != d.Checksum {
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
	err = f.Sync()
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// moveAside keeps an unusable file for people to look at, under a name that
// was free.
func moveAside(path string, now time.Time) (string, error) {
	base := path + ".bad-" + now.UTC().Format("20060102T150405Z")
	for n := 0; ; n++ {
		name := base
		if n > 0 {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		if _, err := os.Lstat(name); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if err := os.Rename(path, name); err != nil {
			return "", err
		}
		return name, syncPath(filepath.Dir(path))
	}
}
