// SPDX-License-Identifier: Apache-2.0

package libvgpu

// #include "region_ops.h"
import "C"

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SlotOwner is one process in one place of a cache.
type SlotOwner struct {
	Index uint32
	Owner uint64 // pid and start time, as region.h says
	// Left says that the process lives, as another program, which has no part in the slot.
	Left bool
}

// ClearSlots frees those slots that still belong to the processes that are
// named, and returns how many. A slot whose process lives, or that somebody
// else has taken meanwhile, is left alone: it changes hands by one
// compare-and-swap, as among the processes of the job.
//
// It maps the file. Whoever owns the file can cut it, and the kernel then ends
// the process by SIGBUS: gresd has a child do this.
func ClearSlots(f *os.File, dead []SlotOwner) (int, error) {
	if err := checkSize(int(f.Fd()), CacheSize, ErrNotCache); err != nil {
		return 0, err
	}
	mem, err := unix.Mmap(int(f.Fd()), C.VGPU_CACHE_OFFSET, CacheSize-C.VGPU_CACHE_OFFSET,
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("map cache: %w", err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	header := (*C.struct_vgpu_cache_header)(unsafe.Pointer(&mem[0]))
	if !C.vgpu_cache_valid(header, CacheSize) {
		return 0, ErrNotCache
	}
	pid := C.uint32_t(os.Getpid())
	me := uint64(C.vgpu_owner(pid, C.vgpu_start_time(pid)))
	cleared := 0
	for _, d := range dead {
		// Whether a process of another PID namespace lives, only the caller knows.
		if d.Index >= MaxSlots || d.Owner == 0 {
			continue
		}
		slot := (*C.struct_vgpu_slot)(unsafe.Pointer(&mem[headerSize+int(d.Index)*slotSize]))
		// The next program of a process may have taken the same slot since.
		lives := ownerNS(d.Owner) == ownerNS(me) && !bool(C.vgpu_has_ended(C.uint64_t(d.Owner)))
		beats := (&SlotView{HeartbeatNS: atomic.LoadUint64((*uint64)(unsafe.Pointer(&slot.heartbeat_ns)))}).heartbeat()
		if lives && !d.Left || d.Left && beats {
			continue
		}
		// Should this process die before the release, the slot is one of a dead
		// process again.
		if atomic.CompareAndSwapUint64((*uint64)(unsafe.Pointer(&slot.owner)), d.Owner, me) {
			C.vgpu_slot_release(slot)
			cleared++
		}
	}
	return cleared, nil
}
