// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A job's file that stays mapped is counted, untouched and deleted as it is.
func TestMappedPages(t *testing.T) {
	count := func() float64 {
		t.Helper()
		var first float64
		for i, name := range []string{"maps", "smaps"} {
			text, err := os.ReadFile("/proc/self/" + name)
			if err != nil {
				t.Fatal(err)
			}
			pages, err := MappedPages(string(text))
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				first = pages
			} else if pages != first {
				t.Errorf("%.0f pages by maps, %.0f by smaps", first, pages)
			}
		}
		return first
	}
	path := filepath.Join(t.TempDir(), "a file")
	size := os.Getpagesize() * 3
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for what, flags := range map[string]struct {
		fd, flags int
		pages     float64
	}{
		"a file, shared":   {int(f.Fd()), unix.MAP_SHARED, 3},
		"a file, private":  {int(f.Fd()), unix.MAP_PRIVATE, 3},
		"shared memory":    {-1, unix.MAP_SHARED | unix.MAP_ANONYMOUS, 3},
		"a process's heap": {-1, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS, 0},
	} {
		before := count()
		mem, err := unix.Mmap(flags.fd, 0, size, unix.PROT_READ, flags.flags)
		if err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(path)
		if grew := count() - before; grew != flags.pages {
			t.Errorf("%s that is mapped is %.0f pages, want %.0f", what, grew, flags.pages)
		}
		if err := unix.Munmap(mem); err != nil {
			t.Fatal(err)
		}
		if grew := count() - before; grew != 0 {
			t.Errorf("%s that was mapped is %.0f pages, want 0", what, grew)
		}
	}
	for _, text := range []string{"", "nonsense of five words, here\n", "55d0-55e0 rw-p 00000000 00:00 0 [heap]\n"} {
		if pages, err := MappedPages(text); err == nil {
			t.Errorf("%q: %.0f pages", text, pages)
		}
	}
}
