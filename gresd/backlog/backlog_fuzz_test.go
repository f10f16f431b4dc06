// SPDX-License-Identifier: Apache-2.0

package backlog

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// FuzzLine: the line of waiting jobs is read as it was written, or is empty; whatever
// it says, cards are held for no job longer than [HoldFor] that does not come,
// and jobs that leave are gone.
func FuzzLine(f *testing.F) {
	for _, s := range []string{
		``, `null`, `[]`, `[{}]`, `{}`, `[{"job_id":7,"since":"2026-11-01T12:00:00Z","times":3,"held":["GPU-1","GPU-2"],"seen":"2026-11-01T12:00:00Z"}]`,
		`[{"job_id":7,"times":1},{"job_id":7,"times":2,"held":["a"]},{"job_id":4294967295,"times":4294967295,"held":["b"],"seen":"9999-12-31T23:59:59Z"}]`,
		`[{"job_id":7,"times":2,"held":["a"],"seen":"2026-11-01T12:02:00Z"}]`,
		`[{"job_id":1,"since":"0000-01-01T00:00:00-23:59","held":[""]}]`, `[{"job_id":-1}]`, `[{"job_id":1},`,
	} {
		f.Add([]byte(s), uint32(2))
	}
	path := filepath.Join(f.TempDir(), "waiting.json")
	f.Fuzz(func(t *testing.T, text []byte, patience uint32) {
		if len(text) > 1<<14 {
			return
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Open(path, patience, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.save(); err != nil {
			t.Fatalf("read, but cannot be written: %v", err)
		}
		again, err := Open(path, patience, slog.New(slog.DiscardHandler))
		if err != nil || !sameJobs(l.jobs, again.jobs) {
			t.Fatalf("%v: %+v became %+v", err, l.jobs, again.jobs)
		}
		now := start
		for range len(l.jobs) {
			if _, ok := l.Holder(); !ok {
				break
			}
			for range 3 {
				if _, err := l.Look(now, no); err != nil {
					t.Fatal(err)
				}
				now = now.Add(HoldFor)
			}
		}
		if job, ok := l.Holder(); ok {
			t.Fatalf("cards are still held for %+v", job)
		}
		for _, j := range again.jobs {
			if err := l.Leave(j.ID); err != nil {
				t.Fatal(err)
			}
		}
		if left := l.Jobs(); len(left) != 0 {
			t.Fatalf("left: %+v", left)
		}
		if times, err := l.NoRoom(5, half, now); err != nil || times != 1 {
			t.Fatalf("the first job of an empty line: %d times, %v", times, err)
		}
	})
}

// sameJobs compares times as moments: a file may name their zones.
func sameJobs(a, b []Job) bool {
	if len(a) != len(b) {
		return false
	}
	for i, x := range a {
		y := b[i]
		if !x.Since.Equal(y.Since) || !x.Seen.Equal(y.Seen) {
			return false
		}
		x.Since, x.Seen, y.Since, y.Seen = time.Time{}, time.Time{}, time.Time{}, time.Time{}
		if len(x.Held) == 0 && len(y.Held) == 0 {
			x.Held, y.Held = nil, nil
		}
		if !reflect.DeepEqual(x, y) {
			return false
		}
	}
	return true
}
