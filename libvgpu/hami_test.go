// SPDX-License-Identifier: Apache-2.0

package libvgpu

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	hamiUUID0 = "GPU-00000000-0000-0000-0000-000000000001"
	hamiUUID1 = "GPU-00000000-0000-0000-0000-000000000002"
)

// image is a file whose bytes are zero but for those that were put, the last
// over the first.
type image struct {
	size  int64
	parts []part
}

type part struct {
	at   int64
	data []byte
}

func newImage(size int64) *image { return &image{size: size} }

// put stores values one behind the other; a string is stored as its bytes.
func (m *image) put(at int64, values ...any) *image {
	for _, v := range values {
		var b []byte
		if s, isText := v.(string); isText {
			b = []byte(s)
		} else {
			b, _ = binary.Append(nil, binary.NativeEndian, v)
		}
		m.parts = append(m.parts, part{at, b})
		at += int64(len(b))
	}
	return m
}

func (m *image) ReadAt(p []byte, off int64) (int, error) {
	n := int(max(min(int64(len(p)), m.size-off), 0))
	clear(p[:n])
	for _, b := range m.parts {
		if from := max(b.at, off); from < b.at+int64(len(b.data)) && from < off+int64(n) {
			copy(p[from-off:n], b.data[from-b.at:])
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *image) write(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cudevshr.cache")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(m.size); err != nil {
		t.Fatal(err)
	}
	for _, b := range m.parts {
		if _, err := f.WriteAt(b.data[:max(min(int64(len(b.data)), m.size-b.at), 0)], b.at); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// Offsets of the layout as a compiler lays out the library's own headers.
const (
	hamiDevices = 56
	hamiProcs   = 1856
	hamiSlot    = 1960
	hamiUsed    = 8
	hamiMem     = 64
	hamiUtil    = 1160
	hamiStatus  = 1928
	hamiTail    = 2008896
)

// hamiSizes are sizes of files that begin with the region.
var hamiSizes = map[string]int64{
	"1.2":                            2008953,
	"1.2, without the byte after it": 2008952,
	"1.2, with something behind it, as our caches": 6000000,
}

// hamiImage has two devices and slots 0 and 2 in use.
func hamiImage(size int64) (*image, HAMiView) {
	m := newImage(size).put(0, int32(19920718), int32(1), int32(2))
	m.put(hamiDevices, uint64(2), hamiUUID0).put(hamiDevices+8+96, hamiUUID1)
	m.put(hamiDevices+8+16*96, uint64(8<<30), uint64(4<<30)).put(hamiDevices+8+16*96+128, uint64(30), uint64(100))
	want := HAMiView{
		Version: "1.2", Priority: 1, Recent: -1, SMLimited: true, LastKernel: time.Unix(1700000000, 0),
		Devices: []HAMiDevice{{hamiUUID0, 8 << 30, 30}, {hamiUUID1, 4 << 30, 100}},
	}
	for i := range int64(3) {
		slot := hamiProcs + i*hamiSlot
		if i == 1 {
			continue // its process has gone
		}
		p := HAMiProc{PID: uint32(100 + i), HostPID: uint32(200 + i), Status: int32(2 - i/2)}
		m.put(slot, p.PID, p.HostPID).put(slot+hamiStatus, p.Status)
		for d := range int64(2) {
			n := uint64(1000*(i+1) + 100*d)
			u := HAMiUse{Context: n + 1, Module: n + 2, Data: n + 3, Total: 3*n + 6, Monitored: n + 4, SMUtil: n % 97}
			m.put(slot+hamiUsed+d*hamiMem, u.Context, u.Module, u.Data, n+9, u.Total)
			m.put(slot+hamiUsed+16*hamiMem+d*8, u.Monitored)
			m.put(slot+hamiUtil+d*48, n+10, n+11, u.SMUtil)
			p.Used = append(p.Used, u)
		}
		want.Procs = append(want.Procs, p)
	}
	m.put(hamiTail, int32(3), int32(1), int32(-1), int32(1), uint64(1700000000))
	return m, want
}

func TestReadHAMiSizes(t *testing.T) {
	for name, size := range hamiSizes {
		t.Run(name, func(t *testing.T) {
			m, want := hamiImage(size)
			got, err := ReadHAMi(m.write(t))
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, want)
			}
		})
	}
}

func TestReadHAMiOfOurCache(t *testing.T) {
	dir := t.TempDir()
	spec := exampleSpec()
	g, err := CreateGrant(filepath.Join(dir, "grant"), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	path := filepath.Join(dir, "cache")
	if err := CreateCache(path, spec, uint32(os.Getuid()), uint32(os.Getgid())); err != nil {
		t.Fatal(err)
	}
	// Before any process has written the view there is none.
	if _, err := ReadHAMi(path); !errors.Is(err, ErrNotHAMi) {
		t.Fatalf("new cache: %v, want %v", err, ErrNotHAMi)
	}
	cache, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	put := func(at int, v any) {
		if _, err := binary.Encode(cache[at:], binary.NativeEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	slot := cacheAt + headerBytes + slotBytes // the second one
	put(cacheAt+32, uint32(2))                // high_slot
	put(slot, uint64(4217)<<32|77)
	put(slot+20, uint32(99))           // host_pid
	put(slot+64, uint64(1000))         // mem
	put(slot+64+8, uint64(100))        // mem_module
	put(slot+64+16, uint64(500))       // mem_context
	put(slot+64+24, uint64(time.Hour)) // gpu_ns
	put(slot+64+32, uint64(3))         // launches
	put(slot+64+64, uint64(50))        // mem on the second card
	start := time.Unix(1700000000, 0)
	updateHAMi(cache, g.mem, start)
	put(slot+64+24, uint64(time.Hour+250*time.Millisecond))
	updateHAMi(cache, g.mem, start.Add(time.Second))
	if err := os.WriteFile(path, cache, 0o600); err != nil {
		t.Fatal(err)
	}
	want := HAMiView{
		Version:   "1.2",
		Devices:   []HAMiDevice{{spec.Cards[0].UUID, 8 << 30, 25}, {spec.Cards[1].UUID, 4 << 30, 80}},
		SMLimited: true, LastKernel: start,
		Procs: []HAMiProc{{PID: 4217, HostPID: 99, Status: 1, Used: []HAMiUse{
			{Context: 500, Module: 100, Data: 400, Total: 1000, Monitored: 1000, SMUtil: 25},
			{Data: 50, Total: 50, Monitored: 50},
		}}},
	}
	if got, err := ReadHAMi(path); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	// The cache behind it is as it was.
	view, err := ReadCache(path)
	if err != nil || len(view.Slots) != 1 || view.Slots[0].Cards[0].Mem != 1000 {
		t.Errorf("cache: %+v, %v", view, err)
	}
}

func TestReadHAMiTrustsNoCount(t *testing.T) {
	full, want := hamiImage(hamiSizes["1.2"])
	for name, c := range map[string]struct {
		at      int64
		v       any
		devices int
		procs   int
	}{
		"more devices than fit":   {56, ^uint64(0), 16, 2},
		"no devices":              {56, uint64(0), 0, 2},
		"more processes than fit": {2008896, int32(1<<31 - 1), 2, 3}, // slot 1023 too
		"fewer than none":         {2008896, int32(-1), 2, 0},
		"fewer than are there":    {2008896, int32(1), 2, 1},
	} {
		m := &image{full.size, slices.Clone(full.parts)}
		m.put(1856+1023*1960, int32(5)).put(c.at, c.v)
		got, err := ReadHAMi(m.write(t))
		if err != nil || len(got.Devices) != c.devices || len(got.Procs) != c.procs {
			t.Errorf("%s: %d devices, %d processes, %v; want %d and %d", name, len(got.Devices), len(got.Procs), err, c.devices, c.procs)
		}
		for _, p := range got.Procs {
			if len(p.Used) != c.devices {
				t.Errorf("%s: process %d: %d devices, want %d", name, p.PID, len(p.Used), c.devices)
			}
		}
	}
	full.put(64, strings.Repeat("\x1b", 96)).put(2008912, ^uint64(0))
	want.Devices[0].UUID, want.LastKernel = strings.Repeat("?", 96), time.Time{}
	if got, err := ReadHAMi(full.write(t)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("rubbish in a UUID and a time: got %+v, %v\nwant %+v", got, err, want)
	}
}

func TestReadHAMiRefuses(t *testing.T) {
	cut := func(size int64) *image { m, _ := hamiImage(size); return m }
	whole := func() *image { return cut(hamiSizes["1.2"]) }
	for name, c := range map[string]struct {
		m    *image
		text string
	}{
		"empty":                    {newImage(0), "12 bytes at 0"},
		"cut in the version words": {cut(11), "12 bytes at 0"},
		"zeros":                    {newImage(2008953), "magic 0"},
		"magic alone":              {cut(12), "12 bytes; want at least 2008952"},
		"cut in the devices":       {cut(1000), "1000 bytes"},
		"cut by one byte":          {cut(2008951), "2008951 bytes"},
		"version 1.3":              {whole().put(8, int32(3)), "version 1.3"},
		"version 1.1":              {whole().put(8, int32(1)), "version 1.1"},
		"version 1.0":              {whole().put(8, int32(0)), "version 1.0"},
		"version 2.1":              {whole().put(4, int32(2)).put(8, int32(1)), "version 2.1"},
	} {
		_, err := ReadHAMi(c.m.write(t))
		if !errors.Is(err, ErrNotHAMi) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v; want %v with %q", name, err, ErrNotHAMi, c.text)
		}
	}
	// The file shrinks after its size was looked at.
	m := cut(2008952 - 100)
	if _, err := parseHAMi(m, 2008953); !errors.Is(err, ErrNotHAMi) {
		t.Errorf("shrunk file: %v, want %v", err, ErrNotHAMi)
	}
	dir := t.TempDir()
	if _, err := ReadHAMi(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v, want %v", err, os.ErrNotExist)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(whole().write(t), link); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadHAMi(link); !errors.Is(err, unix.ELOOP) {
		t.Errorf("symbolic link: %v, want %v", err, unix.ELOOP)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, dir} {
		if _, err := ReadHAMi(path); !errors.Is(err, ErrNotHAMi) {
			t.Errorf("%s: %v, want %v", path, err, ErrNotHAMi)
		}
	}
}

func FuzzHAMi(f *testing.F) {
	for _, size := range hamiSizes {
		start, _ := binary.Append(nil, binary.NativeEndian, []int32{19920718, 1, 2})
		f.Add(size, start, int64(hamiDevices), []byte{2}, int64(hamiTail), []byte{255, 3, 0, 0}, int64(hamiProcs+hamiSlot), []byte{7})
	}
	f.Fuzz(func(t *testing.T, size int64, start []byte, at1 int64, b1 []byte, at2 int64, b2 []byte, at3 int64, b3 []byte) {
		m := newImage(size)
		m.parts = []part{{max(at1, 0), b1}, {max(at2, 0), b2}, {max(at3, 0), b3}, {0, start}}
		view, err := parseHAMi(m, size)
		if err != nil {
			if !errors.Is(err, ErrNotHAMi) {
				t.Fatal(err)
			}
			return
		}
		if len(view.Devices) > 16 || len(view.Procs) > 1024 {
			t.Fatalf("%d devices, %d processes", len(view.Devices), len(view.Procs))
		}
		for _, p := range view.Procs {
			if p.PID == 0 || len(p.Used) != len(view.Devices) {
				t.Fatalf("process %+v with %d devices", p, len(view.Devices))
			}
		}
	})
}
