// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"context"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkFlood is a user who opens and writes a cache file without a pause, on a thread
// of its own: what everything else of this process takes meanwhile.
func BenchmarkFlood(b *testing.B) {
	s := newStore(b, testLayout(b))
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan bool)
	go func() { s.Watch(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	if err := s.Create(SpecOf(record(7, nobody)), nil); err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(s.Dir(7), cacheFile)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, others := time.Now(), spent(unix.RUSAGE_SELF)-spent(unix.RUSAGE_THREAD)
	for b.Loop() {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := unix.Pwrite(fd, []byte{0}, 0); err != nil {
			b.Fatal(err)
		}
		_ = unix.Close(fd)
	}
	others = spent(unix.RUSAGE_SELF) - spent(unix.RUSAGE_THREAD) - others
	b.ReportMetric(100*float64(others)/float64(time.Since(began)), "store-%")
}

func spent(who int) time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(who, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
