// SPDX-License-Identifier: Apache-2.0

package libvgpu

/*
#include "hami_view.h"

// The pointers of vgpu_cache stay on this side, where Go's checks allow them.
static void update_view(char *file, const struct vgpu_grant *g, uint64_t now)
{
	struct vgpu_cache c = {
		(struct vgpu_cache_header *)(file + VGPU_CACHE_OFFSET),
		(struct vgpu_slot *)(file + VGPU_SLOTS_OFFSET),
	};

	vgpu_hami_view_update(file, g, &c, now);
}
*/
import "C"

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNotHAMi says that a file is not a shared region of HAMi-core in a version
// that is known here.
var ErrNotHAMi = errors.New("not a HAMi-core file")

// HAMiView is what a shared region of HAMi-core says. Our caches begin with
// one too. Every number is the claim of whoever may write the file.
type HAMiView struct {
	Version   string // "0", "1.1", "1.2"
	Devices   []HAMiDevice
	Procs     []HAMiProc // slots in use
	Priority  int32      // 0: high, 1: normal
	Recent    int32      // above 0: kernels were launched lately; below: a monitor holds them back
	SMLimited bool       // the compute limit is held
	// When a kernel was launched last; the zero time where the version does
	// not say, or nothing was.
	LastKernel time.Time
}

// HAMiDevice is one card.
type HAMiDevice struct {
	UUID       string
	LimitBytes uint64 // 0: no limit
	SMLimit    uint64 // percent
}

// HAMiProc is one process. HostPID is 0 when it is not known.
type HAMiProc struct {
	PID, HostPID uint32
	Status       int32 // 0: gone, 1: running, 2: suspended
	Used         []HAMiUse
}

// HAMiUse is what a process uses of one device: bytes, and percent for SMUtil.
type HAMiUse struct {
	Context, Module, Data, Total uint64
	Monitored                    uint64 // as NVML counts it, where somebody asked NVML
	SMUtil                       uint64
}

const (
	hamiDevices = C.VGPU_HAMI_DEVICES
	hamiProcs   = C.VGPU_HAMI_PROCS
	hamiUUID    = C.VGPU_HAMI_UUID_LEN

	year10000 = 253402300800 // in seconds since 1970
)

// hamiLayout is what differs between the layouts; all else follows from it,
// since the order of the fields has stayed the same.
type hamiLayout struct {
	version string
	size    int64 // of the region; the library makes files one byte longer
	num     int64 // number of devices; the tables of devices come next
	slot    int64 // size of a process's slot
	used    int64 // in a slot, the first device's memory
	mem     int64 // size of a device's memory
	util    int64 // size of a device's utilisation; 0: not there
	last    bool  // the time of the last kernel is there
}

// The layouts that HAMi-core has had. Three of them call themselves 1.1.
var (
	hamiFirst = hamiLayout{version: "0", size: 804680, num: 48, slot: 784, used: 8, mem: 40}
	hami0     = hamiLayout{version: "0", size: 1197896, num: 48, slot: 1168, used: 8, mem: 40, util: 24}
	hami12    = hamiLayout{
		version: "1.2",
		size:    C.VGPU_HAMI_SIZE,
		num:     int64(unsafe.Offsetof(C.struct_vgpu_hami{}.device_num)),
		slot:    C.sizeof_struct_vgpu_hami_proc,
		used:    int64(unsafe.Offsetof(C.struct_vgpu_hami_proc{}.used)),
		mem:     C.sizeof_struct_vgpu_hami_mem,
		util:    C.sizeof_struct_vgpu_hami_util,
		last:    true,
	}
	// Released until March 2026: as 1.2, which only gave unused bytes a meaning.
	hami11 = hami12.as("1.1", hami12.size, hami12.num, hami12.used)
	// In the months before, in builds of a branch: a lock before the memory.
	hami11Lock = hami12.as("1.1", hami12.size, hami12.num, hami12.used+8)
	// March and April 2026: also a second semaphore before the devices.
	hami11Sem = hami12.as("1.1", 2008984, hami12.num+32, hami12.used+8)
)

func (l hamiLayout) as(version string, size, num, used int64) hamiLayout {
	l.version, l.size, l.num, l.used = version, size, num, used
	return l
}

func (l hamiLayout) uuids() int64     { return l.num + 8 }
func (l hamiLayout) limits() int64    { return l.uuids() + hamiDevices*hamiUUID }
func (l hamiLayout) smLimits() int64  { return l.limits() + hamiDevices*8 }
func (l hamiLayout) procs() int64     { return l.smLimits() + hamiDevices*8 }
func (l hamiLayout) tail() int64      { return l.procs() + hamiProcs*l.slot }
func (l hamiLayout) monitored() int64 { return l.used + hamiDevices*l.mem }
func (l hamiLayout) utils() int64     { return l.monitored() + hamiDevices*8 }
func (l hamiLayout) status() int64    { return l.utils() + hamiDevices*l.util }

func (l hamiLayout) fits(size int64) bool { return size == l.size || size == l.size+1 }

// ReadHAMi reads a shared region of HAMi-core, or the head of one of our
// caches, as it is now. The file may belong to anybody: it is read with pread,
// and no count in it is trusted.
func ReadHAMi(path string) (HAMiView, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return HAMiView{}, fmt.Errorf("read HAMi-core file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return HAMiView{}, fmt.Errorf("read HAMi-core file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return HAMiView{}, fmt.Errorf("read HAMi-core file %s: %w: %s", path, ErrNotHAMi, info.Mode().Type())
	}
	view, err := parseHAMi(f, info.Size())
	if err != nil {
		return HAMiView{}, fmt.Errorf("read HAMi-core file %s: %w", path, err)
	}
	return view, nil
}

func parseHAMi(r io.ReaderAt, size int64) (HAMiView, error) {
	var start [12]byte
	if err := readHAMi(r, start[:], 0); err != nil {
		return HAMiView{}, err
	}
	l, err := layoutOf(start[:], size)
	if err != nil {
		return HAMiView{}, err
	}
	head, tail := make([]byte, l.procs()), make([]byte, 24)
	if !l.last {
		tail = tail[:16]
	}
	if err := errors.Join(readHAMi(r, head, 0), readHAMi(r, tail, l.tail())); err != nil {
		return HAMiView{}, err
	}
	used := min(max(i32(tail, 0), 0), hamiProcs)
	slots := make([]byte, int64(used)*l.slot)
	if err := readHAMi(r, slots, l.procs()); err != nil {
		return HAMiView{}, err
	}
	if l == hami11 && lockFirst(slots) {
		l = hami11Lock
	}
	view := HAMiView{
		Version: l.version, Devices: l.devices(head),
		SMLimited: i32(tail, 4) != 0, Recent: i32(tail, 8), Priority: i32(tail, 12),
	}
	for ; len(slots) > 0; slots = slots[l.slot:] {
		if i32(slots, 0) != 0 {
			view.Procs = append(view.Procs, l.proc(slots, len(view.Devices)))
		}
	}
	// A time that no clock shows is none; JSON cannot hold years above 9999 either.
	if l.last && u64(tail, 16) > 0 && u64(tail, 16) < year10000 {
		view.LastKernel = time.Unix(int64(u64(tail, 16)), 0)
	}
	return view, nil
}

// layoutOf chooses by size, which only version 0 needs, and version words.
func layoutOf(start []byte, size int64) (hamiLayout, error) {
	magic, major, minor := i32(start, 0), i32(start, 4), i32(start, 8)
	switch {
	case magic != C.VGPU_HAMI_MAGIC:
		return hamiLayout{}, fmt.Errorf("%w: magic %d, want %d", ErrNotHAMi, magic, C.VGPU_HAMI_MAGIC)
	case hamiFirst.fits(size):
		return hamiFirst, nil
	case hami0.fits(size):
		return hami0, nil
	case size < hami12.size:
		return hamiLayout{}, fmt.Errorf("%w: %d bytes; want at least %d", ErrNotHAMi, size, hami12.size)
	case major == 1 && minor == 1 && hami11Sem.fits(size):
		return hami11Sem, nil
	case major == 1 && minor == 1:
		return hami11, nil
	case major == 1 && minor == 2:
		return hami12, nil
	}
	return hamiLayout{}, fmt.Errorf("%w: version %d.%d; known are 0, 1.1 and 1.2", ErrNotHAMi, major, minor)
}

// lockFirst tells by the status of the processes, 1 or 2, which of the two
// layouts of 1.1 of the same size it is: the word is never used in the other.
func lockFirst(slots []byte) bool {
	for ; len(slots) > 0; slots = slots[hami11.slot:] {
		before, behind := i32(slots, hami11.status()), i32(slots, hami11Lock.status())
		if i32(slots, 0) != 0 && (before == 0) != (behind == 0) {
			return before == 0
		}
	}
	return false
}

func (l hamiLayout) devices(head []byte) []HAMiDevice {
	list := make([]HAMiDevice, min(u64(head, l.num), hamiDevices))
	for i := range list {
		n := int64(i)
		list[i] = HAMiDevice{
			UUID:       plain(head[l.uuids()+n*hamiUUID:][:hamiUUID]),
			LimitBytes: u64(head, l.limits()+n*8),
			SMLimit:    u64(head, l.smLimits()+n*8),
		}
	}
	return list
}

func (l hamiLayout) proc(slot []byte, devices int) HAMiProc {
	p := HAMiProc{
		PID: uint32(i32(slot, 0)), HostPID: uint32(i32(slot, 4)), Status: i32(slot, l.status()),
		Used: make([]HAMiUse, devices),
	}
	for i := range p.Used {
		n := int64(i)
		mem := slot[l.used+n*l.mem:]
		p.Used[i] = HAMiUse{
			Context: u64(mem, 0), Module: u64(mem, 8), Data: u64(mem, 16), Total: u64(mem, 32),
			Monitored: u64(slot, l.monitored()+n*8),
		}
		if l.util != 0 {
			p.Used[i].SMUtil = u64(slot, l.utils()+n*l.util+16)
		}
	}
	return p
}

// readHAMi fills buf or says that the file is too short.
func readHAMi(r io.ReaderAt, buf []byte, at int64) error {
	if _, err := r.ReadAt(buf, at); err != nil && len(buf) > 0 {
		return fmt.Errorf("%w: %d bytes at %d: %w", ErrNotHAMi, len(buf), at, err)
	}
	return nil
}

func i32(b []byte, at int64) int32  { return int32(binary.NativeEndian.Uint32(b[at:])) }
func u64(b []byte, at int64) uint64 { return binary.NativeEndian.Uint64(b[at:]) }

// plain is text up to the first NUL, without what a terminal would obey.
func plain(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(bytes.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, b))
}

// updateHAMi rebuilds the view of a cache held in memory. It is here for the
// tests, since a test file cannot hold cgo.
func updateHAMi(cache, grant []byte, now time.Time) {
	if len(cache) != CacheSize || len(grant) != GrantSize {
		panic("not a cache and a grant")
	}
	C.update_view((*C.char)(unsafe.Pointer(&cache[0])), (*C.struct_vgpu_grant)(unsafe.Pointer(&grant[0])), C.uint64_t(now.UnixNano()))
}
