// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// cacheBytes are places in a cache file: the number of slots ever claimed, and the
// owner word of the first (region.h, whose assertions hold them).
const (
	highSlotAt = 2097152 + 32
	ownerAt    = 2097152 + 3072
)

// claim writes a slot into an open file, as a process of the job does.
func claim(t *testing.T, f *os.File) {
	t.Helper()
	owner := binary.LittleEndian.AppendUint64(nil, uint64(os.Getpid())<<32|1)
	for at, word := range map[int64][]byte{ownerAt: owner, highSlotAt: {1, 0, 0, 0}} {
		if _, err := f.WriteAt(word, at); err != nil {
			t.Fatal(err)
		}
	}
}

// watched returns a store with one job that sleeps, its cache file, and what is
// sent something when jobs wake.
func watched(t *testing.T) (s *Store, cache string, woken chan bool) {
	t.Helper()
	was := drowsy
	drowsy = 50 * time.Millisecond
	s = newStore(t, testLayout(t))
	woken = make(chan bool, 100)
	s.OnChange(func() { woken <- true })
	if err := s.Create(SpecOf(record(7, nobody)), nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan bool)
	go func() { s.Watch(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done; drowsy = was })
	eventually(t, "the job sleeps", func() bool { return view(t, s).Asleep })
	for len(woken) > 0 {
		<-woken
	}
	return s, filepath.Join(s.Dir(7), cacheFile), woken
}

func view(t *testing.T, s *Store) libvgpu.CacheView {
	t.Helper()
	v, err := s.Cache(7, 0)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after 20 s: %s", what)
		}
	}
}

func TestAJobWakesWhenItsCacheIsOpened(t *testing.T) {
	s, cache, woken := watched(t)
	f, err := os.OpenFile(cache, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	select {
	case <-woken: // and not only at the next round
	case <-time.After(20 * time.Second):
		t.Fatal("nobody was told that the cache was opened")
	}
	claim(t, f)
	eventually(t, "the slot is seen", func() bool { return len(view(t, s).Slots) == 1 })
	time.Sleep(3 * drowsy)
	if v := view(t, s); v.Asleep || len(v.Slots) != 1 {
		t.Errorf("a job with a process sleeps: %+v", v)
	}
}

// The child of a process that had the file open may claim its slot at any time.
func TestASleepingJobIsLookedAtNowAndThen(t *testing.T) {
	was := drowsy
	s, cache, woken := watched(t)
	f, err := os.OpenFile(cache, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	<-woken
	eventually(t, "the job sleeps again", func() bool { return view(t, s).Asleep })
	claim(t, f)
	start := time.Now()
	eventually(t, "the slot is seen", func() bool { return len(view(t, s).Slots) == 1 })
	if took := time.Since(start); took > roundParts*roundEvery+was {
		t.Errorf("seen after %s", took)
	}
}

// Without somebody who wakes it, no job sleeps.
func TestNoJobSleepsUnwatched(t *testing.T) {
	was := drowsy
	drowsy = time.Millisecond
	defer func() { drowsy = was }()
	s := newStore(t, testLayout(t))
	if err := s.Create(SpecOf(record(7, nobody)), nil); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if view(t, s).Asleep {
			t.Fatal("it sleeps")
		}
		time.Sleep(5 * time.Millisecond)
	}
}
