// SPDX-License-Identifier: Apache-2.0

// Package libvgpu is the Go view of the two files that join gresd and the
// processes of a job. Their layout is defined in region.h alone and read here
// through cgo, so that it cannot drift.
//
// A grant is mapped read-write by gresd and read-only by the job: its schedule
// changes only through [Grant.SetSchedule]. A cache belongs to the job's user,
// who may truncate it or write anything into it: it is read with pread, never
// mapped, and every number in it is a claim.
package libvgpu

// #include "region.h"
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Limits and values of region.h.
const (
	MaxCards  = C.VGPU_MAX_CARDS
	MaxSlots  = C.VGPU_MAX_SLOTS
	GrantSize = C.sizeof_struct_vgpu_grant
	CacheSize = C.VGPU_CACHE_OFFSET + C.sizeof_struct_vgpu_cache_header + MaxSlots*C.sizeof_struct_vgpu_slot

	ModeOff  = C.VGPU_MODE_OFF
	ModeSoft = C.VGPU_MODE_SOFT
	ModeHard = C.VGPU_MODE_HARD

	EngineTime       = C.VGPU_ENGINE_TIME
	EngineConcurrent = C.VGPU_ENGINE_CONCURRENT

	PrioNormal = C.VGPU_PRIO_NORMAL
	PrioHigh   = C.VGPU_PRIO_HIGH
	PrioLow    = C.VGPU_PRIO_LOW

	SlotSlicesOK      = C.VGPU_SLOT_SLICES_OK
	SlotSlicesRefused = C.VGPU_SLOT_SLICES_REFUSED
	SlotGated         = C.VGPU_SLOT_GATED
	SlotUnwatched     = C.VGPU_SLOT_UNWATCHED
	SlotUngated       = C.VGPU_SLOT_UNGATED
)

// ErrNotGrant says that a file is not a grant of this version: wrong magic,
// version, size or number of cards.
var ErrNotGrant = errors.New("not a grant file")

// GrantSpec is the part of a grant that does not change while the job runs.
type GrantSpec struct {
	JobID, UID, GID uint32
	Created         time.Time // the zero time means now
	Revoked         bool      // the job has ended; only read
	Socket          string    // path of gresd's socket; "": too long, or none
	Cards           []GrantCard
}

// GrantCard is one card of a grant. Memory is in bytes; Share, Cores and
// Ceiling are hundredths of the card.
type GrantCard struct {
	UUID        string
	MemLimit    uint64 // 0: no limit
	MemPhysical uint64 // of it, what the card has of its own; 0: all of it
	MemOverhead uint64 // what one context costs on this node; 0: not known
	Share       uint32
	Cores       uint32
	Mode        uint32 // ModeOff, ModeSoft, ModeHard
	Priority    uint32 // PrioNormal, PrioHigh, PrioLow
	Ceiling     uint32 // soft mode: never above this; 0: none
	Engine      uint32 // EngineTime, EngineConcurrent
}

// Schedule is the part of a card that the arbiter changes while the job runs.
type Schedule struct {
	SliceUS   uint32 // time slice of each busy process; 0: leave the driver's
	Gate      uint32 // GateBudget | …; 0: launches are not held back
	WeightPPM uint32 // own part, on the average, of the time for which its work is on the card, 1e-6
	LeastPPM  uint32 // the same while all busy neighbours are there: own slice / sum of the busy slices
	BusyProcs uint32
	Others    uint32 // other busy jobs on the card
	Cores     uint32
	Window    Window // with GateWindow
	// LeaseNS (CLOCK_MONOTONIC): until then an open gate may count on neighbours that
	// hold the job; later its budget does. 0: it counts on nobody.
	LeaseNS uint64
	// Solo is the owner of the slot of the process that goes on with GateShut; 0: none does.
	Solo uint64
}

// What a gate can hold launches back for.
const (
	GateBudget = uint32(C.VGPU_GATE_BUDGET) // the budget, at Cores

	// GateMeasure holds nothing back: launches are only measured.
	GateMeasure = uint32(C.VGPU_GATE_MEASURE)
	// GateShut lets nothing go, until LeaseNS at the latest.
	GateShut = uint32(C.VGPU_GATE_SHUT)
	// GateWindow lets a job launch in its window of each period only.
	GateWindow = uint32(C.VGPU_GATE_WINDOW)
)

// Window is when a job may launch: for that length in each period of CLOCK_MONOTONIC, from BeginNS
// on. A window as long as its period is always open.
type Window struct {
	PeriodUS, LengthUS uint32
	QueueUS            uint32 // work of one process that may be in flight
	BeginNS            uint64
}

// Grant is a grant file that gresd keeps mapped. Its methods may be called by
// many goroutines.
type Grant struct {
	mu   sync.Mutex
	mem  []byte // nil after Close
	spec GrantSpec
}

// CreateGrant writes a new grant file, root-readable and world-readable, and
// maps it. The file appears under its name complete, and never replaces one
// that is there (the error is then [os.ErrExist]).
func CreateGrant(path string, spec GrantSpec) (*Grant, error) {
	if n := len(spec.Cards); n == 0 || n > MaxCards {
		return nil, fmt.Errorf("create grant %s: %d cards: want 1 to %d", path, n, MaxCards)
	}
	buf := make([]byte, GrantSize)
	g := (*C.struct_vgpu_grant)(unsafe.Pointer(&buf[0]))
	created := spec.Created
	if created.IsZero() {
		created = time.Now()
	}
	g.magic, g.version, g.size = C.VGPU_GRANT_MAGIC, C.VGPU_REGION_VERSION, GrantSize
	g.job_id, g.uid, g.gid = C.uint32_t(spec.JobID), C.uint32_t(spec.UID), C.uint32_t(spec.GID)
	g.ncards, g.created_ns = C.uint32_t(len(spec.Cards)), C.uint64_t(created.UnixNano())
	if len(spec.Socket) < C.VGPU_SOCKET_LEN {
		for i := range len(spec.Socket) {
			g.socket[i] = C.char(spec.Socket[i])
		}
	}
	for i, card := range spec.Cards {
		c := &g.card[i]
		if err := putUUID(&c.uuid, card.UUID); err != nil {
			return nil, fmt.Errorf("create grant %s: %w", path, err)
		}
		c.mem_limit, c.mem_overhead = C.uint64_t(card.MemLimit), C.uint64_t(card.MemOverhead)
		c.mem_physical = C.uint64_t(card.MemPhysical)
		c.share, c.cores = C.uint32_t(card.Share), C.uint32_t(card.Cores)
		c.mode, c.priority, c.ceiling = C.uint32_t(card.Mode), C.uint32_t(card.Priority), C.uint32_t(card.Ceiling)
		c.engine = C.uint32_t(card.Engine)
		if card.Mode == ModeHard && card.Cores < 100 {
			c.gate = 1 // until the arbiter has looked, a hard limit is held
		}
	}
	err := createFile(path, func(f *os.File) error {
		if _, err := f.Write(buf); err != nil {
			return err
		}
		return f.Chmod(0o444)
	})
	if err != nil {
		return nil, fmt.Errorf("create grant: %w", err)
	}
	return OpenGrantRW(path)
}

// OpenGrantRW maps an existing grant file, as after a restart of gresd. A
// schedule that a killed gresd left half-written is closed with what it says.
func OpenGrantRW(path string) (*Grant, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open grant: %w", err)
	}
	defer f.Close()
	buf := make([]byte, GrantSize)
	spec, _, err := loadGrant(f, buf)
	if err != nil && !errors.Is(err, errBusy) {
		return nil, fmt.Errorf("open grant %s: %w", path, err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, GrantSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map grant %s: %w", path, err)
	}
	g := &Grant{mem: mem, spec: spec}
	for i := range spec.Cards {
		if seq := word(&g.region().card[i].seq); atomic.LoadUint32(seq)&1 == 1 {
			atomic.AddUint32(seq, 1)
		}
	}
	return g, nil
}

// Spec returns what the grant gives. The caller must not change its cards.
func (g *Grant) Spec() GrantSpec { return g.spec }

func (g *Grant) region() *C.struct_vgpu_grant {
	return (*C.struct_vgpu_grant)(unsafe.Pointer(&g.mem[0]))
}

// SetSchedule publishes the schedule of one card, under its sequence lock, and
// bumps the generation of the grant. It reports whether anything changed; an
// equal schedule is not written again.
func (g *Grant) SetSchedule(card int, s Schedule) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mem == nil || card < 0 || card >= len(g.spec.Cards) {
		return false
	}
	region := g.region()
	c := &region.card[card]
	if scheduleOf(c) == s {
		return false
	}
	atomic.AddUint32(word(&c.seq), 1)
	atomic.StoreUint32(word(&c.cores), s.Cores)
	atomic.StoreUint32(word(&c.slice_us), s.SliceUS)
	atomic.StoreUint32(word(&c.gate), s.Gate)
	atomic.StoreUint32(word(&c.weight_ppm), s.WeightPPM)
	atomic.StoreUint32(word(&c.least_ppm), s.LeastPPM)
	atomic.StoreUint32(word(&c.busy_procs), s.BusyProcs)
	atomic.StoreUint32(word(&c.others), s.Others)
	atomic.StoreUint32(word(&c.turn_period_us), s.Window.PeriodUS)
	atomic.StoreUint32(word(&c.turn_length_us), s.Window.LengthUS)
	atomic.StoreUint32(word(&c.turn_queue_us), s.Window.QueueUS)
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&c.turn_begin_ns)), s.Window.BeginNS)
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&c.lease_ns)), s.LeaseNS)
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&c.solo)), s.Solo)
	atomic.AddUint32(word(&c.seq), 1)
	atomic.AddUint32(word(&region.generation), 1)
	return true
}

// Schedule returns the schedule of one card as it is in force.
func (g *Grant) Schedule(card int) Schedule {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mem == nil || card < 0 || card >= len(g.spec.Cards) {
		return Schedule{}
	}
	return scheduleOf(&g.region().card[card])
}

// SetOutside publishes the bytes that a card counts for the job beyond what its
// processes announce; less than 0 when they announce too much. It reports
// whether that changed.
func (g *Grant) SetOutside(card int, bytes int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mem == nil || card < 0 || card >= len(g.spec.Cards) {
		return false
	}
	outside := (*int64)(unsafe.Pointer(&g.region().card[card].mem_outside))
	return atomic.SwapInt64(outside, bytes) != bytes
}

// Outside returns what SetOutside published last, in this life of gresd or one
// before.
func (g *Grant) Outside(card int) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mem == nil || card < 0 || card >= len(g.spec.Cards) {
		return 0
	}
	return atomic.LoadInt64((*int64)(unsafe.Pointer(&g.region().card[card].mem_outside)))
}

// AddCredit adds a correction to the budget of the job on a card, in whole microseconds. The sum is in
// the grant, so that a restarted gresd goes on with it.
func (g *Grant) AddCredit(card int, d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mem != nil && card >= 0 && card < len(g.spec.Cards) {
		atomic.AddInt64((*int64)(unsafe.Pointer(&g.region().card[card].credit_ns)), int64(d.Truncate(time.Microsecond)))
	}
}

// Credit returns the sum of all corrections.
func (g *Grant) Credit(card int) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mem == nil || card < 0 || card >= len(g.spec.Cards) {
		return 0
	}
	return time.Duration(atomic.LoadInt64((*int64)(unsafe.Pointer(&g.region().card[card].credit_ns))))
}

// SetGaps publishes the part of the gaps in the job's batches in which a card did not work, 0 to 1. It is
// valid for a time.
func (g *Grant) SetGaps(card int, idle float64, valid time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var now unix.Timespec
	if g.mem == nil || card < 0 || card >= len(g.spec.Cards) || unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return
	}
	c := &g.region().card[card]
	atomic.StoreUint32(word(&c.gaps_idle_ppm), uint32(idle*1e6))
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&c.gaps_until_ns)), uint64(now.Nano())+uint64(valid))
}

// Gaps returns what SetGaps published; 0: it is not valid any more.
func (g *Grant) Gaps(card int) (idle float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var now unix.Timespec
	if g.mem == nil || card < 0 || card >= len(g.spec.Cards) || unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	c := &g.region().card[card]
	if uint64(now.Nano()) >= atomic.LoadUint64((*uint64)(unsafe.Pointer(&c.gaps_until_ns))) {
		return 0
	}
	return float64(atomic.LoadUint32(word(&c.gaps_idle_ppm))) / 1e6
}

// Revoke marks the job as ended. The limits stay in force for processes that
// still have the file mapped.
func (g *Grant) Revoke() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mem != nil {
		atomic.StoreUint32(word(&g.region().revoked), 1)
		atomic.AddUint32(word(&g.region().generation), 1)
	}
}

// Close unmaps the grant; the file and its limits stay.
func (g *Grant) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mem == nil {
		return nil
	}
	err := unix.Munmap(g.mem)
	g.mem = nil
	return err
}

func scheduleOf(c *C.struct_vgpu_grant_card) Schedule {
	return Schedule{
		SliceUS:   atomic.LoadUint32(word(&c.slice_us)),
		Gate:      atomic.LoadUint32(word(&c.gate)),
		WeightPPM: atomic.LoadUint32(word(&c.weight_ppm)),
		LeastPPM:  atomic.LoadUint32(word(&c.least_ppm)),
		BusyProcs: atomic.LoadUint32(word(&c.busy_procs)),
		Others:    atomic.LoadUint32(word(&c.others)),
		Cores:     atomic.LoadUint32(word(&c.cores)),
		Window: Window{
			PeriodUS: atomic.LoadUint32(word(&c.turn_period_us)),
			LengthUS: atomic.LoadUint32(word(&c.turn_length_us)),
			QueueUS:  atomic.LoadUint32(word(&c.turn_queue_us)),
			BeginNS:  atomic.LoadUint64((*uint64)(unsafe.Pointer(&c.turn_begin_ns))),
		},
		LeaseNS: atomic.LoadUint64((*uint64)(unsafe.Pointer(&c.lease_ns))),
		Solo:    atomic.LoadUint64((*uint64)(unsafe.Pointer(&c.solo))),
	}
}

// errBusy says that a schedule was being written each time it was read.
var errBusy = errors.New("schedule is being written")

// ReadGrant reads a grant file as it is now, with consistent schedules.
func ReadGrant(path string) (GrantSpec, []Schedule, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return GrantSpec{}, nil, fmt.Errorf("read grant: %w", err)
	}
	defer f.Close()
	buf := make([]byte, GrantSize)
	spec, schedules, err := loadGrant(f, buf)
	for try := 0; errors.Is(err, errBusy) && try < 50; try++ {
		time.Sleep(time.Millisecond)
		spec, schedules, err = loadGrant(f, buf)
	}
	if err != nil {
		return GrantSpec{}, nil, fmt.Errorf("read grant %s: %w", path, err)
	}
	return spec, schedules, nil
}

// loadGrant reads the file twice: the schedules are whole when their sequence
// numbers are even and the same both times.
func loadGrant(f *os.File, buf []byte) (GrantSpec, []Schedule, error) {
	if err := checkSize(int(f.Fd()), GrantSize, ErrNotGrant); err != nil {
		return GrantSpec{}, nil, err
	}
	var seqs [2][MaxCards]uint32
	g := (*C.struct_vgpu_grant)(unsafe.Pointer(&buf[0]))
	for pass := range seqs {
		if _, err := f.ReadAt(buf, 0); err != nil {
			return GrantSpec{}, nil, fmt.Errorf("%w: %w", ErrNotGrant, err)
		}
		for i := range g.card {
			seqs[pass][i] = uint32(g.card[i].seq)
		}
	}
	switch {
	case g.magic != C.VGPU_GRANT_MAGIC:
		return GrantSpec{}, nil, fmt.Errorf("%w: magic %#x", ErrNotGrant, uint64(g.magic))
	case g.version != C.VGPU_REGION_VERSION || g.size != GrantSize:
		return GrantSpec{}, nil, fmt.Errorf("%w: version %d, %d bytes; want version %d, %d bytes",
			ErrNotGrant, g.version, g.size, C.VGPU_REGION_VERSION, GrantSize)
	case g.ncards == 0 || g.ncards > MaxCards:
		return GrantSpec{}, nil, fmt.Errorf("%w: %d cards; want 1 to %d", ErrNotGrant, g.ncards, MaxCards)
	}
	socket, _, _ := bytes.Cut((*[C.VGPU_SOCKET_LEN]byte)(unsafe.Pointer(&g.socket))[:], []byte{0})
	spec := GrantSpec{
		JobID: uint32(g.job_id), UID: uint32(g.uid), GID: uint32(g.gid),
		Created: time.Unix(0, int64(g.created_ns)), Revoked: g.revoked != 0,
		Socket: string(socket),
	}
	var schedules []Schedule
	var busy error
	for i := range int(g.ncards) {
		c := &g.card[i]
		spec.Cards = append(spec.Cards, GrantCard{
			UUID: text(&c.uuid), MemLimit: uint64(c.mem_limit), MemOverhead: uint64(c.mem_overhead),
			MemPhysical: uint64(c.mem_physical),
			Share:       uint32(c.share), Cores: uint32(c.cores), Mode: uint32(c.mode),
			Priority: uint32(c.priority), Ceiling: uint32(c.ceiling), Engine: uint32(c.engine),
		})
		schedules = append(schedules, scheduleOf(c))
		if seqs[0][i]&1 == 1 || seqs[0][i] != seqs[1][i] {
			busy = errBusy
		}
	}
	return spec, schedules, busy
}

// createFile makes a file under a name of its own, fills it, and gives it its
// name only when it is complete and when the name is free.
func createFile(path string, fill func(*os.File) error) error {
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err = fill(f); err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return &os.PathError{Op: "create", Path: path, Err: err}
	}
	return nil
}

// word gives sync/atomic a field of a mapped region.
func word(p *C.uint32_t) *uint32 { return (*uint32)(unsafe.Pointer(p)) }

func putUUID(dst *[C.VGPU_UUID_LEN]C.char, uuid string) error {
	if len(uuid) == 0 || len(uuid) >= len(dst) {
		return fmt.Errorf("uuid %q: want 1 to %d bytes", uuid, len(dst)-1)
	}
	for i := range len(uuid) {
		dst[i] = C.char(uuid[i])
	}
	return nil
}

func text(src *[C.VGPU_UUID_LEN]C.char) string {
	return plain((*[C.VGPU_UUID_LEN]byte)(unsafe.Pointer(src))[:])
}
