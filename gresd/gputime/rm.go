// SPDX-License-Identifier: Apache-2.0

//lint:file-ignore U1000 the layouts are the driver's, whatever of them is used

package gputime

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What is used of the driver's resource manager. Facts from NVIDIA's open kernel
// modules: nvos.h (NVOS21, NVOS33, NVOS54), nv_escape.h, cl0000.h, cl0080.h, cl2080.h,
// cl90cd.h, cl90cdFecs.h, cl90ce.h, clc637.h, ctrl0000gpu.h, ctrl2080gr.h, ctrl90cd.h; the
// same in 580 and 595. Seen to work: 580.159.04 (H200), as root, by version 1 of the bind;
// version 2 and MIG on the simulated card alone.
const (
	escapeMap     = 0x4e
	escapeControl = 0x2a
	escapeAlloc   = 0x2b

	classRoot         = 0x41
	classDevice       = 0x80
	classSubdevice    = 0x2080
	classEventBuffer  = 0x90cd
	classGPUInstance  = 0xc637 // a subscription to one
	classPlainMemory  = 0x90ce // of no device
	cmdAttachedCards  = 0x201
	cmdCardInfo       = 0x205
	cmdCardPlace      = 0x21b
	cmdBindSwitches   = 0x20801238 // version 2, which tells the MIG instance
	cmdBindSwitchesV1 = 0x20801231 // deprecated, and silent in MIG mode
	cmdBufferEnable   = 0x90cd0101
	cmdBufferGet      = 0x90cd0102
	cmdBufferFlush    = 0x90cd0104
	attrCached        = 1 << 29 // of attr: cached by the processor
	attrUserReadsOnly = 1 << 22 // of attr2: the driver refuses an event buffer that we can write
	mapReadsOnly      = 1
	activeRegionsOnly = 1 // level of detail: when a context had the card, and no more
	keepOldest        = 1 // of a full buffer
	cardsMax          = 32
	noCard            = 0xffffffff
)

type (
	rmAlloc struct { // NVOS21
		root, parent, object, class uint32
		params                      uint64
		size, status                uint32
	}
	rmControl struct { // NVOS54
		client, object, cmd, flags uint32
		params                     uint64
		size, status               uint32
	}
	rmMap struct { // NVOS33 and the file that is to be mapped
		client, device, memory, _ uint32
		offset, length, address   uint64
		status, flags             uint32
		fd                        int32
		_                         uint32
	}
	rmMemory struct { // NV_MEMORY_ALLOCATION_PARAMS
		owner, kind, flags, width, height uint32
		pitch                             int32
		attr, attr2, format, compr, zcull uint32
		_                                 uint32
		low, high, size, align            uint64
		offset, limit, address            uint64
		ctag, space, internal, tag        uint32
		numa                              int32
		_                                 uint32
	}
	rmDevice struct { // NV0080_ALLOC_PARAMETERS
		instance, share, client, device, flags uint32
		_                                      uint32
		space, start, limit                    uint64
		mode, _                                uint32
	}
	rmEventBuffer struct { // NV_EVENT_BUFFER_ALLOC_PARAMETERS
		headerAt, recordsAt           uint64
		recordSize, records           uint32
		variableAt                    uint64
		variableSize, threshold       uint32
		notify                        uint64
		variableThreshold, subdevice  uint32
		flags, header, record, extras uint32
	}
	rmCardInfo struct { // NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS
		id, flags, device, subdevice, sli, board, instance uint32
		numa                                               int32
	}
	rmCardPlace struct { // NV0000_CTRL_GPU_GET_PCI_INFO_PARAMS
		id, domain uint32
		bus, slot  uint16
	}
	rmBind struct { // NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_PARAMS
		buffer, recordSize, detail, filter uint32
		allUsers                           uint8
	}
	rmBindV2 struct { // NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS
		rmBind
		reason uint32 // of a refusal
	}
	rmGPUInstance struct { // NVC637_ALLOCATION_PARAMETERS
		capability uint64 // an open file
		instance   uint32
		_          uint32
	}
	rmEnable struct {
		on    uint8
		flags uint32
	}
	rmGet struct{ record, variable uint32 }

	bufferHeader struct { // NV_EVENT_BUFFER_HEADER; written by the driver
		get, put                      uint32
		count, dropped, droppedExtras uint64
	}
	bufferRecord struct { // NV_EVENT_BUFFER_RECORD with NV_EVENT_BUFFER_FECS_RECORD_V2
		kind, subkind uint16
		extras        uint32
		tag, vm       uint8
		seq           uint16
		context       uint32
		pid           uint32 // version 1 has 64 bits of it
		_             uint16
		gpuInstance   uint8
		compute       uint8
		at            uint64 // ns since 1970, by the card
	}
)

// Tags of records at [activeRegionsOnly].
const (
	tagStart = 6
	tagEnd   = 7
)

// rm is a client of the resource manager. All that it made goes when it is closed.
type rm struct {
	fd     int
	client uint32
	next   uint32
}

// statusError is the resource manager's own answer, such as 0x56, not supported.
type statusError uint32

func (s statusError) Error() string { return fmt.Sprintf("driver's status 0x%x", uint32(s)) }

func openRM(control string) (*rm, error) {
	fd, err := openFile(control)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", control, err)
	}
	r := &rm{fd: fd, next: 0xcafe0000}
	if r.client, err = alloc[struct{}](r, 0, 0, classRoot, nil); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *rm) close() error { return unix.Close(r.fd) }

// escape is one call of the driver. arg is read and written.
func escape[T any](r *rm, number uintptr, arg *T) error {
	size := unsafe.Sizeof(*arg)
	request := 3<<30 | size<<16 | 'F'<<8 | number // read and write
	for {
		if err := ioctl(r.fd, request, unsafe.Pointer(arg)); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// pointer is an address for the driver, which is valid until the pinner is unpinned.
func pointer[T any](p *runtime.Pinner, v *T) (address uint64, size uint32) {
	if v == nil {
		return 0, 0
	}
	p.Pin(v)
	return uint64(uintptr(unsafe.Pointer(v))), uint32(unsafe.Sizeof(*v))
}

// alloc makes an object of a class. object 0 lets the driver choose its handle.
func alloc[T any](r *rm, parent, object, class uint32, params *T) (uint32, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	a := &rmAlloc{root: r.client, parent: parent, object: object, class: class}
	a.params, a.size = pointer(&pin, params)
	if err := escape(r, escapeAlloc, a); err != nil {
		return 0, fmt.Errorf("allocate class 0x%x: %w", class, err)
	}
	if a.status != 0 {
		return 0, fmt.Errorf("allocate class 0x%x: %w", class, statusError(a.status))
	}
	return a.object, nil
}

// makeObject makes an object with a handle of its own.
func makeObject[T any](r *rm, parent, class uint32, params *T) (uint32, error) {
	r.next++
	return alloc(r, parent, r.next, class, params)
}

func control[T any](r *rm, object, cmd uint32, params *T) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	c := &rmControl{client: r.client, object: object, cmd: cmd}
	c.params, c.size = pointer(&pin, params)
	if err := escape(r, escapeControl, c); err != nil {
		return fmt.Errorf("control 0x%x: %w", cmd, err)
	}
	if c.status != 0 {
		return fmt.Errorf("control 0x%x: %w", cmd, statusError(c.status))
	}
	return nil
}

// memory is memory of the driver that we can read. The mapping lives until it is
// unmapped, also when the client is closed.
func (r *rm) memory(control string, size int) (handle uint32, mapped []byte, err error) {
	handle, err = makeObject(r, r.client, classPlainMemory, &rmMemory{
		size: uint64(size), attr: attrCached, attr2: attrUserReadsOnly,
	})
	if err != nil {
		return 0, nil, err
	}
	fd, err := openFile(control)
	if err != nil {
		return 0, nil, err
	}
	defer unix.Close(fd)
	m := &rmMap{client: r.client, device: r.client, memory: handle, length: uint64(size), flags: mapReadsOnly, fd: int32(fd)}
	if err := escape(r, escapeMap, m); err != nil {
		return 0, nil, fmt.Errorf("map: %w", err)
	}
	if m.status != 0 {
		return 0, nil, fmt.Errorf("map: %w", statusError(m.status))
	}
	mapped, err = unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, nil, fmt.Errorf("map: %w", err)
	}
	return handle, mapped, nil
}
