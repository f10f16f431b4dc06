// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// What can stand for a file, in the order of FuzzFolder's input.
const (
	asFile = iota
	asFolder
	asPipe
	asLink      // to a file of somebody else
	asDirLink   // to a folder of somebody else
	asNoLink    // to nothing
	asLargeFile // 1 TiB, without a block of its own
	asGrant     // a file that gresd has made, changed in one place
	asKinds
)

const foreign = "not of this job\n"

// FuzzFolder: a gresd that starts finds anything in the run folder: names, kinds of files
// and contents. It ends, reads only what can be its own, adopts only a whole grant of the
// job, removes what is no job's, and touches nothing outside.
func FuzzFolder(f *testing.F) {
	layout := testLayout(f)
	s := newStore(f, layout)
	rec := record(7, uint32(os.Getuid()))
	rec.GID = uint32(os.Getgid())
	if err := s.Create(SpecOf(rec), nil); err != nil {
		f.Fatal(err)
	}
	s.Close()
	grant, err := os.ReadFile(filepath.Join(s.Dir(7), grantFile))
	if err != nil {
		f.Fatal(err)
	}
	outside := filepath.Join(f.TempDir(), "other")
	names := []string{grantFile, cacheFile, refusedFile, messagesFile, environmentFile}
	for kind := range asKinds {
		for file := range names {
			f.Add([]byte{0, byte(file), byte(kind), 0, 0, 3, 'a', '=', 'b'}, "", uint8(asFolder))
		}
		f.Add([]byte{}, "new-7", uint8(kind))
		f.Add([]byte{0, 0, asGrant, 0, 0, 0}, "7", uint8(kind))
		f.Add([]byte{}, "08", uint8(kind))
	}
	f.Add([]byte{0, 0, asGrant, 16, 0, 1, 1, 9, 1, 0, 0, 0, 4, 'x', 0xff, '\n', '/'}, "4294967296", uint8(asFile))
	f.Add([]byte{0, 3, asFile, 0, 0, 9, '2', ' ', 'x', '\n', '\n', 0x1b, '[', '2', 'J'}, "..7", uint8(asFolder))
	f.Fuzz(func(t *testing.T, files []byte, beside string, besideKind uint8) {
		hangs := time.AfterFunc(10*time.Second, func() { panic("gresd waits for a file") })
		defer hangs.Stop()
		mustDo(t, os.RemoveAll(layout.Jobs), os.Mkdir(layout.Jobs, 0o755), os.RemoveAll(outside), os.MkdirAll(outside, 0o755))
		mustDo(t, os.WriteFile(filepath.Join(outside, "file"), []byte(foreign), 0o600), os.Mkdir(s.Dir(7), 0o755))
		put := func(path string, kind int, text []byte) {
			switch kind {
			case asFile:
				_ = os.WriteFile(path, text, 0o644)
			case asFolder:
				_ = os.Mkdir(path, 0o755)
			case asPipe:
				_ = syscall.Mkfifo(path, 0o644)
			case asLink:
				_ = os.Symlink(filepath.Join(outside, "file"), path)
			case asDirLink:
				_ = os.Symlink(outside, path)
			case asNoLink:
				_ = os.Symlink(filepath.Join(outside, "absent"), path)
			case asLargeFile:
				_ = os.WriteFile(path, text, 0o644)
				_ = os.Truncate(path, 1<<40)
			case asGrant:
				_ = os.WriteFile(path, text, 0o644)
			}
		}
		whole := false
		for in := files; len(in) >= 6; {
			file, kind, at := int(in[1])%len(names), int(in[2])%asKinds, int(in[3])|int(in[4])<<8
			text := in[6:min(len(in), 6+int(in[5]))]
			in = in[6+len(text):]
			if kind == asGrant {
				changed := slices.Clone(grant)
				for i, c := range text {
					changed[(at+i)%len(changed)] ^= c
				}
				text = changed
			}
			path := filepath.Join(s.Dir(7), names[file])
			if _, err := os.Lstat(path); err == nil {
				continue
			}
			put(path, kind, text)
			whole = whole || file == 0 && kind == asGrant
		}
		if beside != "" && beside == filepath.Base(beside) && !strings.ContainsRune(beside, 0) {
			put(filepath.Join(layout.Jobs, beside), int(besideKind)%asKinds, []byte(beside))
		}
		checkStart(t, s, whole)
		if text, err := os.ReadFile(filepath.Join(outside, "file")); err != nil || string(text) != foreign {
			t.Fatalf("a file of somebody else: %q, %v", text, err)
		}
		if _, err := os.Lstat(filepath.Join(outside, "absent")); err == nil {
			t.Fatal("a file was made where a link leads")
		}
	})
}

func mustDo(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// checkStart does what gresd does when it starts, and when the job ends. whole says that
// there may be a grant to adopt.
func checkStart(t *testing.T, s *Store, whole bool) {
	noLock := func(uint32) func() { return func() {} }
	ids, err := s.Sweep(noLock)
	if err != nil || !slices.Contains(ids, 7) || !slices.IsSorted(ids) {
		t.Fatalf("jobs %v, %v", ids, err)
	}
	for _, id := range ids {
		if info, err := os.Lstat(s.Dir(id)); err != nil || !info.IsDir() {
			t.Fatalf("job %d: %v, %v", id, info, err)
		}
	}
	told := s.Refused(7) + strings.Join(append(s.Messages(7), s.ReadEnvironment(7)...), "\n")
	if strings.Contains(told, strings.TrimSpace(foreign)) || len(told) > 2*mostMessages+mostEnvironment+8 {
		t.Fatalf("%d bytes are told: %.100q", len(told), told)
	}
	if spec, err := s.ReadFile(7); err == nil && (!whole || len(spec.Cards) == 0 || len(spec.Cards) > libvgpu.MaxCards) {
		t.Fatalf("read %+v", spec)
	}
	rec := record(7, uint32(os.Getuid()))
	rec.GID = uint32(os.Getgid())
	if err := s.Adopt(rec); err == nil {
		have, _ := s.Spec(7)
		if !whole || matches(have, SpecOf(rec)) != nil {
			t.Fatalf("adopted %+v", have)
		}
		_, _ = s.Cache(7, 0)
		_, _ = s.Ended(7)
	}
	if _, err := s.Tell(7, "a word"); err == nil {
		_ = s.Messages(7)
	}
	if again, err := s.Sweep(noLock); err != nil || !slices.Equal(again, ids) {
		t.Fatalf("jobs %v, then %v, %v", ids, again, err)
	}
	entries, err := os.ReadDir(s.layout.Jobs)
	if err != nil || len(entries) != len(ids) {
		t.Fatalf("%d jobs, but %v, %v", len(ids), entries, err)
	}
	for _, id := range ids {
		if had, err := s.Remove(id); !had || err != nil {
			t.Fatalf("remove %d: %t, %v", id, had, err)
		}
	}
	if entries, err := os.ReadDir(s.layout.Jobs); err != nil || len(entries) > 0 {
		t.Fatalf("left: %v, %v", entries, err)
	}
}
