// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// However a user makes a cache file larger, it does not stay so.
func TestACacheThatGrowsIsCutBack(t *testing.T) {
	s, cache, _ := watched(t)
	f, err := os.OpenFile(cache, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	claim(t, f)
	for name, grow := range map[string]func() error{
		"a byte":                    func() error { _, err := f.WriteAt([]byte{1}, libvgpu.CacheSize); return err },
		"a hole":                    func() error { return f.Truncate(1 << 40) },
		"allocated":                 func() error { return unix.Fallocate(int(f.Fd()), 0, 0, 64<<20) },
		"allocated beyond its size": func() error { return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, libvgpu.CacheSize, 64<<20) },
	} {
		if err := grow(); err != nil {
			t.Fatal(err)
		}
		eventually(t, name+" is cut off", func() bool {
			var st unix.Stat_t
			return unix.Fstat(int(f.Fd()), &st) == nil && st.Size == libvgpu.CacheSize && st.Blocks*512 <= libvgpu.CacheSize+slackBytes
		})
	}
	if n := len(view(t, s).Slots); n != 1 {
		t.Errorf("%d slots after all, want the one that was there", n)
	}
	if told := s.Messages(7); len(told) != 1 || !strings.Contains(told[0], "vgpu: cache: job 7: its cache file was made larger") {
		t.Errorf("told %q, want one line", told)
	}
}

// Neither while gresd does not run.
func TestACacheThatHasGrownIsCutBackAtStart(t *testing.T) {
	l := testLayout(t)
	first := newStore(t, l)
	if err := first.Create(SpecOf(record(7, nobody)), nil); err != nil {
		t.Fatal(err)
	}
	first.Close()
	cache := first.Dir(7) + "/" + cacheFile
	if err := os.Truncate(cache, 1<<30); err != nil {
		t.Fatal(err)
	}
	second := newStore(t, l)
	if err := second.Adopt(record(7, nobody)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it can be read", func() bool { _, err := second.Cache(7, 0); return err == nil })
}
