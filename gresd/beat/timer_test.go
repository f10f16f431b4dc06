// SPDX-License-Identifier: Apache-2.0

package beat

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTimer(t *testing.T) {
	timers := map[string]*Timer{"of the kernel": NewTimer(), "of Go": withoutFiles(t, NewTimer)}
	if timers["of the kernel"].file == nil || timers["of Go"].file != nil {
		t.Fatal("not what it is called")
	}
	for name, timer := range timers {
		for _, d := range []time.Duration{time.Millisecond, 0, -1, 5 * time.Millisecond} {
			began := time.Now()
			timer.Reset(d)
			select {
			case <-timer.C:
				if took := time.Since(began); took < d {
					t.Errorf("%s: ended after %v of %v", name, took, d)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("%s: %v are not over after 10 s", name, d)
			}
		}
		timer.Reset(10 * time.Millisecond)
		timer.Reset(time.Hour)
		select {
		case <-timer.C:
			t.Errorf("%s: it was set anew, and ended at its old time", name)
		case <-time.After(30 * time.Millisecond):
		}
		timer.Reset(time.Millisecond)
		timer.Stop()
	}
}

// withoutFiles calls f where no file can be opened.
func withoutFiles(t *testing.T, f func() *Timer) *Timer {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 0, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}()
	return f()
}

// A timer that is stopped leaves neither a file nor a goroutine that reads it.
func TestAStoppedTimerIsGone(t *testing.T) {
	for range 3 {
		before, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			timer := NewTimer()
			timer.Reset(time.Hour)
			timer.Stop()
		}
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			after, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			if len(after) <= len(before)+1 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%d files were open, now %d", len(before), len(after))
			}
		}
	}
}
