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
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hamiVersion is the version of HAMi-core whose layout is known here.
const hamiVersion = "1.2"

// ErrNotHAMi: the file is not a shared region of HAMi-core in this version.
var ErrNotHAMi = errors.New("not a HAMi-core file")

// HAMiView is the content of a shared region of HAMi-core. Our caches begin with
// one too. The owner of the file can forge every number.
type HAMiView struct {
	Version   string // "1.2"
	Devices   []HAMiDevice
	Procs     []HAMiProc // slots in use
	Priority  int32      // 0: high, 1: normal
	Recent    int32      // above 0: kernels were launched lately; below: a monitor holds them back
	SMLimited bool       // the compute limit is held
	// When a kernel was launched last; the zero time: never.
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

const year10000 = 253402300800 // in seconds since 1970

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
	buf := make([]byte, C.VGPU_HAMI_SIZE)
	h := (*C.struct_vgpu_hami)(unsafe.Pointer(&buf[0]))
	if err := readHAMi(r, buf[:unsafe.Offsetof(h.sm_init_flag)]); err != nil {
		return HAMiView{}, err
	}
	switch {
	case h.initialized != C.VGPU_HAMI_MAGIC:
		return HAMiView{}, fmt.Errorf("%w: magic %d, want %d", ErrNotHAMi, h.initialized, C.VGPU_HAMI_MAGIC)
	case size < int64(len(buf)):
		return HAMiView{}, fmt.Errorf("%w: %d bytes; want at least %d", ErrNotHAMi, size, len(buf))
	case h.major != C.VGPU_HAMI_MAJOR || h.minor != C.VGPU_HAMI_MINOR:
		return HAMiView{}, fmt.Errorf("%w: version %d.%d; want version %s", ErrNotHAMi, h.major, h.minor, hamiVersion)
	}
	if err := readHAMi(r, buf); err != nil {
		return HAMiView{}, err
	}
	view := HAMiView{
		Version: hamiVersion, Devices: make([]HAMiDevice, min(h.device_num, C.VGPU_HAMI_DEVICES)),
		SMLimited: h.utilization_switch != 0, Recent: int32(h.recent_kernel), Priority: int32(h.priority),
	}
	for i := range view.Devices {
		uuid := (*[C.VGPU_HAMI_UUID_LEN]byte)(unsafe.Pointer(&h.uuid[i]))
		view.Devices[i] = HAMiDevice{UUID: plain(uuid[:]), LimitBytes: uint64(h.limit[i]), SMLimit: uint64(h.sm_limit[i])}
	}
	for i := range min(max(h.proc_num, 0), C.VGPU_HAMI_PROCS) {
		if p := &h.proc[i]; p.pid != 0 {
			view.Procs = append(view.Procs, hamiProc(p, len(view.Devices)))
		}
	}
	// A time that no clock shows is none; JSON cannot hold years above 9999 either.
	if s := h.last_kernel_time; s > 0 && s < year10000 {
		view.LastKernel = time.Unix(int64(s), 0)
	}
	return view, nil
}

func hamiProc(p *C.struct_vgpu_hami_proc, devices int) HAMiProc {
	proc := HAMiProc{PID: uint32(p.pid), HostPID: uint32(p.host_pid), Status: int32(p.status), Used: make([]HAMiUse, devices)}
	for i := range proc.Used {
		mem := &p.used[i]
		proc.Used[i] = HAMiUse{
			Context: uint64(mem.context), Module: uint64(mem.module), Data: uint64(mem.data), Total: uint64(mem.total),
			Monitored: uint64(p.monitor_used[i]), SMUtil: uint64(p.util[i].sm),
		}
	}
	return proc
}

// readHAMi reads the first bytes of the file. It returns an error if the file is too short.
func readHAMi(r io.ReaderAt, buf []byte) error {
	if _, err := r.ReadAt(buf, 0); err != nil {
		return fmt.Errorf("%w: %d bytes at 0: %w", ErrNotHAMi, len(buf), err)
	}
	return nil
}

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
