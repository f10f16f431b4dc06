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

// version of the file. A daemon that meets a newer one does not start; one that
// meets an unknown older one starts from live jobs.
const version = 1

// document is the file. The checksum is over the records as compact JSON, so
// that a reformatted file is still good and a changed one is not.
type document struct {
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"`
	Records  json.RawMessage `json:"records"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(compact []byte) string { return checksumText(crc32.Checksum(compact, castagnoli)) }

func checksumText(sum uint32) string { return fmt.Sprintf("crc32c:%08x", sum) }

// encode is the text of the file.
func encode(records []Record) ([]byte, error) {
	lines := make([][]byte, len(records))
	for i, r := range records {
		var err error
		if lines[i], err = json.Marshal(r); err != nil {
			return nil, err
		}
	}
	return assemble(nil, lines), nil
}

// assemble appends the text of the file, one record a line: people read it when
// things go wrong. The checksum does not count the line breaks.
func assemble(text []byte, lines [][]byte) []byte {
	sum := crc32.Update(0, castagnoli, []byte("["))
	for i, line := range lines {
		if i > 0 {
			sum = crc32.Update(sum, castagnoli, []byte(","))
		}
		sum = crc32.Update(sum, castagnoli, line)
	}
	sum = crc32.Update(sum, castagnoli, []byte("]"))
	text = fmt.Appendf(text, "{\"version\":%d,\"checksum\":%q,\"records\":[", version, checksumText(sum))
	for i, line := range lines {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(text, '\n'), line...)
	}
	return append(text, "\n]}\n"...)
}

// decode is the inverse of encode. Every error means that the file is not to
// be trusted.
func decode(data []byte) (map[uint32]Record, error) {
	var d document
	decoder := json.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&d); err != nil {
		return nil, fmt.Errorf("torn or not JSON (%d bytes): %w", len(data), err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the records")
	}
	switch {
	case d.Version > version:
		return nil, fmt.Errorf("%w: version %d, this gresd reads version %d", ErrNewer, d.Version, version)
	case d.Version != version:
		return nil, fmt.Errorf("version %d, this gresd reads version %d", d.Version, version)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, d.Records); err != nil {
		return nil, fmt.Errorf("no records: %w", err)
	}
	if sum := checksum(compact.Bytes()); sum != d.Checksum {
		return nil, fmt.Errorf("checksum is %s, the file says %q", sum, d.Checksum)
	}
	var list []Record
	if err := json.Unmarshal(d.Records, &list); err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	records := make(map[uint32]Record, len(list))
	for _, r := range list {
		if _, twice := records[r.JobID]; twice {
			return nil, fmt.Errorf("job %d twice", r.JobID)
		}
		records[r.JobID] = r
	}
	return records, nil
}

// write puts data in place of path so that, at any kill or power cut, the file
// is either the old or the new one, and the new one once write has returned.
// The temporary name is fixed: the lock lets only one writer be here, and what
// a killed one left is overwritten.
func write(path string, data []byte) error {
	temporary := path + ".tmp"
	if err := writeSynced(temporary, data); err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// syncDir makes a rename durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	if closed := d.Close(); err == nil {
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
		return name, syncDir(filepath.Dir(path))
	}
}
