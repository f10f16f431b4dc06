// SPDX-License-Identifier: Apache-2.0

package libvgpu

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// memory is a file without a name, so that a try costs no disk.
func memory(t testing.TB) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	t.Cleanup(func() { f.Close() })
	return f
}

// write puts a file of that size together from parts; what lies beyond its end
// is left out.
func write(t testing.TB, f *os.File, size int64, parts ...part) {
	t.Helper()
	if err := errors.Join(f.Truncate(0), f.Truncate(size)); err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		if p.at >= 0 && p.at < size {
			if _, err := f.WriteAt(p.data[:min(int64(len(p.data)), size-p.at)], p.at); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// goodGrant and goodCache are files as gresd makes them; of the cache, its
// header and one slot of a process that is not there.
func goodGrant(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "grant")
	g, err := CreateGrant(path, exampleSpec())
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func goodCache(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cache")
	if err := CreateCache(path, exampleSpec(), uint32(os.Getuid()), uint32(os.Getgid())); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := make([]byte, headerBytes+slotBytes)
	if _, err := f.ReadAt(data, cacheAt); err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint32(data[highSlotAt:], 1)
	slot := data[headerBytes:]
	binary.LittleEndian.PutUint64(slot, 0x3ffff0<<32|7) // no pid is that high here
	for card := range exampleSpec().Cards {
		binary.LittleEndian.PutUint64(slot[64+card*64:], uint64(1+card)<<30)
	}
	return data
}

const (
	ncardsAt      = 28 // in a grant
	cacheNcardsAt = 24
	highSlotAt    = 32
)

func printable(s string) bool {
	return !slices.ContainsFunc([]byte(s), func(c byte) bool { return c < ' ' || c > '~' })
}

func FuzzReadGrant(f *testing.F) {
	good := goodGrant(f)
	f.Add(int64(0), int64(0), []byte{}, int64(0), []byte{})
	f.Add(int64(-1), int64(0), []byte("VPUGRANT"), int64(8), []byte{1, 0, 0, 0})
	f.Add(int64(1<<20), int64(ncardsAt), []byte{16}, int64(cardsAt+cardSeq), []byte{1})
	f.Add(int64(0), int64(ncardsAt), []byte{0xff, 0xff, 0xff, 0xff}, int64(32), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add(int64(0), int64(cardsAt), []byte("\x1b[2J\x1b]0;owned\x07\n"), int64(cardsAt+47), []byte{'x', 0xff, 0xff})
	file := memory(f)
	f.Fuzz(func(t *testing.T, longer, at1 int64, b1 []byte, at2 int64, b2 []byte) {
		size := max(int64(len(good))+longer%8192, 0)
		write(t, file, size, part{0, good}, part{at1, b1}, part{at2, b2})
		buf := make([]byte, GrantSize)
		spec, schedules, err := loadGrant(file, buf)
		if err != nil && !errors.Is(err, errBusy) {
			if !errors.Is(err, ErrNotGrant) {
				t.Fatal(err)
			}
			return
		}
		n := int(binary.LittleEndian.Uint32(buf[ncardsAt:]))
		if len(spec.Cards) != n || len(schedules) != n || n < 1 || n > MaxCards || size != GrantSize {
			t.Fatalf("%d cards, %d schedules, the file of %d bytes says %d", len(spec.Cards), len(schedules), size, n)
		}
		odd := false
		for i, c := range spec.Cards {
			raw := buf[cardsAt+i*192:]
			if c.MemLimit != binary.LittleEndian.Uint64(raw[48:]) || schedules[i].Gate != binary.LittleEndian.Uint32(raw[92:]) || !printable(c.UUID) {
				t.Fatalf("card %d: %+v, %+v", i, c, schedules[i])
			}
			odd = odd || raw[cardSeq]&1 == 1
		}
		if odd != errors.Is(err, errBusy) {
			t.Fatalf("a schedule is being written: %v; error %v", odd, err)
		}
	})
}

func FuzzReadCache(f *testing.F) {
	good := goodCache(f)
	f.Add(int64(0), int64(0), []byte{}, int64(0), []byte{}, []byte{})
	f.Add(int64(-1), int64(0), []byte("VPUCACHE"), int64(0), []byte{}, []byte{})
	f.Add(int64(0), int64(cacheNcardsAt), []byte{16, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, int64(highSlotAt), []byte{0xff, 0xff, 0xff, 0xff}, []byte{1})
	f.Add(int64(0), int64(cacheNcardsAt), []byte{16}, int64(64), []byte("\x1b[2J\n"), []byte{})
	f.Add(int64(0), int64(highSlotAt), []byte{64}, int64(headerBytes+slotBytes), []byte{1, 2, 3, 4, 5, 6, 7, 8}, []byte{0xff})
	file := memory(f)
	f.Fuzz(func(t *testing.T, longer, at1 int64, b1 []byte, at2 int64, b2, fill []byte) {
		// fill, again and again, makes many slots from little input.
		var slots []byte
		if len(fill) > 0 {
			slots = slices.Repeat(fill, 8*slotBytes/len(fill)+1)
		}
		write(t, file, max(int64(CacheSize)+longer%8192, 0),
			part{cacheAt + headerBytes, slots}, part{cacheAt, good}, part{cacheAt + at1%(1<<23), b1}, part{cacheAt + at2%(1<<23), b2})
		r := newReader(file)
		view, err := r.Read()
		if err != nil {
			if !errors.Is(err, ErrNotCache) {
				t.Fatal(err)
			}
			return
		}
		raw := make([]byte, CacheSize-cacheAt)
		if _, err := file.ReadAt(raw, cacheAt); err != nil {
			t.Fatal(err)
		}
		checkCache(t, view, raw)
	})
}

// checkCache reads the bytes once more, by the offsets that are the ABI.
func checkCache(t *testing.T, view CacheView, raw []byte) {
	t.Helper()
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(raw[at:]) }
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(raw[at:]) }
	cards, high := int(u32(cacheNcardsAt)), min(u32(highSlotAt), MaxSlots)
	if len(view.Cards) != cards || cards < 1 || cards > MaxCards {
		t.Fatalf("%d cards, the file says %d", len(view.Cards), cards)
	}
	used := make([]uint64, cards)
	next := 0
	for i := range int(high) {
		at := headerBytes + i*slotBytes
		if u64(at) == 0 {
			continue
		}
		if next >= len(view.Slots) {
			t.Fatalf("slot %d of %d is missing", i, high)
		}
		s := view.Slots[next]
		next++
		if s.Index != uint32(i) || s.Owner != u64(at) || len(s.Cards) != cards {
			t.Fatalf("slot %d: %+v", i, s)
		}
		for card := range used {
			mem := u64(at + 64 + card*64)
			if s.Cards[card].Mem != mem {
				t.Fatalf("slot %d, card %d: %d bytes, the file says %d", i, card, s.Cards[card].Mem, mem)
			}
			if s.Alive {
				used[card] += min(mem, math.MaxUint64-used[card])
			}
		}
	}
	if next != len(view.Slots) {
		t.Fatalf("%d slots, the file has %d", len(view.Slots), next)
	}
	for i, c := range view.Cards {
		if c.MemUsed != used[i] || c.MemLimit != u64(832+i*8) || !printable(c.UUID) {
			t.Fatalf("card %d: %+v, want %d bytes in use", i, c, used[i])
		}
	}
}

// What one changed bit may do.
const (
	refused = "is refused"
	other   = "changes what is read"
	same    = "changes nothing that is read"
	free    = "may do either"
)

// span is a piece of a file whose bits have one effect.
type span struct {
	from, to int
	effect   string
}

// flipEach changes every bit of the spans, one at a time; read returns what a
// reader makes of the file, nil for a refusal.
func flipEach(t *testing.T, file *os.File, offset int64, good []byte, spans []span, read func() any) {
	t.Helper()
	want := read()
	at := 0
	for _, s := range spans {
		if s.from != at {
			t.Fatalf("the test itself: a gap before byte %d", s.from)
		}
		for ; at < s.to; at++ {
			for bit := range 8 {
				if _, err := file.WriteAt([]byte{good[at] ^ 1<<bit}, offset+int64(at)); err != nil {
					t.Fatal(err)
				}
				got, effect := read(), other
				switch {
				case got == nil:
					effect = refused
				case reflect.DeepEqual(got, want):
					effect = same
				}
				if effect != s.effect && s.effect != free {
					t.Errorf("bit %d of byte %d: %s, want one that %s: %+v", bit, at, effect, s.effect, got)
				}
			}
			if _, err := file.WriteAt(good[at:at+1], offset+int64(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if at != len(good) {
		t.Errorf("the test itself: ends at byte %d of %d", at, len(good))
	}
}

// uuidSpans is one card's name: 40 characters and the NUL behind them speak.
func uuidSpans(at int, used bool) []span {
	if !used {
		return []span{{at, at + 48, same}}
	}
	return []span{{at, at + 41, other}, {at + 41, at + 48, same}}
}

func TestEveryBitOfAGrant(t *testing.T) {
	good := goodGrant(t)
	spans := []span{
		{0, 16, refused},               // magic, version, size
		{16, ncardsAt, other},          // job, uid, gid
		{ncardsAt, ncardsAt + 4, free}, // fewer cards, more, or too many
		{32, 40, other},                // made when
		{grantGeneration, 44, same},    // only the job's processes look at it
		{grantRevoked, 48, other},      // any bit revokes
		{48, cardsAt, free},            // text, or not used yet
	}
	for i := range MaxCards {
		at := cardsAt + i*192
		if i >= len(exampleSpec().Cards) {
			spans = append(spans, span{at, at + 192, same})
			continue
		}
		spans = append(spans, uuidSpans(at, true)...)
		spans = append(spans,
			span{at + 48, at + 80, other}, // limits
			span{at + 80, at + 81, free},  // odd: being written, which is for the reader to wait for
			span{at + 81, at + 84, same},
			span{at + 84, at + 112, other}, // schedule, engine
			span{at + 112, at + 120, same}, // what is outside, only for the job's processes
			span{at + 120, at + 128, other},
			span{at + 128, at + 192, free}) // windows, and unused bytes
	}
	file := memory(t)
	write(t, file, GrantSize, part{0, good})
	type grant struct {
		spec      GrantSpec
		schedules []Schedule
	}
	flipEach(t, file, 0, good, spans, func() any {
		spec, schedules, err := loadGrant(file, make([]byte, GrantSize))
		if err != nil {
			return nil
		}
		return grant{spec, schedules}
	})
}

func TestEveryBitOfACache(t *testing.T) {
	good := goodCache(t)
	spans := []span{
		{0, 12, refused}, // magic, version
		{12, 16, same},   // its own idea of its size
		{16, 20, other},  // job
		{20, cacheNcardsAt, same},
		{cacheNcardsAt, cacheNcardsAt + 4, free},
		{cacheNcardsAt + 4, highSlotAt, same}, // how many slots there are is not for the file to say
		{highSlotAt, highSlotAt + 4, free},
		{highSlotAt + 4, 64, same},
	}
	cards := len(exampleSpec().Cards)
	for i := range MaxCards {
		spans = append(spans, uuidSpans(64+i*48, i < cards)...)
	}
	spans = append(spans, span{832, 832 + cards*8, other}, span{832 + cards*8, 960, same})
	for i := range MaxCards {
		at := 960 + i*64
		if i >= cards {
			spans = append(spans, span{at, at + 64, same})
			continue
		}
		spans = append(spans, span{at, at + 8, other}, span{at + 8, at + 16, same}, span{at + 16, at + 48, other}, span{at + 48, at + 64, same})
	}
	for i := range MaxCards { // demand
		at := 1984 + i*24
		if i >= cards {
			spans = append(spans, span{at, at + 24, same})
			continue
		}
		spans = append(spans, span{at, at + 24, other})
	}
	spans = append(spans, span{2368, 2368 + cards*8, other}, // peaks
		span{2368 + cards*8, 2496, same},
		span{2496, 2496 + cards*8, other}, // elapsed times
		span{2496 + cards*8, headerBytes, same},
		span{headerBytes, headerBytes + 8, other},     // owner
		span{headerBytes + 8, headerBytes + 64, free}) // of the process, some for display
	for i := range MaxCards {
		at := headerBytes + 64 + i*64
		if i >= cards {
			spans = append(spans, span{at, at + 64, same})
			continue
		}
		spans = append(spans, span{at, at + 8, other}, span{at + 8, at + 16, same}, span{at + 16, at + 56, other}, span{at + 56, at + 64, free})
	}
	file := memory(t)
	write(t, file, CacheSize, part{cacheAt, good})
	flipEach(t, file, cacheAt, good, spans, func() any {
		r := newReader(file)
		view, err := r.Read()
		if err != nil {
			return nil
		}
		for i := range view.Slots {
			view.Slots[i].Gone = false // whether that is known depends on the time
		}
		return view
	})
}

// A cache of which everything is in use, by nobody who lives, is read in time:
// gresd reads the caches of all jobs, every tick.
func TestTheWorstCacheIsReadInTime(t *testing.T) {
	good := goodCache(t)
	binary.LittleEndian.PutUint32(good[cacheNcardsAt:], MaxCards)
	binary.LittleEndian.PutUint32(good[highSlotAt:], math.MaxUint32)
	slots := make([]byte, MaxSlots*slotBytes)
	for i := range slots {
		slots[i] = 0xff
	}
	for i := range MaxSlots { // each a process of its own
		binary.LittleEndian.PutUint32(slots[i*slotBytes:], uint32(i))
	}
	file := memory(t)
	write(t, file, CacheSize, part{cacheAt, good[:headerBytes]}, part{cacheAt + headerBytes, slots})
	r := newReader(file)
	began := time.Now()
	view, err := r.Read()
	if took := time.Since(began); err != nil || len(view.Slots) != MaxSlots || took > 2*time.Second {
		t.Errorf("%d slots in %s, %v; want %d in 2 s", len(view.Slots), took, err, MaxSlots)
	}
	if len(r.alive) > MaxSlots {
		t.Errorf("remembers %d processes", len(r.alive))
	}
}
