// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// readings is how many files this thread has read from, this one included.
func readings(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/thread-self/io")
	if err != nil {
		t.Skip("the kernel does not count: ", err)
	}
	_, rest, _ := bytes.Cut(text, []byte("syscr: "))
	if _, err := fmt.Fscan(bytes.NewReader(rest), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// What a look costs is what it reads: nothing of a job that has not begun, and one
// piece of one with a process.
func TestLooksReadNoMoreThanTheyMust(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	readings(t)
	own := -readings(t) + readings(t)
	s := newStore(t, testLayout(t))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan bool)
	go func() { s.Watch(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	eventually(t, "the store listens", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.watcher != nil
	})
	if err := s.Create(SpecOf(record(7, nobody)), nil); err != nil {
		t.Fatal(err)
	}
	const looks = 100
	read := func() int {
		before := readings(t)
		for range looks {
			view(t, s)
		}
		return readings(t) - before - own
	}
	if got := read(); got > 2 {
		t.Errorf("%d looks at a new job without processes read %d times, want at most twice", looks, got)
	}
	f, err := os.OpenFile(filepath.Join(s.Dir(7), cacheFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	claim(t, f)
	eventually(t, "the slot is seen", func() bool { return len(view(t, s).Slots) == 1 })
	// And whether its process lives, twice a second.
	if got := read(); got > looks+looks/10 {
		t.Errorf("%d looks at a job with a process read %d times", looks, got)
	}
}
