// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const nobody = 65534

// testLayout is a run folder that other users can reach.
func testLayout(t testing.TB) Layout {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if info, err := os.Stat(d); err == nil && info.Mode()&0o005 != 0o005 {
			if err := os.Chmod(d, info.Mode()|0o055); err != nil {
				t.Fatal(err)
			}
		}
	}
	run := filepath.Join(dir, "run")
	return Layout{
		RunDir: run, Jobs: filepath.Join(run, "jobs"), Preload: filepath.Join(run, "preload"),
		Library: "/usr/lib/vgpu/libvgpu.so", SelfDir: filepath.Join(run, "self"),
		HostPreload: filepath.Join(dir, "ld.so.preload"),
	}
}

func newStore(t testing.TB, l Layout) *Store {
	t.Helper()
	s, err := NewStore(l, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func record(job, uid uint32) ledger.Record {
	return ledger.Record{
		JobID: job, UID: uid, GID: uid, State: ledger.Granted, Mode: gpu.Soft, Ceiling: 80,
		Priority: gpu.High, Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Placement: place.Placement{Cards: []place.CardShare{{UUID: "GPU-a", Share: 30, Cores: 25, Memory: 8 * gpu.GiB}}},
	}
}

func TestLayout(t *testing.T) {
	l := testLayout(t)
	if err := os.WriteFile(l.HostPreload, []byte("/lib/a.so\n"+l.Library+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	newStore(t, l)
	newStore(t, l) // a second start changes nothing and does not fail
	for path, mode := range map[string]fs.FileMode{
		l.RunDir: fs.ModeDir | 0o755, l.Jobs: fs.ModeDir | 0o711, l.SelfDir: fs.ModeDir | 0o755,
		filepath.Join(l.SelfDir, "grant"): 0o444, filepath.Join(l.SelfDir, "cache"): 0o444, l.Preload: 0o644,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: got %v, %v; want %v", path, info, err, mode)
		}
	}
	text, err := os.ReadFile(l.Preload)
	if want := "/lib/a.so\n" + l.Library + "\n"; err != nil || string(text) != want {
		t.Errorf("preload %q, %v; want %q", text, err, want)
	}
}

func TestLayoutMakesAnAbsentHostPreload(t *testing.T) {
	l := testLayout(t)
	newStore(t, l)
	if info, err := os.Stat(l.HostPreload); err != nil || info.Size() != 0 || info.Mode() != 0o644 {
		t.Errorf("got %v, %v; want an empty file of mode 0644", info, err)
	}
}

func TestLayoutRefusesFoldersOfOthers(t *testing.T) {
	l := testLayout(t)
	if err := os.MkdirAll(l.RunDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/tmp", l.Jobs); err != nil {
		t.Fatal(err)
	}
	if _, err := NewStore(l, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "not a folder") {
		t.Errorf("a link for the jobs folder: got %v", err)
	}
	if err := os.Remove(l.Jobs); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(l.Jobs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(l.Jobs, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	if _, err := NewStore(l, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "owned by user 65534") {
		t.Errorf("a jobs folder of nobody: got %v", err)
	}
}

func TestPreloadText(t *testing.T) {
	const lib = "/usr/lib/vgpu/libvgpu.so"
	for name, c := range map[string]struct{ host, want string }{
		"nothing":             {"", lib + "\n"},
		"others":              {"/a.so\n/b.so", "/a.so\n/b.so\n" + lib + "\n"},
		"ours already":        {lib + "\n", lib + "\n"},
		"ours among others":   {"/a.so:" + lib + " /b.so\n", "/a.so /b.so\n" + lib + "\n"},
		"comments and blanks": {"# " + lib + "\n\n/a.so\n", "# " + lib + "\n/a.so\n" + lib + "\n"},
		"a longer name":       {lib + ".1\n", lib + ".1\n" + lib + "\n"},
	} {
		if got := preloadText(c.host, lib); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// as runs a shell command as a user and returns its output and whether it worked.
func as(t *testing.T, uid uint32, script string) (string, bool) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// The rights of a job folder, tried by real users.
func TestJobFolderRights(t *testing.T) {
	s := newStore(t, testLayout(t))
	if err := s.Create(SpecOf(record(7, nobody)), nil); err != nil {
		t.Fatal(err)
	}
	dir := s.Dir(7)
	for _, c := range []struct {
		name   string
		uid    uint32
		script string
		want   bool
	}{
		{"the user reads the grant", nobody, "cat " + dir + "/grant >/dev/null", true},
		{"the user lists the folder", nobody, "ls " + dir, true},
		{"the user writes the cache", nobody, "printf x | dd of=" + dir + "/cache conv=notrunc status=none", true},
		{"the user cannot write the grant", nobody, "printf x >> " + dir + "/grant", false},
		{"the user cannot make a file", nobody, "touch " + dir + "/new", false},
		{"the user cannot remove the cache", nobody, "rm -f " + dir + "/cache", false},
		{"the user cannot replace the grant", nobody, "mv " + dir + "/cache " + dir + "/grant", false},
		{"the user cannot list all jobs", nobody, "ls " + filepath.Dir(dir), false},
		{"another user cannot enter", 33, "cat " + dir + "/grant", false},
		{"another user cannot read the cache", 33, "cat " + dir + "/cache", false},
	} {
		if out, ok := as(t, c.uid, c.script); ok != c.want {
			t.Errorf("%s: got %v: %s", c.name, ok, out)
		}
	}
}

func TestWithoutAccessLists(t *testing.T) {
	defer func(f func(string, string, []byte, int) error) { setxattr = f }(setxattr)
	setxattr = func(string, string, []byte, int) error { return unix.EOPNOTSUPP }
	var log bytes.Buffer
	s, err := NewStore(testLayout(t), slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for job := uint32(1); job <= 2; job++ {
		if err := s.Create(SpecOf(record(job, nobody)), nil); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(s.Dir(1)); err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("got %v, %v; want mode 0711", info, err)
	}
	if n := strings.Count(log.String(), "no access lists"); n != 1 {
		t.Errorf("said %d times, want once: %s", n, log.String())
	}
	if out, ok := as(t, 33, "cat "+s.Dir(1)+"/cache"); ok {
		t.Errorf("another user read the cache: %s", out)
	}
}

func TestCreateAdoptRemove(t *testing.T) {
	l := testLayout(t)
	rec := record(7, nobody)
	first := newStore(t, l)
	changes := 0
	first.OnChange(func() { changes++ })
	created := SpecOf(rec)
	created.Cards[0].MemOverhead = uint64(400 * gpu.MiB)
	if err := first.Create(created, nil); err != nil {
		t.Fatal(err)
	}
	spec, ok := first.Spec(7)
	if !ok || spec.Cards[0].MemOverhead != uint64(400*gpu.MiB) || spec.Cards[0].Mode != libvgpu.ModeSoft || spec.Cards[0].Ceiling != 80 {
		t.Errorf("spec %+v", spec)
	}
	first.SetSchedule(7, 0, libvgpu.Schedule{SliceUS: 6000, Gate: 1, Cores: 80}) // held at its ceiling
	before := inode(t, filepath.Join(first.Dir(7), "grant"))
	first.Close() // as when gresd is killed

	second := newStore(t, l)
	if err := second.Adopt(rec); err != nil {
		t.Fatal(err)
	}
	if after := inode(t, filepath.Join(second.Dir(7), "grant")); after != before {
		t.Error("adoption replaced the grant file")
	}
	if got := second.Schedule(7, 0).SliceUS; got != 6000 {
		t.Errorf("slice after adoption: %d, want 6000", got)
	}
	if spec, _ := second.Spec(7); spec.Cards[0].Cores != 25 {
		t.Errorf("cores after adoption: %d, want 25", spec.Cards[0].Cores)
	}
	if _, err := second.Cache(7, 0); err != nil {
		t.Errorf("cache after adoption: %v", err)
	}
	if had, err := second.Remove(7); !had || err != nil {
		t.Errorf("remove: %v, %v", had, err)
	}
	if had, err := second.Remove(7); had || err != nil {
		t.Errorf("remove again: %v, %v", had, err)
	}
	if len(second.Open()) != 0 {
		t.Errorf("still open: %v", second.Open())
	}
	if _, err := second.Cache(7, 0); !errors.Is(err, ErrNotOpen) {
		t.Errorf("cache of a removed job: %v", err)
	}
	if changes != 1 {
		t.Errorf("%d changes told, want 1", changes)
	}
}

func TestAdoptRefusesAnotherGrant(t *testing.T) {
	s := newStore(t, testLayout(t))
	if err := s.Adopt(record(7, nobody)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: got %v, want not exist", err)
	}
	if err := s.Create(SpecOf(record(7, nobody)), nil); err != nil {
		t.Fatal(err)
	}
	other := record(7, nobody)
	other.Placement.Cards[0].Memory = gpu.GiB
	if err := s.Adopt(other); err == nil || !strings.Contains(err.Error(), "8 GiB: want GPU-a with 1 GiB") {
		t.Errorf("another limit: got %v", err)
	}
}

func TestAdoptRefusesARevokedGrant(t *testing.T) {
	l := testLayout(t)
	first := newStore(t, l)
	if err := first.Create(SpecOf(record(7, nobody)), nil); err != nil {
		t.Fatal(err)
	}
	if !first.Has(7) || first.Has(8) {
		t.Error("want a grant of job 7 only")
	}
	first.Revoke(7)
	first.Close()
	if err := newStore(t, l).Adopt(record(7, nobody)); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("got %v, want a refusal", err)
	}
}

func TestCreateReplacesAnOldFolder(t *testing.T) {
	s := newStore(t, testLayout(t))
	if err := s.Refuse(7, nobody, "no room"); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(SpecOf(record(7, nobody)), nil); err != nil {
		t.Fatal(err)
	}
	if s.Refused(7) != "" {
		t.Error("the refusal is still there")
	}
	if err := s.Refuse(7, nobody, "vgpu: request:\n no room"); err != nil {
		t.Fatal(err)
	}
	if got := s.Refused(7); got != "vgpu: request: no room" {
		t.Errorf("refused file says %q", got)
	}
	if _, err := os.Stat(filepath.Join(s.Dir(7), "grant")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused job has a grant: %v", err)
	}
}

func TestJobsOfEachCardAreCounted(t *testing.T) {
	s := newStore(t, testLayout(t))
	want := func(when string, counts map[string]int) {
		t.Helper()
		if got := s.Jobs(); !reflect.DeepEqual(got, counts) {
			t.Errorf("%s: %v, want %v", when, got, counts)
		}
	}
	both := record(8, nobody)
	both.Placement.Cards = append(both.Placement.Cards, place.CardShare{UUID: "GPU-b", Share: 30, Cores: 25, Memory: 8 * gpu.GiB})
	for _, rec := range []ledger.Record{record(7, nobody), both, record(7, nobody)} { // the last one anew
		if err := s.Create(SpecOf(rec), nil); err != nil {
			t.Fatal(err)
		}
	}
	want("two jobs", map[string]int{"GPU-a": 2, "GPU-b": 1})
	s.SetCores(8, 10)
	want("other shares", map[string]int{"GPU-a": 2, "GPU-b": 1})
	for _, job := range []uint32{8, 8, 9} {
		if _, err := s.Remove(job); err != nil {
			t.Fatal(err)
		}
	}
	want("one has ended", map[string]int{"GPU-a": 1})
	s.Close()
	want("closed", map[string]int{})
}

// What looks like a job folder but leads elsewhere must not lead removal there.
func TestRemovalFollowsNoLink(t *testing.T) {
	l := testLayout(t)
	s := newStore(t, l)
	precious := filepath.Join(t.TempDir(), "precious")
	if err := os.MkdirAll(precious, 0o755); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(precious, "file")
	if err := os.WriteFile(kept, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, s.Dir(8)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.Dir(9), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, filepath.Join(s.Dir(9), "cache")); err != nil {
		t.Fatal(err)
	}
	for _, job := range []uint32{8, 9} {
		if had, err := s.Remove(job); !had || err != nil {
			t.Errorf("remove %d: %v, %v", job, had, err)
		}
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("removal went through a link: %v", err)
	}
}

func TestSweepLeavesOnlyJobFolders(t *testing.T) {
	l := testLayout(t)
	s := newStore(t, l)
	if err := s.Create(SpecOf(record(7, nobody)), nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"new-8", "008", "x", "0", "99999999999"} {
		if err := os.Mkdir(filepath.Join(l.Jobs, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var locked, unlocked []uint32
	ids, err := s.Sweep(func(jobID uint32) func() {
		locked = append(locked, jobID)
		return func() { unlocked = append(unlocked, jobID) }
	})
	if err != nil || !reflect.DeepEqual(ids, []uint32{7}) {
		t.Fatalf("left jobs %v, %v", ids, err)
	}
	if want := []uint32{8}; !reflect.DeepEqual(locked, want) || !reflect.DeepEqual(unlocked, want) {
		t.Errorf("locked %v and unlocked %v, want the job whose folder was being made", locked, unlocked)
	}
	entries, err := os.ReadDir(l.Jobs)
	if err != nil || len(entries) != 1 || entries[0].Name() != "7" {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestRecordOfReadsSpecOf(t *testing.T) {
	want := record(7, 33)
	want.Restarts, want.Request.Engine = ledger.UnknownRun, gpu.Concurrent
	if got := RecordOf(SpecOf(want)); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}
