// SPDX-License-Identifier: Apache-2.0

package libvgpu

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ended is a process that was there and is not any more.
func ended(t *testing.T) (pid uint32, start uint64) {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid = uint32(cmd.Process.Pid)
	start, life := startTime(pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if life != lives {
		t.Fatal("cannot read the start time of a process")
	}
	return pid, start
}

// ownerOf is the owner word of a process of our own namespace.
func ownerOf(pid uint32, start uint64) uint64 {
	return ownPIDNS()%nsUnknown<<54 | uint64(pid)<<32 | start&0xffffffff
}

func openRW(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestClearSlots(t *testing.T) {
	path := createCache(t)
	f := openRW(t, path)
	pid, start := ended(t)
	self, _ := startTime(uint32(os.Getpid()))
	me := uint32(os.Getpid())
	putSlot(t, path, 0, me, 0, self, 1<<20)
	putSlot(t, path, 1, pid, 0, start, 1<<30)
	putSlot(t, path, 2, pid, 0, start, 1<<29)
	putSlot(t, path, 3, pid, 0, start, 1<<28)
	dead, alive := ownerOf(pid, start), ownerOf(me, self)
	n, err := ClearSlots(f, []SlotOwner{
		{0, alive, false},        // lives, whatever the caller thinks
		{1, dead, false},         // the one
		{2, dead + 1, false},     // somebody else's by now
		{3, 0, false},            // no owner
		{MaxSlots, dead, false},  // no such slot
		{MaxSlots - 1, 7, false}, // free
	})
	if err != nil || n != 1 {
		t.Fatalf("cleared %d, %v; want 1", n, err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := func(slot, field int) uint64 {
		return binary.LittleEndian.Uint64(data[cacheAt+headerBytes+slot*slotBytes+field:])
	}
	for slot, want := range [][2]uint64{{alive, 1 << 20}, {0, 0}, {dead, 1 << 29}, {dead, 1 << 28}} {
		if at(slot, 0) != want[0] || at(slot, 64) != want[1] {
			t.Errorf("slot %d: owner %#x with %d bytes, want %#x with %d", slot, at(slot, 0), at(slot, 64), want[0], want[1])
		}
	}
	for i := 8; i < slotBytes; i += 8 {
		if at(1, i) != 0 {
			t.Errorf("cleared slot has %#x at %d", at(1, i), i)
		}
	}
}

func TestClearSlotsRefusesACutFile(t *testing.T) {
	path := createCache(t)
	f := openRW(t, path)
	if err := os.Truncate(path, cacheAt); err != nil {
		t.Fatal(err)
	}
	if _, err := ClearSlots(f, []SlotOwner{{0, 1, false}}); !errors.Is(err, ErrNotCache) {
		t.Errorf("got %v, want ErrNotCache", err)
	}
}

// A process that takes a dead one's slot over at the same moment keeps it, and
// what it announces there.
func TestClearSlotsLosesToAPeer(t *testing.T) {
	path := createCache(t)
	f := openRW(t, path)
	pid, start := ended(t)
	self, _ := startTime(uint32(os.Getpid()))
	dead, me := ownerOf(pid, start), ownerOf(uint32(os.Getpid()), self)
	mem, err := unix.Mmap(int(f.Fd()), cacheAt, headerBytes+slotBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	owner := (*uint64)(unsafe.Pointer(&mem[headerBytes]))
	bytes := (*uint64)(unsafe.Pointer(&mem[headerBytes+64]))

	won, lost := 0, 0
	for round := 0; round < 20000 && (won < 20 || lost < 20); round++ {
		atomic.StoreUint64(bytes, 111)
		atomic.StoreUint64(owner, dead)
		var wg sync.WaitGroup
		var cleared int
		var took bool
		wg.Go(func() {
			n, err := ClearSlots(f, []SlotOwner{{0, dead, false}})
			if err != nil {
				t.Error(err)
			}
			cleared = n
		})
		wg.Go(func() {
			time.Sleep(time.Duration(round%60) * time.Microsecond)
			if took = atomic.CompareAndSwapUint64(owner, dead, me); took {
				atomic.StoreUint64(bytes, 222)
			}
		})
		wg.Wait()
		switch o, b := atomic.LoadUint64(owner), atomic.LoadUint64(bytes); {
		case took == (cleared == 1):
			t.Fatalf("round %d: peer took it: %v, cleared %d; want one of them", round, took, cleared)
		case took && (o != me || b != 222):
			t.Fatalf("round %d: the peer's slot has owner %#x and %d bytes", round, o, b)
		case !took && (o != 0 || b != 0):
			t.Fatalf("round %d: the cleared slot has owner %#x and %d bytes", round, o, b)
		case took:
			won++
		default:
			lost++
		}
	}
	if won == 0 || lost == 0 {
		t.Errorf("the peer won %d times and lost %d: no race was tried", won, lost)
	}
}

// What is known of the end of a process in our own namespace.
func TestGone(t *testing.T) {
	path := createCache(t)
	r, err := OpenCache(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	look := func() SlotView {
		t.Helper()
		for owner, l := range r.alive { // do not wait for the answer to get old
			l.until = time.Now().Add(-time.Nanosecond)
			r.alive[owner] = l
		}
		view, err := r.Read()
		if err != nil || len(view.Slots) != 1 {
			t.Fatalf("view %+v, %v", view, err)
		}
		return view.Slots[0]
	}
	unseenPID, unseenStart := ended(t)
	putSlot(t, path, 0, unseenPID, 0, unseenStart, 1)
	mustSeeAll(t)
	namespaced.mu.Lock() // nobody scans
	if s := look(); s.Gone || s.Alive {
		t.Errorf("not looked for: %+v", s)
	}
	namespaced.mu.Unlock()
	putNamespace(t, path, 0, ownerOf(unseenPID, unseenStart), ownPIDNS())
	if s := look(); !s.Gone || s.Alive {
		t.Errorf("ended, and never seen: %+v", s)
	}

	cmd := exec.Command("/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := uint32(cmd.Process.Pid)
	start, _ := startTime(pid)
	putSlot(t, path, 0, pid, 0, start, 1)
	if s := look(); s.Gone || !s.Alive || s.SlotOwner != (SlotOwner{0, ownerOf(pid, start), false}) {
		t.Errorf("alive: %+v", s)
	}
	_ = cmd.Process.Kill()
	time.Sleep(20 * time.Millisecond) // a zombie now
	if s := look(); !s.Gone || s.Alive {
		t.Errorf("zombie: %+v", s)
	}
	_ = cmd.Wait()
	if s := look(); !s.Gone || s.Alive {
		t.Errorf("ended: %+v", s)
	}
}

// With no descriptor left nothing can be read of any process: all live but those of
// which the kernel says that there are none.
func TestWithoutDescriptorsOnlyCertainDeathsCount(t *testing.T) {
	path := createCache(t)
	f := openRW(t, path)
	peer := exec.Command("/bin/sleep", "60")
	if err := peer.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = peer.Process.Kill(); _ = peer.Wait() }()
	pid := uint32(peer.Process.Pid)
	start, _ := startTime(pid)
	goner, gonerStart := ended(t)
	putSlot(t, path, 0, pid, 0, start, 1<<30)
	putSlot(t, path, 1, goner, 0, gonerStart, 1<<30)
	putNamespace(t, path, 0, ownerOf(pid, start), ownPIDNS())
	putNamespace(t, path, 1, ownerOf(goner, gonerStart), ownPIDNS())
	inner := startInNamespace(t)
	defer inner.end()
	r, err := OpenCache(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	mustSeeAll(t)

	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	view, err := r.Read()
	if err == nil {
		r.alive = nil // found before, and not to be seen now
		view, err = r.Read()
	}
	n, clearErr := ClearSlots(f, []SlotOwner{{0, ownerOf(pid, start), false}})
	_, verdict := new(hostPIDs).find(&inner.slot, time.Now(), nil)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err != nil || len(view.Slots) != 2 || view.Slots[0].Gone || !view.Slots[1].Gone {
		t.Errorf("view %+v, %v; want the second gone", view, err)
	}
	if n != 0 || clearErr != nil {
		t.Errorf("cleared %d, %v; want none", n, clearErr)
	}
	if verdict == absent {
		t.Error("a process of another PID namespace is taken for ended")
	}
}
