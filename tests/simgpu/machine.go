// SPDX-License-Identifier: Apache-2.0

// Package simgpu makes and watches simulated machines. The machine itself is
// the shared file of model.h, which the simulated libcuda.so.1 and
// libnvidia-ml.so.1 in the folders beside this file work on.
package simgpu

/*
#cgo CFLAGS: -std=c11 -Wall -Wextra -Wshadow
#cgo LDFLAGS: -lpthread -ldl
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include "model.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// MaxCards is the number of cards that a simulated machine can have.
const MaxCards = C.SIM_MAX_CARDS

// A Machine is an open simulated machine.
type Machine struct{ st *C.struct_sim_state }

// CardStatus is what one card is doing.
type CardStatus struct {
	Index    int             `json:"index"`
	UUID     string          `json:"uuid"`
	Name     string          `json:"name"`
	Memory   uint64          `json:"memory"`
	Used     uint64          `json:"used"`
	Orphaned uint64          `json:"orphaned"` // of Used, the part that only descriptors of processes that have ended keep
	BusyNS   uint64          `json:"busy_ns"`
	WorkNS   uint64          `json:"work_ns"`
	UsedNS   uint64          `json:"used_ns"`   // kernels, and copies within the card
	QueuedNS uint64          `json:"queued_ns"` // of UsedNS, the part that is launched and not done
	NowNS    uint64          `json:"now_ns"`
	Switches uint64          `json:"switches"`
	Percent  uint32          `json:"util_percent"`
	Lost     bool            `json:"lost"`
	Contexts []ContextStatus `json:"contexts"`
}

// ContextStatus is one context on a card. MemUsed is its whole process's.
type ContextStatus struct {
	PID     int    `json:"pid"`
	Process string `json:"process"`
	MemUsed uint64 `json:"mem_used"`
	SliceUS uint64 `json:"slice_us"`
	BusyNS  uint64 `json:"busy_ns"`
	Turns   uint64 `json:"turns"`
	Busy    bool   `json:"busy"`
	Usable  bool   `json:"usable"` // slices that are set from now on stay
}

// A Fault is something that goes wrong on purpose. Count -1 means always.
type Fault struct {
	Call  string
	Code  int
	Count int
	PID   int
	Slow  uint64 // nanoseconds that the call takes longer
}

func setString(dst []C.char, s string) error {
	if len(s) >= len(dst) {
		return fmt.Errorf("%q: longer than %d characters", s, len(dst)-1)
	}
	for i := range dst {
		dst[i] = 0
	}
	for i := range len(s) {
		dst[i] = C.char(s[i])
	}
	return nil
}

func nanos(us *float64) C.uint64_t { return C.uint64_t(*us * 1000) }

func (c CardConfig) toC(links []uint32, nvswitch bool) (C.struct_sim_card_config, error) {
	var out C.struct_sim_card_config
	for _, f := range []struct {
		dst  []C.char
		from string
	}{{out.name[:], c.Name}, {out._type[:], c.Type}, {out.uuid[:], c.UUID}, {out.pci[:], c.PCI}, {out.cpus[:], c.CPUs}} {
		if err := setString(f.dst, f.from); err != nil {
			return out, err
		}
	}
	if len(c.PCI) != 16 {
		return out, fmt.Errorf("pci %q: want e.g. 00000000:10:00.0", c.PCI)
	}
	for _, f := range []struct {
		dst  *C.uint64_t
		from string
	}{{&out.memory, c.Memory}, {&out.reserved, c.Reserved}, {&out.context_cost, c.ContextCost}} {
		n, err := ParseSize(f.from)
		if err != nil {
			return out, err
		}
		*f.dst = C.uint64_t(n)
	}
	major, minor, _ := strings.Cut(c.Capability, ".")
	ma, err1 := strconv.Atoi(major)
	mi, err2 := strconv.Atoi(minor)
	if err1 != nil || err2 != nil {
		return out, fmt.Errorf("capability %q: want e.g. 9.0", c.Capability)
	}
	out.cc_major, out.cc_minor = C.uint32_t(ma), C.uint32_t(mi)
	out.minor, out.numa, out.sms = C.uint32_t(*c.Minor), C.int32_t(*c.NUMA), C.uint32_t(c.SMs)
	out.slice_us = C.uint32_t(c.DefaultSliceUS)
	out.switch_ns, out.latency_ns = nanos(c.SwitchUS), nanos(c.KernelLatencyUS)
	out.switch_away_ns = min(nanos(c.SwitchAwayUS), out.switch_ns)
	out.switch_slice_ns = min(nanos(c.SwitchSliceUS), out.switch_ns)
	out.change_ns = nanos(c.SliceChangeUS)
	out.gap_ns, out.kernel_ns = nanos(c.KernelGapUS), nanos(c.KernelUS)
	out.copy_bytes_per_ms = C.uint64_t(c.CopyGBPerS * 1e6)
	for i, l := range links {
		out.link[i] = C.uint32_t(l)
	}
	if nvswitch {
		out.nvswitch = 1
	}
	if c.MIG || len(c.Instance) > 0 {
		out.mig = 1
	}
	if c.IgnoresSlices {
		out.ignores_slices = 1
	}
	switch c.SwitchRecords {
	case "yes":
		out.records = C.SIM_RECORDS
	case "unsupported":
		out.records = C.SIM_RECORDS_UNSUPPORTED
	case "denied":
		out.records = C.SIM_RECORDS_DENIED
	case "v1":
		out.records = C.SIM_RECORDS_V1
	default:
		return out, fmt.Errorf("switch_records %q: want yes, v1, unsupported or denied", c.SwitchRecords)
	}
	return out, nil
}

// Init makes a new machine at path. Processes that still use a machine that
// was there before keep that one.
func Init(path string, c Config) error {
	cards, err := c.cards()
	if err != nil {
		return err
	}
	links, err := c.links(cards)
	if err != nil {
		return err
	}
	list := make([]C.struct_sim_card_config, len(cards))
	for i, card := range cards {
		if i > 0 && card.PCI <= cards[i-1].PCI {
			return fmt.Errorf("card %d: pci %s: cards are listed in the order of their bus ids", i, card.PCI)
		}
		if list[i], err = card.toC(links[i], c.NVSwitch); err != nil {
			return fmt.Errorf("card %d: %w", i, err)
		}
	}
	for i, card := range cards {
		for j := range card.Instance {
			instance, err := card.instance(i, j, list[i])
			if err != nil {
				return fmt.Errorf("card %d: instance %d: %w", i, j, err)
			}
			list = append(list, instance)
		}
	}
	if len(list) > MaxCards {
		return fmt.Errorf("%d cards and instances: at most %d", len(list), MaxCards)
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if rc := C.sim_create(name, &list[0], C.uint32_t(len(list))); rc != 0 {
		return fmt.Errorf("create machine %s: %w", path, syscall.Errno(-rc))
	}
	return nil
}

// Open opens a machine for as long as the process lives.
func Open(path string) (*Machine, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	st, err := C.sim_open(name)
	if st == nil {
		return nil, fmt.Errorf("open machine %s: %w", path, err)
	}
	return &Machine{st}, nil
}

// locked runs f under the machine's lock. The lock belongs to the thread that
// takes it, so the goroutine must not move to another one meanwhile.
func (m *Machine) locked(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	C.sim_lock(m.st)
	defer C.sim_unlock(m.st)
	f()
}

// Late is for how long the threads of a process that work on a card were without a processor that they
// wanted: the process could have done so much more. It may have ended, unless another one has its slot.
func (m *Machine) Late(pid int) (late time.Duration) {
	m.locked(func() {
		for i := range m.st.proc {
			if p := &m.st.proc[i]; int(p.pid) == pid {
				late = max(late, time.Duration(p.late_ns))
			}
		}
	})
	return late
}

// Status brings the machine up to the present and describes it.
func (m *Machine) Status() []CardStatus {
	var out []CardStatus
	m.locked(func() {
		C.sim_reap(m.st, true)
		C.sim_advance_all(m.st)
		for i := range int(m.st.ncards) {
			out = append(out, m.card(i))
		}
	})
	return out
}

func (m *Machine) card(i int) CardStatus {
	c := &m.st.card[i]
	orphaned := uint64(C.sim_export_orphaned(m.st, C.uint32_t(i))) // before Used: a descriptor may be closed meanwhile
	s := CardStatus{
		Index: i, UUID: C.GoString(&c.conf.uuid[0]), Name: C.GoString(&c.conf.name[0]),
		Memory: uint64(c.conf.memory), Used: uint64(C.sim_mem_used(m.st, C.uint32_t(i))), Orphaned: orphaned,
		BusyNS: uint64(c.busy_ns), WorkNS: uint64(c.work_ns), UsedNS: uint64(c.used_ns), NowNS: uint64(c.now_ns), Switches: uint64(c.switches),
		Percent: uint32(c.util_percent), Lost: c.lost != 0, Contexts: []ContextStatus{},
	}
	for x := c.contexts; x != 0; x = m.st.ctx[x-1].next {
		ctx := &m.st.ctx[x-1]
		p := &m.st.proc[ctx.proc]
		s.Contexts = append(s.Contexts, ContextStatus{
			PID: int(p.pid), Process: C.GoString(&p.name[0]), MemUsed: uint64(p.mem[i]), SliceUS: uint64(ctx.slice_us),
			BusyNS: uint64(ctx.busy_ns), Turns: uint64(ctx.turns), Busy: bool(C.sim_busy(m.st, x-1)), Usable: ctx.usable != 0,
		})
		for i := ctx.streams; i != 0; i = m.st.stream[i-1].next {
			s.QueuedNS += m.queued(i - 1)
		}
	}
	return s
}

// queued returns the time of the kernels and the copies within the card that a stream has left. A
// kernel that spins counts 0, because its end is unknown.
func (m *Machine) queued(stream C.uint32_t) (ns uint64) {
	s := &m.st.stream[stream]
	for i := s.done; i < s.tail; i++ {
		o := &m.st.ring[stream][i%C.SIM_RING]
		if o.flags&C.SIM_OP_INSIDE != 0 || o.kind == C.SIM_KERNEL && o.flags&C.SIM_OP_SPIN == 0 {
			ns += uint64(o.left_ns)
		}
	}
	return ns
}

// SetSlice sets the time slice of all contexts of a process and returns how many those are.
func (m *Machine) SetSlice(pid int, us uint64) int {
	n := 0
	m.locked(func() {
		C.sim_advance_all(m.st)
		for i := range m.st.ctx {
			x := &m.st.ctx[i]
			if x.used != 0 && int(m.st.proc[x.proc].pid) == pid {
				C.sim_set_slice(m.st, C.uint32_t(i), C.uint64_t(us))
				n++
			}
		}
	})
	return n
}

func (m *Machine) addFault(kind C.uint32_t, f Fault) error {
	var c C.struct_sim_fault
	c.kind, c.code, c.count, c.pid = kind, C.int32_t(f.Code), C.int32_t(f.Count), C.int32_t(f.PID)
	c.slow_ns = C.uint64_t(f.Slow)
	if err := setString(c.call[:], f.Call); err != nil {
		return err
	}
	var rc C.int
	m.locked(func() { rc = C.sim_fault_add(m.st, &c) })
	if rc != 0 {
		return fmt.Errorf("add fault: at most %d at a time", C.SIM_MAX_FAULTS)
	}
	return nil
}

// Fail lets calls return a code, or take longer when the fault has a Slow time.
func (m *Machine) Fail(f Fault) error {
	if f.Slow > 0 {
		return m.addFault(C.SIM_FAULT_SLOW, f)
	}
	return m.addFault(C.SIM_FAULT_CODE, f)
}

// RefuseSlices lets the resource manager refuse to set time slices.
func (m *Machine) RefuseSlices(f Fault) error { return m.addFault(C.SIM_FAULT_SLICES, f) }

// ClearFaults ends all faults.
func (m *Machine) ClearFaults() {
	m.locked(func() {
		for i := range m.st.fault {
			m.st.fault[i].kind = C.SIM_FAULT_NONE
		}
		m.st.nfaults = 0
	})
}

// XID reports an XID error on a card, adds uncorrected ECC errors, and, when
// lost is not 0, lets every later CUDA call on the card return that code.
func (m *Machine) XID(card int, xid uint64, ecc uint64, lost int) error {
	if card < 0 || card >= int(m.st.ncards) {
		return fmt.Errorf("card %d: the machine has %d", card, int(m.st.ncards))
	}
	m.locked(func() {
		c := &m.st.card[card]
		for i := range int(m.st.ncards) { // its instances go with it
			if int(m.st.card[i].conf.parent) == card+1 {
				m.st.card[i].lost = C.uint32_t(lost)
			}
		}
		if xid != 0 {
			c.xid[c.nxids%C.SIM_MAX_XIDS].xid = C.uint64_t(xid)
			c.nxids++
		}
		c.ecc_errors += C.uint64_t(ecc)
		c.lost = C.uint32_t(lost)
	})
	return nil
}
