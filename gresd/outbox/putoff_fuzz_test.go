// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// FuzzQueuedFile: jobs that an earlier gresd has put off: none waits longer, once its
// cards are well, than it did when it was put off, whatever the clock was set to.
func FuzzQueuedFile(f *testing.F) {
	for _, s := range []string{
		``, `null`, `{}`, `[]`, `{"7":{"at":"2026-11-01T12:00:00Z","earliest_ns":125000000000}}`, `{"7":{"conf":"/a","at":"9999-12-31T23:59:59-23:00","earliest_ns":9223372036854775807}}`,
		`{"7":{"at":"0000-01-01T00:00:00Z","earliest_ns":-9223372036854775808},"8":{}}`, `{"-1":{}}`, `{"7":{"at":"2031-11-01T12:00:00Z","earliest_ns":125000000000}}`, `{"x":{}}`, `{"4294967296":{}}`, `{"7":{"at":"2026-11-01T12:00:00Z"},"8":3}`,
	} {
		f.Add([]byte(s), uint32(7))
	}
	path := filepath.Join(f.TempDir(), "queued.json")
	now := time.Date(2026, 11, 1, 12, 1, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text []byte, id uint32) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		var q queued
		if err := q.open(path, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		for id, job := range q.all() {
			if left := job.left(now); left < 0 || left > max(0, job.Earliest) {
				t.Fatalf("job %d: %+v: %s are left", id, job, left)
			}
		}
		many := len(q.jobs)
		if err := q.add(id, putOff{"/c", now, time.Minute}); err != nil {
			t.Fatal(err)
		}
		if n := len(q.jobs); n > mostQueued || n < min(many, 1) || q.jobs[id].left(now.Add(time.Second)) != time.Minute-time.Second {
			t.Fatalf("%d of %d jobs; job %d: %+v", n, many, id, q.jobs[id])
		}
		var again queued
		if err := again.open(path, slog.New(slog.DiscardHandler)); err != nil || len(again.jobs) != len(q.jobs) {
			t.Fatalf("after a restart %+v, %v; want %+v", again.jobs, err, q.jobs)
		}
		for id, job := range q.jobs {
			if other := again.jobs[id]; other.Conf != job.Conf || !other.At.Equal(job.At) || other.Earliest != job.Earliest {
				t.Fatalf("job %d: %+v became %+v", id, job, other)
			}
		}
		for id := range again.all() {
			if err := again.forget(id); err != nil {
				t.Fatal(err)
			}
		}
		if again.any() {
			t.Fatalf("not forgotten: %+v", again.jobs)
		}
	})
}
