// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTell(t *testing.T) {
	dir := t.TempDir()
	s := &Store{layout: Layout{Jobs: dir}, log: slog.New(slog.DiscardHandler)}
	if err := os.Mkdir(s.Dir(7), 0o755); err != nil {
		t.Fatal(err)
	}
	tell := func(job uint32, text string, want bool) {
		t.Helper()
		if added, err := s.Tell(job, text); added != want || err != nil {
			t.Errorf("%q: added %v, %v; want %v", text, added, err, want)
		}
	}
	tell(7, "card 0 is\nsick", true)
	tell(7, "card 0 is sick", false)
	tell(7, "card 0 is well", true)
	tell(8, "no such job", false)
	if lines := s.Messages(7); len(lines) != 2 || !strings.HasSuffix(lines[0], "Z card 0 is sick") || !strings.HasSuffix(lines[1], "card 0 is well") {
		t.Errorf("lines %q", lines)
	}
	if s.Messages(8) != nil {
		t.Error("lines of a job without a folder")
	}
	path := filepath.Join(s.Dir(7), messagesFile)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o444 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for i := range 100 { // no job fills the disk with them
		if _, err := s.Tell(7, strings.Repeat("x", 300)+strings.Repeat("y", i)); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Size() > mostMessages || info.Size() < mostMessages-500 {
		t.Errorf("%d bytes", info.Size())
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if added, err := s.Tell(7, "x"); added || err == nil {
		t.Error("a link was followed")
	}
}

// A job that fills the file system by its own cache is told what it did even so
// (tests/e2e/hostile does it).
func TestThereIsRoomForTheFirstMessages(t *testing.T) {
	s := newStore(t, testLayout(t))
	if err := s.Create(SpecOf(record(7, nobody)), nil); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(s.Dir(7), messagesFile), &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != 0 || 512*st.Blocks < keptMessages || st.Mode&0o777 != 0o444 {
		t.Errorf("%d bytes, room for %d, mode %o; want 0, %d, 444", st.Size, 512*st.Blocks, st.Mode&0o777, keptMessages)
	}
	if lines := s.Messages(7); lines != nil {
		t.Errorf("lines %q", lines)
	}
}

// A word for a job that ends must not keep its folder from being removed.
func TestFolderIsRemovedWhileItsUserIsTold(t *testing.T) {
	s := newStore(t, testLayout(t))
	ends, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ends:
				return
			default:
				_, _ = s.Tell(7, "a word")
			}
		}
	}()
	for i := range 300 {
		mustDo(t, os.MkdirAll(s.Dir(7), 0o755))
		if had, err := s.Remove(7); !had || err != nil {
			t.Errorf("removal %d: %t, %v", i, had, err)
			break
		}
	}
	close(ends)
	<-done
}
