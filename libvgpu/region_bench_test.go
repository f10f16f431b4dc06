// SPDX-License-Identifier: Apache-2.0

package libvgpu

import (
	"os"
	"testing"
)

// BenchmarkReadCache is one look at a job with one process, as gresd does it many times
// a second.
func BenchmarkReadCache(b *testing.B) {
	path := createCache(b)
	self, _ := startTime(uint32(os.Getpid()))
	putSlot(b, path, 0, uint32(os.Getpid()), 0, self, 1<<30)
	r, err := OpenCache(path)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	b.ReportAllocs()
	for b.Loop() {
		if view, err := r.Read(); err != nil || len(view.Slots) != 1 {
			b.Fatal(len(view.Slots), err)
		}
	}
}

// BenchmarkLiveness is one question whether a process still lives.
func BenchmarkLiveness(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, life := startTime(uint32(os.Getpid())); life != lives {
			b.Fatal("this process is said to have ended")
		}
	}
}
