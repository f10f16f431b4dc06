// SPDX-License-Identifier: Apache-2.0

package libvgpu

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Offsets of region.h written out once more: a process of another release
// reads the bytes at these places, so a change here is a change of the ABI.
const (
	grantGeneration = 40
	grantRevoked    = 44
	cardsAt         = 128
	cardSeq         = 80
	cacheAt         = 2097152
	headerBytes     = 3072
	slotBytes       = 1088
)

func exampleSpec() GrantSpec {
	return GrantSpec{
		JobID: 4217, UID: 33, GID: 34, Created: time.Unix(1700000000, 5),
		Cards: []GrantCard{
			{UUID: "GPU-00000000-0000-0000-0000-000000000001", MemLimit: 8 << 30, MemPhysical: 4 << 30, MemOverhead: 500 << 20, Share: 30, Cores: 25, Mode: ModeHard, Priority: PrioHigh, Engine: EngineConcurrent},
			{UUID: "GPU-00000000-0000-0000-0000-000000000002", MemLimit: 4 << 30, Share: 20, Cores: 20, Mode: ModeSoft, Ceiling: 80},
		},
	}
}

func create(t *testing.T) (string, *Grant) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "grant")
	g, err := CreateGrant(path, exampleSpec())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return path, g
}

func TestGrantRoundTrip(t *testing.T) {
	path, g := create(t)
	spec, schedules, err := ReadGrant(path)
	if err != nil || !reflect.DeepEqual(spec, exampleSpec()) {
		t.Fatalf("got %+v, %v; want %+v", spec, err, exampleSpec())
	}
	// A hard limit holds from the first moment, before the arbiter has looked.
	if want := []Schedule{{Gate: 1, Cores: 25}, {Cores: 20}}; !reflect.DeepEqual(schedules, want) {
		t.Errorf("schedules %+v, want %+v", schedules, want)
	}
	if !reflect.DeepEqual(g.Spec(), exampleSpec()) {
		t.Errorf("spec of the open grant: %+v", g.Spec())
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o444 || info.Size() != GrantSize {
		t.Errorf("file: %v, %v; want 0444 and %d bytes", info, err, GrantSize)
	}
}

func TestGrantBytes(t *testing.T) {
	path, g := create(t)
	if !g.SetOutside(1, -5) || g.SetOutside(1, -5) || g.SetOutside(2, 1) {
		t.Error("want a change the first time only, and none of a card that is not there")
	}
	g.SetSchedule(1, Schedule{SliceUS: 7000, Gate: 1, WeightPPM: 350000, BusyProcs: 2, Others: 1, Cores: 20})
	g.Revoke()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := binary.LittleEndian.Uint64(data[cardsAt+120:]); got != 4<<30 {
		t.Errorf("physical memory %d, want 4 GiB", got)
	}
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(data[at:]) }
	if string(data[:8]) != "VPUGRANT" {
		t.Errorf("magic %q", data[:8])
	}
	second := cardsAt + 192
	if got := int64(binary.LittleEndian.Uint64(data[second+112:])); got != -5 {
		t.Errorf("outside %d, want -5", got)
	}
	for name, c := range map[string][2]uint32{
		"version":    {u32(8), 2},
		"size":       {u32(12), 3200},
		"job":        {u32(16), 4217},
		"uid":        {u32(20), 33},
		"gid":        {u32(24), 34},
		"cards":      {u32(28), 2},
		"generation": {u32(grantGeneration), 2},
		"revoked":    {u32(grantRevoked), 1},
		"ceiling":    {u32(second + 76), 80},
		"seq":        {u32(second + cardSeq), 2},
		"cores":      {u32(second + 84), 20},
		"slice":      {u32(second + 88), 7000},
		"gate":       {u32(second + 92), 1},
		"weight":     {u32(second + 96), 350000},
		"busy":       {u32(second + 100), 2},
		"others":     {u32(second + 104), 1},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: got %d, want %d", name, c[0], c[1])
		}
	}
}

func TestSetScheduleWritesOnlyChanges(t *testing.T) {
	_, g := create(t)
	s := Schedule{SliceUS: 6000, Cores: 25}
	if !g.SetSchedule(0, s) || g.SetSchedule(0, s) {
		t.Error("want a change the first time only")
	}
	if g.SetSchedule(2, s) || g.SetSchedule(-1, s) {
		t.Error("a card that the grant does not have was changed")
	}
	if got := g.Schedule(0); got != s {
		t.Errorf("got %+v, want %+v", got, s)
	}
	g.Close()
	if g.SetSchedule(0, Schedule{}) {
		t.Error("a closed grant was changed")
	}
}

// A gresd that starts again goes on with the sum of corrections that it finds.
func TestCorrectionsAddUpOverARestart(t *testing.T) {
	path, g := create(t)
	g.AddCredit(1, 5*time.Millisecond+999)
	g.AddCredit(1, -7*time.Millisecond)
	g.AddCredit(2, time.Second) // a card that the grant does not have
	g.Close()
	g, err := OpenGrantRW(path)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	g.AddCredit(1, time.Millisecond)
	if got := g.Credit(1); got != -time.Millisecond || g.Credit(0) != 0 {
		t.Errorf("%v and %v, want -1ms and 0", got, g.Credit(0))
	}
}

// What gresd measured of gaps is valid for a time.
func TestGapsAreValidForATime(t *testing.T) {
	_, g := create(t)
	for _, test := range []struct {
		idle  float64
		valid time.Duration
		want  float64
	}{{0.75, time.Minute, 0.75}, {0.5, 0, 0}, {0.25, time.Minute, 0.25}} {
		g.SetGaps(1, test.idle, test.valid)
		g.SetGaps(2, 1, time.Minute) // a card that the grant does not have
		if got := g.Gaps(1); got != test.want || g.Gaps(0) != 0 {
			t.Errorf("%g for %v: got %g and %g, want %g and 0", test.idle, test.valid, got, g.Gaps(0), test.want)
		}
	}
	g.Close()
	if g.SetGaps(1, 1, time.Minute); g.Gaps(1) != 0 {
		t.Error("a closed grant was changed")
	}
}

func TestCreateGrantNeverReplaces(t *testing.T) {
	path, _ := create(t)
	before := inodeOf(t, path)
	if _, err := CreateGrant(path, exampleSpec()); !errors.Is(err, os.ErrExist) {
		t.Errorf("got %v, want exists", err)
	}
	g, err := OpenGrantRW(path)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	g.SetSchedule(0, Schedule{SliceUS: 1, Cores: 25})
	if after := inodeOf(t, path); after != before {
		t.Errorf("inode %d became %d", before, after)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
}

func TestOpenGrantEndsAHalfWrittenSchedule(t *testing.T) {
	path, g := create(t)
	g.Close()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{1}, cardsAt+cardSeq); err != nil { // as after SIGKILL in SetSchedule
		t.Fatal(err)
	}
	if _, _, err := ReadGrant(path); !errors.Is(err, errBusy) {
		t.Errorf("read of an odd sequence: got %v, want busy", err)
	}
	g, err = OpenGrantRW(path)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, _, err := ReadGrant(path); err != nil {
		t.Errorf("read after adoption: %v", err)
	}
}

// A reader must never see the parts of two schedules.
func TestScheduleIsWholeUnderChange(t *testing.T) {
	path, g := create(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := uint32(1); !stop.Load(); n++ {
			g.SetSchedule(0, Schedule{SliceUS: n, WeightPPM: n, BusyProcs: n, Others: n, Cores: 25})
			if n%8 == 0 {
				time.Sleep(50 * time.Microsecond)
			}
		}
	})
	for range 300 {
		_, schedules, err := ReadGrant(path)
		if err != nil {
			t.Error(err)
			break
		}
		s := schedules[0]
		if s.SliceUS != s.WeightPPM || s.SliceUS != s.BusyProcs || s.SliceUS != s.Others {
			t.Errorf("torn schedule %+v", s)
			break
		}
	}
	stop.Store(true)
	wg.Wait()
}

func TestReadGrantRefuses(t *testing.T) {
	good, _ := create(t)
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	change := func(at int, b byte) []byte {
		c := append([]byte(nil), data...)
		c[at] = b
		return c
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"empty": nil, "short": data[:len(data)-1], "long": append(data[:len(data):len(data)], 0),
		"magic": change(0, 'x'), "version": change(8, 9), "no cards": change(28, 0), "too many cards": change(28, 17),
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ReadGrant(path); !errors.Is(err, ErrNotGrant) {
			t.Errorf("%s: got %v, want ErrNotGrant", name, err)
		}
		if _, err := OpenGrantRW(path); !errors.Is(err, ErrNotGrant) {
			t.Errorf("%s: open: got %v, want ErrNotGrant", name, err)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(good, link); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenGrantRW(link); !errors.Is(err, unix.ELOOP) {
		t.Errorf("link: got %v, want too many links", err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadGrant(pipe); !errors.Is(err, ErrNotGrant) {
		t.Errorf("pipe: got %v, want ErrNotGrant", err)
	}
}

func TestCreateGrantChecksItsCards(t *testing.T) {
	spec := exampleSpec()
	spec.Cards = make([]GrantCard, MaxCards+1)
	if _, err := CreateGrant(filepath.Join(t.TempDir(), "g"), spec); err == nil {
		t.Error("17 cards accepted")
	}
	spec.Cards = []GrantCard{{UUID: string(make([]byte, 48))}}
	if _, err := CreateGrant(filepath.Join(t.TempDir(), "g"), spec); err == nil {
		t.Error("a uuid of 48 bytes accepted")
	}
}

// putSlot writes one slot as a process of the job would.
func putSlot(t testing.TB, path string, n int, pid, hostPID uint32, start uint64, mem uint64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	slot := make([]byte, slotBytes)
	le := binary.LittleEndian
	le.PutUint64(slot, ownerOf(pid, start))
	le.PutUint64(slot[8:], start)
	le.PutUint32(slot[16:], pid)
	le.PutUint32(slot[20:], hostPID)
	le.PutUint32(slot[32:], SlotSlicesOK)
	le.PutUint32(slot[40:], 11)
	le.PutUint32(slot[44:], 10)
	card := slot[64:]
	le.PutUint64(card, mem)
	le.PutUint64(card[8:], 1)  // module
	le.PutUint64(card[16:], 2) // context
	le.PutUint64(card[24:], 3) // gpu_ns
	le.PutUint64(card[32:], 4) // launches
	le.PutUint64(card[40:], 5) // inflight_ns
	le.PutUint32(card[48:], 6) // slice_us
	le.PutUint32(card[52:], 7) // contexts
	high := make([]byte, 4)
	le.PutUint32(high, uint32(n+1))
	for _, w := range []struct {
		data []byte
		at   int64
	}{{slot, cacheAt + headerBytes + int64(n)*slotBytes}, {high, cacheAt + 32}} {
		if _, err := f.WriteAt(w.data, w.at); err != nil {
			t.Fatal(err)
		}
	}
}

func createCache(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cache")
	if err := CreateCache(path, exampleSpec(), uint32(os.Getuid()), uint32(os.Getgid())); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCacheRoundTrip(t *testing.T) {
	path := createCache(t)
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 || info.Size() != CacheSize {
		t.Fatalf("file: %v, %v; want 0600 and %d bytes", info, err, CacheSize)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Blocks*512 > 256<<10 {
		t.Errorf("%d bytes on disk, %v: want a sparse file", st.Blocks*512, err)
	}
	// The first processes of a job need no page of a file system that may be full.
	if st.Blocks*512 < headerSize+usualSlots*slotSize {
		t.Errorf("%d bytes on disk: want room for %d slots", st.Blocks*512, usualSlots)
	}
	self, life := startTime(uint32(os.Getpid()))
	if life != lives {
		t.Fatal("cannot read the start time of this process")
	}
	dead := exec.Command("/bin/true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	putSlot(t, path, 0, uint32(os.Getpid()), 0, self, 1<<20)
	putSlot(t, path, 2, uint32(dead.Process.Pid), uint32(dead.Process.Pid), self, 1<<30)
	view, err := ReadCache(path)
	if err != nil {
		t.Fatal(err)
	}
	if view.JobID != 4217 || len(view.Cards) != 2 || len(view.Slots) != 2 {
		t.Fatalf("view %+v", view)
	}
	if c := view.Cards[0]; c.MemUsed != 1<<20 || c.Module != 1 || c.Context != 2 || c.MemLimit != 8<<30 || c.UUID != exampleSpec().Cards[0].UUID {
		t.Errorf("card %+v: only the living process counts", c)
	}
	if s := view.Slots[0]; !s.Alive || !s.OnHost || s.Flags != SlotSlicesOK || s.MemBegun != 11 || s.MemDone != 10 || s.Cards[0] != (SlotCard{1 << 20, 3, 4, 5, 6, 7, 2, 0, 0}) {
		t.Errorf("living slot %+v", s)
	}
	if view.Slots[1].Alive {
		t.Error("a dead process counts as alive")
	}
}

// What most jobs touch of the file is there before they do: on a full filesystem a
// process that touches a hole is killed.
func TestCreateCacheTakesItsRoom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	if err := CreateCache(path, GrantSpec{JobID: 7, Cards: []GrantCard{{UUID: "GPU-a"}}}, 0, 0); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	if want := int64(usualView + headerSize + usualSlots*slotSize); st.Blocks*512 < want || st.Size != CacheSize {
		t.Errorf("%d of %d bytes are allocated, want at least %d", st.Blocks*512, st.Size, want)
	}
}

func TestCacheSurvivesItsOwner(t *testing.T) {
	t.Run("a count of slots beyond the end", func(t *testing.T) {
		path := createCache(t)
		f, _ := os.OpenFile(path, os.O_RDWR, 0)
		defer f.Close()
		if _, err := f.WriteAt([]byte{0xff, 0xff, 0xff, 0xff}, cacheAt+32); err != nil {
			t.Fatal(err)
		}
		if view, err := ReadCache(path); err != nil || len(view.Slots) != 0 {
			t.Errorf("got %d slots, %v", len(view.Slots), err)
		}
	})
	t.Run("a cut file", func(t *testing.T) {
		path := createCache(t)
		r, err := OpenCache(path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for _, size := range []int64{cacheAt + 100, 10, 0} {
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Read(); !errors.Is(err, ErrNotCache) {
				t.Errorf("%d bytes: got %v, want ErrNotCache", size, err)
			}
		}
	})
	t.Run("sums that overflow", func(t *testing.T) {
		path := createCache(t)
		self, _ := startTime(uint32(os.Getpid()))
		putSlot(t, path, 0, uint32(os.Getpid()), 0, self, ^uint64(0)-5)
		putSlot(t, path, 1, uint32(os.Getpid()), 0, self, 100)
		view, err := ReadCache(path)
		if err != nil || view.Cards[0].MemUsed != ^uint64(0) {
			t.Errorf("got %d, %v; want the largest number", view.Cards[0].MemUsed, err)
		}
	})
}

// Where nothing can be proved of a process, its heartbeat speaks.
func TestHeartbeatSpeaksForAForeignProcess(t *testing.T) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	namespaced.mu.Lock() // so that nobody scans
	defer namespaced.mu.Unlock()
	foreign := SlotOwner{Owner: uint64(nsUnknown)<<54 | 4000001<<32 | 5}
	for _, c := range []struct {
		name string
		slot SlotView
		want bool
	}{
		{"fresh heartbeat", SlotView{HeartbeatNS: uint64(now.Nano())}, true},
		{"old heartbeat", SlotView{HeartbeatNS: uint64(now.Nano() - 20e9)}, false},
		{"heartbeat of the future", SlotView{HeartbeatNS: uint64(now.Nano() + 60e9)}, false},
		{"known to the host and gone", SlotView{HostPID: 1 << 30, HeartbeatNS: uint64(now.Nano())}, false},
	} {
		c.slot.SlotOwner, c.slot.PID, c.slot.StartTime = foreign, 4000001, 5
		var l liveness
		if l.look(&c.slot, time.Now(), nil, nil); l.alive != c.want || l.onHost || l.gone {
			t.Errorf("%s: %+v; want alive %v and not on the host, nor gone", c.name, l, c.want)
		}
	}
}

// putNamespace gives a slot an owner word and a namespace.
func putNamespace(t *testing.T, path string, n int, owner, ns uint64) {
	t.Helper()
	f := openRW(t, path)
	for at, word := range map[int64]uint64{0: owner, 56: ns} {
		if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, word), cacheAt+headerBytes+int64(n)*slotBytes+at); err != nil {
			t.Fatal(err)
		}
	}
}

func inodeOf(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}
