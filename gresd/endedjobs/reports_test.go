// SPDX-License-Identifier: Apache-2.0

package endedjobs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func of(job uint32, user string) wire.Report {
	return wire.Report{Job: wire.Job{JobID: job, User: user}, Cards: []wire.ReportCard{{PeakBytes: uint64(job)}}}
}

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestReportsOutliveGresd(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "past")
	s := open(t, dir)
	for _, r := range []wire.Report{of(7, "ada"), of(8, "bob"), of(7, "eve")} {
		if err := s.Keep(r); err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, dir)
	if r, err := s.Of(7); err != nil || r.Job.User != "eve" || r.Cards[0].PeakBytes != 7 {
		t.Errorf("got %+v, %v; want the later run", r, err)
	}
	if _, err := s.Of(9); !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, s.path(7): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v; want %o", path, info.Mode(), err, want)
		}
	}
	for _, text := range []string{"", "{", `{"job":{"job_id":8}}`} {
		if err := os.WriteFile(s.path(7), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := s.Of(7); err == nil || errors.Is(err, ErrNone) || r.Job.JobID != 0 {
			t.Errorf("%q: got %+v, %v", text, r, err)
		}
	}
	var none *Store
	if _, err := none.Of(7); !errors.Is(err, ErrNone) || none.Keep(of(7, "")) != nil {
		t.Errorf("a nil store: %v", err)
	}
}

func TestReportsAreBounded(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for job := range uint32(MaxReports + 5) {
		if err := s.Keep(of(job+1, "ada")); err != nil {
			t.Fatal(err)
		}
	}
	files := func() int {
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if _, err := s.Of(5); !errors.Is(err, ErrNone) || files() != MaxReports {
		t.Errorf("the oldest: %v; %d files, want %d", err, files(), MaxReports)
	}
	old := time.Now().Add(-KeepReportsFor - time.Hour)
	for job := range uint32(MaxReports - 1) {
		if err := os.Chtimes(s.path(job+6), old, old); err != nil {
			t.Fatal(err)
		}
	}
	if s = open(t, dir); files() != 1 {
		t.Errorf("%d files, want the one that is not too old", files())
	}
	if _, err := s.Of(MaxReports + 5); err != nil {
		t.Error(err)
	}
}
