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

// version of the file. A daemon that meets another one starts from live jobs.
const version = 1

// document is the file. The checksum is over the records as compact JSON, so
// that a reformatted file is still good and a changed one is not.
type document struct {
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"`
	Records  json.RawMessage `json:"records"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(compact []byte) string {
	return fmt.Sprintf("crc32c:%08x", crc32.Checksum(compact, castagnoli))
}

// encode writes one record a line: people read this file when things go wrong.
func encode(records []Record) ([]byte, error) {
	compact, err := json.Marshal(records)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\"version\":%d,\"checksum\":%q,\"records\":[", version, checksum(compact))
	for i, r := range records {
		line, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
		b.Write(line)
	}
	b.WriteString("\n]}\n")
	return b.Bytes(), nil
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
	if d.Version != version {
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
