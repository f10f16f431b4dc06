// SPDX-License-Identifier: Apache-2.0

package wakeup

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sleepers are one with a timer of the kernel's, and one of a program that has no more files.
func sleepers(t *testing.T) map[string]*Sleeper {
	both := map[string]*Sleeper{"of the kernel": {timer: newTimer()}, "of Go": {timer: withoutFiles(t, newTimer)}}
	_, kernel := both["of the kernel"].timer.(*kernelTimer)
	_, own := both["of Go"].timer.(*goTimer)
	if !kernel || !own {
		t.Fatal("not what it is called")
	}
	return both
}

func TestSleep(t *testing.T) {
	for name, s := range sleepers(t) {
		for _, d := range []time.Duration{time.Millisecond, 0, -1, 20 * time.Millisecond} {
			began := time.Now()
			if s.Sleep(d) {
				t.Errorf("%s: woken, and nobody did", name)
			}
			if took := time.Since(began); took < d {
				t.Errorf("%s: slept %v of %v", name, took, d)
			}
		}
		s.Stop()
	}
}

// Whenever it is called, Wake ends one sleep, and just one.
func TestWake(t *testing.T) {
	for name, s := range sleepers(t) {
		s.Wake()
		s.Wake()
		if !s.Sleep(time.Hour) {
			t.Errorf("%s: not woken before its sleep", name)
		}
		if s.Sleep(time.Millisecond) {
			t.Errorf("%s: woken a second time", name)
		}
		for i := range 100 {
			go func() {
				time.Sleep(time.Duration(i%30) * 10 * time.Microsecond)
				s.Wake()
			}()
			for !s.Sleep(time.Duration(1+i%2*36e5) * 100 * time.Microsecond) {
			}
		}
		s.Stop()
	}
	var fresh Sleeper
	fresh.Wake()
	if !fresh.Sleep(time.Hour) {
		t.Error("not woken before its first sleep")
	}
	fresh.Stop()
	fresh.Wake() // does nothing
	fresh.Stop()
}

// withoutFiles calls f where no file can be opened.
func withoutFiles(t *testing.T, f func() timer) timer {
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

// One that is stopped leaves no file.
func TestAStoppedSleeperIsGone(t *testing.T) {
	open := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	var warm Sleeper
	warm.Sleep(1)
	before := open()
	for range 20 {
		var s Sleeper
		s.Sleep(1)
		s.Stop()
	}
	warm.Stop()
	if after := open(); after >= before {
		t.Errorf("%d files were open, now %d", before, after)
	}
}
