// SPDX-License-Identifier: Apache-2.0

package waitqueue

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// FuzzQueueFile: the queue of waiting jobs is read as it was written, or is empty. For any file, a
// reservation ends after [reservationTimeout] if its job does not come. Removed jobs are gone.
func FuzzQueueFile(f *testing.F) {
	for _, s := range []string{
		``, `null`, `[]`, `[{}]`, `{}`, `[{"job_id":7,"since":"2026-11-01T12:00:00Z","times":3,"held":["GPU-1","GPU-2"],"seen":"2026-11-01T12:00:00Z"}]`,
		`[{"job_id":7,"times":1},{"job_id":7,"times":2,"held":["a"]},{"job_id":4294967295,"times":4294967295,"held":["b"],"seen":"9999-12-31T23:59:59Z"}]`,
		`[{"job_id":7,"times":2,"held":["a"],"seen":"2026-11-01T12:02:00Z"}]`,
		`[{"job_id":1,"since":"0000-01-01T00:00:00-23:59","held":[""]}]`, `[{"job_id":-1}]`, `[{"job_id":1},`,
	} {
		f.Add([]byte(s), uint32(2))
	}
	dir := f.TempDir()
	path, open := filepath.Join(dir, "waiting.json"), opener(f, dir)
	f.Fuzz(func(t *testing.T, text []byte, reserveAfter uint32) {
		if len(text) > 1<<14 {
			return
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		q := open(reserveAfter)
		q.mu.Lock()
		q.unsaved = true
		q.unlockAndSave()
		again := open(reserveAfter)
		if !sameJobs(q.jobs, again.jobs) {
			t.Fatalf("%+v became %+v", q.jobs, again.jobs)
		}
		now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
		for range len(q.jobs) {
			for range 3 {
				q.expireReservation(now)
				now = now.Add(reservationTimeout)
			}
		}
		if job := q.reservation(); job != nil {
			t.Fatalf("cards are still reserved for %+v", job)
		}
		for _, j := range again.jobs {
			q.Remove(j.ID)
		}
		if len(q.jobs) != 0 {
			t.Fatalf("left: %+v", q.jobs)
		}
		q.RecordNoRoom(Request{JobID: 5, Share: half, Requeues: true})
		if times := q.RequeueCount(5); times != 1 {
			t.Fatalf("the first job of an empty queue: %d times", times)
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
