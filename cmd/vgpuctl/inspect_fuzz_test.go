// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// mostOutput is above what the fullest file takes: a line of 100 bytes for each
// of 16 cards of 4096 processes, and some more of JSON.
const mostOutput = 24 << 20

// FuzzInspect: whatever a file holds, inspect shows it or says what it is not;
// and shows no byte that a terminal would obey.
func FuzzInspect(f *testing.F) {
	dir := f.TempDir()
	spec := libvgpu.GrantSpec{JobID: 7, UID: 33, GID: 33, Created: time.Unix(1700000000, 0), Cards: []libvgpu.GrantCard{{UUID: uuid, MemLimit: 8 << 30, Share: 30, Cores: 25}}}
	grant := filepath.Join(dir, "grant")
	g, err := libvgpu.CreateGrant(grant, spec)
	if err != nil {
		f.Fatal(err)
	}
	defer g.Close()
	image, err := os.ReadFile(grant)
	if err != nil {
		f.Fatal(err)
	}
	cache := filepath.Join(dir, "cache")
	if err := libvgpu.CreateCache(cache, spec, uint32(os.Getuid()), uint32(os.Getgid())); err != nil {
		f.Fatal(err)
	}
	const header, hami = 2097152, 2008953
	head := make([]byte, 3072)
	c, err := os.Open(cache)
	if err == nil {
		_, err = c.ReadAt(head, header)
		c.Close()
	}
	if err != nil {
		f.Fatal(err)
	}
	start, _ := binary.Append(nil, binary.NativeEndian, []int32{19920718, 1, 2})
	number := func(n uint64) []byte { return binary.NativeEndian.AppendUint64(nil, n) }

	f.Add(uint8(0), int64(0), []byte{}, int64(0), []byte{})
	f.Add(uint8(1), int64(128), []byte("\x1b[2J\x1b]0;you\x07\nroot"), int64(32), number(1<<63))
	f.Add(uint8(2), int64(0), []byte{}, int64(0), []byte{})
	f.Add(uint8(2), int64(header+32), []byte{9}, int64(header+3072), number(7<<32|9))
	f.Add(uint8(2), int64(header+64), []byte("\x1b[31m\u202e"), int64(header+832), number(1<<64-1))
	f.Add(uint8(3), int64(2008896), []byte{2}, int64(1856), []byte{1, 1, 1, 1})
	f.Add(uint8(3), int64(56), []byte{1}, int64(2008912), number(253402300800))
	f.Add(uint8(3), int64(56), number(1<<64-1), int64(64), bytes.Repeat([]byte{0x9b}, 96))
	f.Fuzz(func(t *testing.T, kind uint8, at1 int64, b1 []byte, at2 int64, b2 []byte) {
		path := filepath.Join(t.TempDir(), "file")
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		put := func(at int64, b []byte) {
			if _, err := file.WriteAt(b, at); err != nil {
				t.Fatal(err)
			}
		}
		var size int64
		switch kind % 4 {
		case 0: // nothing but what the fuzzer makes
			size = max(at1%(8<<20), 0)
			at1 = 0
		case 1:
			size = int64(len(image))
			put(0, image)
		case 2:
			size = libvgpu.CacheSize
			put(header, head)
		case 3:
			size = hami
			put(0, start)
		}
		for _, p := range []struct {
			at int64
			b  []byte
		}{{at1, b1}, {at2, b2}} {
			if p.at >= 0 && p.at < size {
				put(p.at, p.b)
			}
		}
		if err := file.Truncate(size); err != nil {
			t.Fatal(err)
		}
		for _, asJSON := range []bool{false, true} {
			var out bytes.Buffer
			began := time.Now()
			err := (&settings{json: asJSON}).inspect(&out, path)
			if took := time.Since(began); took > 10*time.Second || out.Len() > mostOutput {
				t.Fatalf("%d bytes in %s", out.Len(), took)
			}
			if err != nil {
				if !errors.Is(err, libvgpu.ErrNotHAMi) && !strings.Contains(err.Error(), "schedule is being written") {
					t.Fatal(err)
				}
				continue
			}
			if bad := bytes.IndexFunc(out.Bytes(), func(r rune) bool { return r != '\n' && (r < ' ' || r > '~') }); bad >= 0 {
				t.Fatalf("byte %d of what is shown: %q", bad, out.Bytes()[max(bad-40, 0):min(bad+40, out.Len())])
			}
			if asJSON && !json.Valid(out.Bytes()) {
				t.Fatalf("not JSON: %s", out.Bytes())
			}
		}
	})
}
