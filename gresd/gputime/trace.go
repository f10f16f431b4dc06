// SPDX-License-Identifier: Apache-2.0

package gputime

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

const (
	controlFile = "/dev/nvidiactl"
	cardFile    = "/dev/nvidia%d"
	// records are held between two looks: at the shortest slices there are about
	// 2000 a second.
	records = 16384
	// The driver is told what was read when so many records were: each call of it costs
	// as much as a look, and it needs the room long after.
	tellAfter = records / 8
)

// The header has a page, of 64 KiB on some arm64: less cannot be mapped.
var pageSize = os.Getpagesize()

// Switch is a record of the card: a process came to it or left it.
type Switch struct {
	PID  uint32
	At   uint64 // nanoseconds, by the card's clock
	Came bool   // else it left
}

// trace reads the records of one card. It is for one goroutine.
type trace struct {
	rm      *rm
	card    int // the card's file, held so that the driver keeps the card awake
	of      gpu.Instance
	buffer  uint32
	header  []byte
	records []byte
	get     uint32 // the next one to be read
	untold  uint32 // records that were read, which the driver does not know
}

func openTrace(card gpu.Card) (t *trace, err error) {
	t = &trace{card: -1, of: card.Instance}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	name := fmt.Sprintf(cardFile, card.Minor)
	if t.card, err = openFile(name); err != nil {
		return t, fmt.Errorf("open %s: %w", name, err)
	}
	if t.rm, err = openRM(controlFile); err != nil {
		return t, err
	}
	subdevice, err := t.rm.subdevice(card.PCIBusID)
	if err != nil {
		return t, err
	}
	if card.IsInstance() {
		if err := t.rm.subscribe(subdevice, card); err != nil {
			return t, err
		}
	}
	params := &rmEventBuffer{recordSize: uint32(unsafe.Sizeof(bufferRecord{})), records: records, subdevice: subdevice}
	if params.header, t.header, err = t.rm.memory(controlFile, pageSize); err != nil {
		return t, err
	}
	if params.record, t.records, err = t.rm.memory(controlFile, records*int(params.recordSize)); err != nil {
		return t, err
	}
	if t.buffer, err = makeObject(t.rm, t.rm.client, classEventBuffer, params); err != nil {
		return t, err
	}
	bind := rmBind{buffer: t.buffer, recordSize: params.recordSize, detail: activeRegionsOnly, allUsers: 1}
	if err := t.rm.bind(subdevice, bind, card.IsInstance()); err != nil {
		return t, err
	}
	t.get = t.put()
	return t, control(t.rm, t.buffer, cmdBufferEnable, &rmEnable{on: 1, flags: keepOldest})
}

// subscribe lets a client see a GPU instance, by its capability. A process that may see all of
// a GPU could subscribe to that, but only one at a time in the whole system.
func (r *rm) subscribe(subdevice uint32, card gpu.Card) error {
	name := card.Files()[1]
	fd, err := openFile(name)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	defer unix.Close(fd)
	_, err = makeObject(r, subdevice, classGPUInstance, &rmGPUInstance{capability: uint64(fd), instance: uint32(card.Instance.ID)})
	return err
}

// bind has the records of a card written to a buffer: by version 1, and where a driver no longer
// does that, by version 2, of which alone a MIG instance tells.
func (r *rm) bind(subdevice uint32, params rmBind, instance bool) error {
	if !instance && control(r, subdevice, cmdBindSwitchesV1, &params) == nil {
		return nil
	}
	v2 := &rmBindV2{rmBind: params}
	if err := control(r, subdevice, cmdBindSwitches, v2); err != nil {
		return fmt.Errorf("%w (reason %d)", err, v2.reason)
	}
	return nil
}

// subdevice makes the object that stands for a card, by its place on the bus.
func (r *rm) subdevice(place string) (uint32, error) {
	var ids [cardsMax]uint32
	if err := control(r, r.client, cmdAttachedCards, &ids); err != nil {
		return 0, err
	}
	for _, id := range ids {
		if id == noCard {
			break
		}
		at := &rmCardPlace{id: id}
		if err := control(r, r.client, cmdCardPlace, at); err != nil {
			return 0, err
		}
		if fmt.Sprintf("%04x:%02x:%02x.0", at.domain, at.bus, at.slot) != place {
			continue
		}
		info := &rmCardInfo{id: id}
		if err := control(r, r.client, cmdCardInfo, info); err != nil {
			return 0, err
		}
		device, err := makeObject(r, r.client, classDevice, &rmDevice{instance: info.device})
		if err != nil {
			return 0, err
		}
		return makeObject(r, device, classSubdevice, &info.subdevice)
	}
	return 0, fmt.Errorf("the driver has no card at %s", place)
}

func (t *trace) put() uint32 {
	return atomic.LoadUint32(&(*bufferHeader)(unsafe.Pointer(&t.header[0])).put) % records
}

// read calls f with every record that is new, in order, and says whether some were
// lost before them. It may take as long as the driver is busy with other things
// (80 ms while a context is made).
func (t *trace) read(f func(Switch)) (lost bool, err error) {
	if err := control[struct{}](t.rm, t.buffer, cmdBufferFlush, nil); err != nil {
		return false, err
	}
	if lost = t.take(f); t.untold < tellAfter && !lost {
		return lost, nil
	}
	t.untold = 0
	return lost, control(t.rm, t.buffer, cmdBufferGet, &rmGet{record: t.get})
}

// take is read of what the driver has written by now.
func (t *trace) take(f func(Switch)) (lost bool) {
	header := (*bufferHeader)(unsafe.Pointer(&t.header[0]))
	lost = atomic.LoadUint64(&header.dropped) != 0
	for put := t.put(); t.get != put; t.get = (t.get + 1) % records {
		t.untold++
		r := (*bufferRecord)(unsafe.Pointer(&t.records[t.get*uint32(unsafe.Sizeof(bufferRecord{}))]))
		own := t.of == gpu.Instance{} || int(r.gpuInstance) == t.of.ID && int(r.compute) == t.of.Compute
		if own && (r.tag == tagStart || r.tag == tagEnd) {
			f(Switch{PID: r.pid, At: r.at, Came: r.tag == tagStart})
		}
	}
	return lost
}

func (t *trace) close() (err error) {
	if t.rm != nil {
		err = t.rm.close()
	}
	for _, mapped := range [][]byte{t.header, t.records} {
		if mapped != nil {
			err = errors.Join(err, unix.Munmap(mapped))
		}
	}
	if t.card >= 0 {
		err = errors.Join(err, unix.Close(t.card))
	}
	return err
}
