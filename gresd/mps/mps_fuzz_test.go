// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
)

// FuzzDaemonRecord: what an earlier gresd has kept of a daemon is taken for the user and the
// card that its file is for, or it is removed, and then is no one's.
func FuzzDaemonRecord(f *testing.F) {
	for _, s := range []string{
		``, `{}`, `null`, `{"key":{"Card":"GPU-1","UID":1000},"gid":1000,"token":"ab","pid":77,"start_time":4242}`, `{"key":{"Card":"GPU-1","UID":1000},"token":"ab"}`,
		`{"key":{"Card":"GPU-1","UID":1000},"token":"ab","pid":-1,"start_time":0}`, `{"key":{"Card":"GPU-1","UID":0},"token":"ab","pid":1}`, `{"key":{"Card":"GPU-1","UID":1000},"token":""`,
		`{"key":{"Card":"GPU-1","UID":4294967295},"token":"x","pid":9223372036854775807}`, `{"key":{"Card":"GPU-2","UID":1000},"token":"ab","pid":77}`,
		`{"key":{"Card":"GPU-1","UID":7,"Everyone":true},"token":"ab","pid":77}`,
	} {
		f.Add([]byte(s), "1000")
		f.Add([]byte(s), "x")
	}
	dir := f.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "GPU-1"), 0o700); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		if strings.ContainsAny(name, "/\x00") || len(name) > 100 {
			return
		}
		path := filepath.Join(dir, "GPU-1", name+".json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(path)
		all, err := previousDaemons(dir)
		if err != nil || len(all) > 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		_, statErr := os.Stat(path)
		if len(all) == 0 {
			if statErr == nil {
				t.Fatal("neither taken nor removed")
			}
			return
		}
		rec := all[0]
		if statErr != nil || folderOf(dir, rec.Key).record() != path || rec.Token == "" || rec.PID < 0 {
			t.Fatalf("%s: %+v, %v", path, rec, statErr)
		}
		if err := folderOf(dir, rec.Key).write(rec); err != nil {
			t.Fatal(err)
		}
		if again, err := previousDaemons(dir); err != nil || !slices.Equal(again, all) {
			t.Fatalf("%+v became %+v, %v", all, again, err)
		}
	})
}

// FuzzDaemonAnswer: what a daemon answers, which is its user's: a list of process ids or a
// mistake, and one line for a log.
func FuzzDaemonAnswer(f *testing.F) {
	for _, s := range []string{"", "77\n78\n", "Server 77", "-1", "+7", "99999999999999999999", "0", "a\nb\x1b[2J\x9b2J\u009b31m\u202e\r\n", strings.Repeat("é", 150), "\xff\xfe"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		kept := process.Output{Most: mostOutput}
		if n, err := kept.Write([]byte(text)); n != len(text) || err != nil || kept.String() != text[:min(len(text), mostOutput)] {
			t.Fatalf("%d of %d kept, %v", n, len(text), err)
		}
		pids, err := readServers(text)
		if err == nil && len(pids) != len(strings.Fields(text)) {
			t.Fatalf("%q: %v", text, pids)
		}
		for i, pid := range pids {
			word := strings.Fields(text)[i]
			if n, _ := strconv.Atoi(word); n != pid || pid <= 0 {
				t.Fatalf("%q: %d", word, pid)
			}
		}
		if err != nil && !isLine(err.Error()) {
			t.Fatalf("mistake %q", err)
		}
		for _, line := range []string{lastLine(text), clip(text)} {
			if !isLine(line) {
				t.Fatalf("%q", line)
			}
		}
	})
}

// isLine says that a text is fit for one line of a log.
func isLine(text string) bool {
	return utf8.ValidString(text) && len(text) < 600 && !strings.ContainsFunc(text, unicode.IsControl)
}
