// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"os"
	"strings"
	"testing"
)

// mapped returns what this process has mapped of a folder's files, also of those that
// have been deleted.
func mapped(t *testing.T, dir string) (files []string) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if _, path, ok := strings.Cut(line, dir); ok {
			files = append(files, strings.TrimSpace(path))
		}
	}
	return files
}

// Of a job, its grant is mapped for as long as it lives, and no longer; its cache never
// is, because its owner can cut it.
func TestOnlyGrantsOfOpenJobsAreMapped(t *testing.T) {
	l := testLayout(t)
	s := newStore(t, l)
	want := func(s *Store, when string, n int) {
		t.Helper()
		files := mapped(t, s.Dir(7))
		if len(files) != n {
			t.Errorf("%s, %d files are mapped, want %d: %q", when, len(files), n, files)
		}
		for _, f := range files {
			if !strings.HasPrefix(f, "/grant") {
				t.Errorf("%s, %q is mapped", when, f)
			}
		}
	}
	for range 2 { // the second has the number of a job that is there
		if err := s.Create(SpecOf(record(7, nobody)), nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Cache(7, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Ended(7); err != nil {
		t.Fatal(err)
	}
	want(s, "of a job that lives", 1)
	if _, err := s.Remove(7); err != nil {
		t.Fatal(err)
	}
	want(s, "of a job that was removed", 0)

	if err := s.Create(SpecOf(record(7, nobody)), nil); err != nil {
		t.Fatal(err)
	}
	s.Close()
	want(s, "after a restart", 0)
	next := newStore(t, l)
	other := record(7, nobody)
	other.Placement.Cards[0].Memory *= 2
	if err := next.Adopt(other); err == nil {
		t.Fatal("another job's grant was adopted")
	}
	want(next, "of a grant that was not adopted", 0)
	for range 2 {
		if err := next.Adopt(record(7, nobody)); err != nil {
			t.Fatal(err)
		}
	}
	want(next, "of a job that was adopted", 1)
	next.Revoke(7)
	next.Close()
	if err := newStore(t, l).Adopt(record(7, nobody)); err == nil {
		t.Fatal("a revoked grant was adopted")
	}
	want(next, "of a grant that was revoked", 0)
}
