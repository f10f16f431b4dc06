// SPDX-License-Identifier: Apache-2.0

package libvgpu

// #include "region.h"
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	headerSize = C.sizeof_struct_vgpu_cache_header
	slotSize   = C.sizeof_struct_vgpu_slot
	maxPID     = 1<<22 - 1 // what an owner word has room for
	nsUnknown  = C.VGPU_NS_UNKNOWN
)

// ErrNotCache says that a file is not a cache of this version. Its owner may
// have cut it or written over it.
var ErrNotCache = errors.New("not a cache file")

// CreateCache writes the empty cache file of a job, owned by its user with
// mode 0600. Like a grant it appears complete and never replaces one.
func CreateCache(path string, spec GrantSpec, uid, gid uint32) error {
	buf := make([]byte, headerSize)
	h := (*C.struct_vgpu_cache_header)(unsafe.Pointer(&buf[0]))
	h.magic, h.version, h.size = C.VGPU_CACHE_MAGIC, C.VGPU_REGION_VERSION, CacheSize-C.VGPU_CACHE_OFFSET
	h.job_id, h.uid = C.uint32_t(spec.JobID), C.uint32_t(uid)
	h.ncards, h.max_slots = C.uint32_t(len(spec.Cards)), MaxSlots
	for i, card := range spec.Cards {
		if err := putUUID(&h.uuid[i], card.UUID); err != nil {
			return fmt.Errorf("create cache %s: %w", path, err)
		}
		h.mem_limit[i] = C.uint64_t(card.MemLimit)
	}
	err := createFile(path, func(f *os.File) error {
		if err := f.Truncate(CacheSize); err != nil { // sparse
			return err
		}
		if err := allocateUsual(f); err != nil {
			return err
		}
		if _, err := f.WriteAt(buf, C.VGPU_CACHE_OFFSET); err != nil {
			return err
		}
		return f.Chown(int(uid), int(gid))
	})
	if err != nil {
		return fmt.Errorf("create cache: %w", err)
	}
	return nil
}

// usualSlots and usualView are what most jobs use of the file.
const (
	usualSlots = 64
	usualView  = 64 << 10 // bytes of HAMi-core's view
)

// allocateUsual takes the memory that most jobs will use of the file now, while an
// error can be told: the processes of the job have it mapped, and are killed where
// the filesystem is full at their first touch.
func allocateUsual(f *os.File) error {
	for _, part := range []struct{ at, n int64 }{
		{0, usualView},
		{C.VGPU_CACHE_OFFSET, headerSize + usualSlots*slotSize},
	} {
		err := unix.Fallocate(int(f.Fd()), 0, part.at, part.n)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil // no tmpfs
		}
		if err != nil {
			return &os.PathError{Op: "allocate", Path: f.Name(), Err: err}
		}
	}
	return nil
}

// CacheView is what the processes of a job say of themselves.
type CacheView struct {
	JobID uint32
	// Asleep says that no process has used the file for a while; whoever keeps the
	// view tells when one does. Never set by a reader.
	Asleep bool
	Cards  []CacheCard
	Slots  []SlotView // slots in use
}

// CacheCard sums a card over the slots of living processes; the sums stop at
// the largest number rather than wrap.
type CacheCard struct {
	UUID                               string
	MemLimit, MemUsed, Context, Module uint64
	MemPeak                            uint64 // the most in use after any allocation; 0: not known
	ElapsedNS                          uint64 // for which measured work was on its way, slices of others included; processes added up
	WantedNS                           uint64 // CLOCK_MONOTONIC: with GateWindow, when a launch last waited; else 0, or old
	GapsNS                             uint64 // time in batches in which the card may have waited for the host
	IdleNS                             uint64 // of it, what was not charged
	Budget                             Budget
}

// Budget is the GPU-time budget of a job on one card.
type Budget struct {
	BalanceNS                         int64
	ChargedNS, Waits, WaitNS, Refused uint64
}

// SlotView is one process. PID is a number of the process's own PID namespace,
// HostPID one of the reader's; 0 when it is not known.
type SlotView struct {
	SlotOwner
	PID, HostPID           uint32
	PIDNS                  uint64 // inode of its PID namespace; 0 when not known
	StartTime, HeartbeatNS uint64
	Flags                  uint32
	UnknownSymbols         uint32 // asked for, and newer in the driver than libvgpu knows
	MemBegun, MemDone      uint32 // allocations begun and ended
	Alive                  bool
	OnHost                 bool // HostPID names it in our PID namespace
	Gone                   bool // it has ended, for certain
	Cards                  []SlotCard
}

// SlotCard is what one process holds and does on one card.
type SlotCard struct {
	Mem, GPUNS, Launches, InflightNS uint64
	SliceUS, Contexts                uint32
	Context                          uint64 // of Mem, what contexts were charged
	TypicalNS                        uint32 // length of what it launches; 0: not known
	Syncs                            uint32 // how often the host has waited for work; wraps
}

// CacheReader reads one cache file again and again without opening it again, with one
// system call where nothing has changed but numbers. It is for one goroutine.
type CacheReader struct {
	file    *os.File
	fd      int                 // the same
	alive   map[uint64]liveness // by owner; nil: none
	checked time.Time           // when the size of the file was last looked at
	high    int                 // slots that it had when it was last read
	uuids   [MaxCards]string    // the same
	inode   uint64              // as mappings show it; 0: they do not
	asked   bool                // inode is known
}

// buffers are for one reading each: a node may have thousands of jobs.
var buffers = sync.Pool{New: func() any {
	buf := make([]byte, headerSize+mostPooled*slotSize)
	return &buf
}}

// mostPooled are the slots that a buffer of the pool has room for.
const mostPooled = 64

type liveness struct {
	first               time.Time // when its slot was first seen, or soon after
	until               time.Time // when to ask the kernel again
	alive, onHost, gone bool
	left                bool   // it lives, as another program
	hostPID             uint32 // its pid here; 0: it was never found
}

const (
	// livenessFor is how long an answer of the kernel about a process is kept.
	livenessFor = 500 * time.Millisecond
	// askedFresh is the same for a scan of /proc, when somebody waits for the answer:
	// shorter than VGPU_GRACE_NS, so that two questions about a dead process, which
	// are that far apart, are answered by two scans.
	askedFresh = 100 * time.Millisecond
)

// OpenCache opens a cache file for reading.
func OpenCache(path string) (*CacheReader, error) {
	// O_NONBLOCK: a root process must not be made to wait by a file's owner.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open cache: %w", err)
	}
	return newReader(f), nil
}

func newReader(f *os.File) *CacheReader {
	return &CacheReader{file: f, fd: int(f.Fd())}
}

// Close closes the file.
func (r *CacheReader) Close() error { return r.file.Close() }

// ReadCache reads a cache file once.
func ReadCache(path string) (CacheView, error) {
	r, err := OpenCache(path)
	if err != nil {
		return CacheView{}, err
	}
	defer r.Close()
	return r.Read()
}

// Read returns the file as it is now. Its fields change while it is read: the
// numbers of a slot are each true, not all of the same moment.
func (r *CacheReader) Read() (CacheView, error) { return r.readWith(nil) }

// Ended reads the file and returns the owners of slots whose processes have ended
// for certain, those that hold the most memory first, at most so many. It asks the
// kernel anew, and waits for a scan of /proc until then at most. took is what it cost
// of a processor.
func (r *CacheReader) Ended(most int, until time.Time) (_ []uint64, took time.Duration, _ error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	view, err := r.readWith(&patience{until})
	took = threadTime() - before
	if err != nil {
		return nil, took, err
	}
	held := map[uint64]uint64{}
	var owners []uint64
	for _, s := range view.Slots {
		if !s.Gone || s.Left { // the answer names owners, and that one may have another slot by now
			continue
		}
		if _, known := held[s.Owner]; !known {
			owners = append(owners, s.Owner)
		}
		for _, c := range s.Cards {
			held[s.Owner] = addSaturated(held[s.Owner], c.Mem)
		}
	}
	slices.SortStableFunc(owners, func(a, b uint64) int { return cmp.Compare(held[b], held[a]) })
	return owners[:min(len(owners), most)], took, nil
}

func (r *CacheReader) readWith(p *patience) (CacheView, error) {
	view, err := r.read(p)
	if err != nil {
		return CacheView{}, fmt.Errorf("read cache %s: %w", r.file.Name(), err)
	}
	return view, nil
}

// Claimed says whether processes have ever claimed slots, or the file cannot be
// read: it is worth to read all of it.
func (r *CacheReader) Claimed() bool {
	var buf [4]byte
	err := pread(r.fd, buf[:], C.VGPU_CACHE_OFFSET+int64(unsafe.Offsetof(C.struct_vgpu_cache_header{}.high_slot)))
	return err != nil || buf != [4]byte{}
}

func (r *CacheReader) read(p *patience) (CacheView, error) {
	now := time.Now()
	// What is missing of a file that was cut is seen below, where it is read.
	if now.Sub(r.checked) >= livenessFor {
		if err := checkSize(r.fd, CacheSize, ErrNotCache); err != nil {
			return CacheView{}, err
		}
		r.checked = now
	}
	pooled := buffers.Get().(*[]byte)
	defer buffers.Put(pooled)
	buf := *pooled
	had := headerSize + min(r.high, mostPooled)*slotSize
	if err := pread(r.fd, buf[:had], C.VGPU_CACHE_OFFSET); err != nil {
		return CacheView{}, fmt.Errorf("%w: %w", ErrNotCache, err)
	}
	h := (*C.struct_vgpu_cache_header)(unsafe.Pointer(&buf[0]))
	if h.magic != C.VGPU_CACHE_MAGIC || h.version != C.VGPU_REGION_VERSION || h.ncards == 0 || h.ncards > MaxCards {
		return CacheView{}, fmt.Errorf("%w: magic %#x, version %d, %d cards", ErrNotCache, uint64(h.magic), h.version, h.ncards)
	}
	view := CacheView{JobID: uint32(h.job_id), Cards: make([]CacheCard, h.ncards)}
	for i := range view.Cards {
		b := &h.budget[i]
		view.Cards[i] = CacheCard{
			UUID: r.uuid(i, &h.uuid[i]), MemLimit: uint64(h.mem_limit[i]), MemPeak: uint64(h.mem_peak[i]), ElapsedNS: uint64(h.elapsed_ns[i]),
			GapsNS: uint64(h.demand[i].gaps_ns), IdleNS: uint64(h.demand[i].idle_ns),
			WantedNS: uint64(h.demand[i].wanted_ns),
			Budget: Budget{
				BalanceNS: int64(b.balance_ns), ChargedNS: uint64(b.charged_ns),
				Waits: uint64(b.waits), WaitNS: uint64(b.wait_ns), Refused: uint64(b.refused),
			},
		}
	}
	r.high = min(int(h.high_slot), MaxSlots)
	if r.high == 0 {
		r.alive = nil
		return view, nil
	}
	end := headerSize + r.high*slotSize
	if len(buf) < end {
		buf = append(make([]byte, 0, end), buf[:had]...)[:end] // a rare job; not kept
	}
	if had < end {
		if err := pread(r.fd, buf[had:end], C.VGPU_CACHE_OFFSET+int64(had)); err != nil {
			return CacheView{}, fmt.Errorf("%w: %w", ErrNotCache, err)
		}
	}
	r.addSlots(&view, buf[headerSize:end], now, p)
	for owner, l := range r.alive {
		if now.Sub(l.until) > livenessFor {
			delete(r.alive, owner) // its slot is gone
		}
	}
	return view, nil
}

// uuid is that of a card, which is nearly always what it was.
func (r *CacheReader) uuid(card int, raw *[C.VGPU_UUID_LEN]C.char) string {
	b, was := (*[C.VGPU_UUID_LEN]byte)(unsafe.Pointer(raw)), r.uuids[card]
	if string(b[:len(was)]) != was || len(was) < len(b) && b[len(was)] != 0 {
		r.uuids[card] = text(raw)
	}
	return r.uuids[card]
}

// addSlots adds the slots that are in use.
func (r *CacheReader) addSlots(view *CacheView, buf []byte, now time.Time, p *patience) {
	if r.alive == nil {
		r.alive = map[uint64]liveness{}
	}
	slot := func(i int) *C.struct_vgpu_slot { return (*C.struct_vgpu_slot)(unsafe.Pointer(&buf[i*slotSize])) }
	used := 0
	for i := range r.high {
		if slot(i).owner != 0 {
			used++
		}
	}
	view.Slots = make([]SlotView, 0, used)
	cards := make([]SlotCard, used*len(view.Cards)) // of all slots
	for i := range r.high {
		if s := slot(i); s.owner != 0 {
			r.addSlot(view, uint32(i), s, cards[:len(view.Cards):len(view.Cards)], now, p)
			cards = cards[len(view.Cards):]
		}
	}
}

// addSlot adds one slot; cards is room for what it holds on each.
func (r *CacheReader) addSlot(view *CacheView, index uint32, s *C.struct_vgpu_slot, cards []SlotCard, now time.Time, p *patience) {
	// The owner word speaks: a process that has just claimed the slot has not
	// written its other fields yet.
	slot := SlotView{
		SlotOwner: SlotOwner{Index: index, Owner: uint64(s.owner)},
		PID:       uint32(s.owner>>32) & maxPID, HostPID: uint32(s.host_pid), StartTime: uint64(s.start_time),
		PIDNS: uint64(s.pid_ns), HeartbeatNS: uint64(s.heartbeat_ns), Flags: uint32(s.flags), UnknownSymbols: uint32(s.unknown_symbols),
		MemBegun: uint32(s.mem_begun), MemDone: uint32(s.mem_done), Cards: cards,
	}
	if uint32(slot.StartTime) != uint32(s.owner) {
		slot.StartTime = uint64(uint32(s.owner))
	}
	for i := range slot.Cards {
		c := &s.card[i]
		slot.Cards[i] = SlotCard{
			Mem: uint64(c.mem), GPUNS: uint64(c.gpu_ns), Launches: uint64(c.launches),
			InflightNS: uint64(c.inflight_ns), SliceUS: uint32(c.slice_us), Contexts: uint32(c.contexts),
			Context: uint64(c.mem_context), TypicalNS: uint32(c.typical_ns), Syncs: uint32(c.syncs),
		}
	}
	l, known := r.alive[slot.Owner]
	if !known {
		l.first = now
	}
	if !known || now.After(l.until) || p != nil {
		l.look(&slot, now, p, r)
		r.alive[slot.Owner] = l
	}
	if l.onHost {
		slot.HostPID = l.hostPID
	}
	slot.Alive, slot.OnHost, slot.Gone, slot.Left = l.alive && !l.left, l.onHost, l.gone, l.left
	for i := range slot.Cards {
		if c := &s.card[i]; slot.Alive {
			sum := &view.Cards[i]
			sum.MemUsed = addSaturated(sum.MemUsed, uint64(c.mem))
			sum.Context = addSaturated(sum.Context, uint64(c.mem_context))
			sum.Module = addSaturated(sum.Module, uint64(c.mem_module))
		}
	}
	view.Slots = append(view.Slots, slot)
}

// heartbeatFor is how long a heartbeat speaks for a process that cannot be
// looked up, because it lives in another PID namespace.
const heartbeatFor = 10 * time.Second

// look asks the kernel whether the process is still the one that claimed the slot.
// Once it was found here, its pid and start time tell that.
func (l *liveness) look(s *SlotView, now time.Time, p *patience, r *CacheReader) {
	fresh := livenessFor
	if p != nil {
		fresh = askedFresh
	}
	l.until = now.Add(livenessFor)
	l.left = false
	pid, v := l.hostPID, found
	if pid == 0 {
		since := now.Add(-fresh)
		if since.Before(l.first) {
			since = l.first
		}
		pid, v = s.resolve(since, p)
	}
	switch v {
	case found:
		start, life := startTime(pid)
		l.hostPID, l.alive = pid, life == unseen || life == lives && uint32(start) == uint32(s.StartTime)
		l.onHost, l.gone = l.alive, !l.alive
		// A program that has become another one by exec has its pid, and not its memory.
		if l.left = life == lives && l.alive && s.stale() && r.lackedBy(pid); l.left {
			l.gone = true
		}
	case absent:
		l.alive, l.onHost, l.gone = false, false, true
	default:
		l.alive, l.onHost, l.gone = s.HostPID == 0 && s.heartbeat(), false, false
	}
}

// heartbeat says whether a process that cannot be looked up gave a sign of life
// lately.
func (s *SlotView) heartbeat() bool {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return false
	}
	age := now.Nano() - int64(s.HeartbeatNS)
	return age >= 0 && age < int64(heartbeatFor)
}

// stale says that a slot counts memory, and that its process, which gives a sign of life each
// 0.1 s as long as it has a context, has given none for a while.
func (s *SlotView) stale() bool {
	return s.HeartbeatNS != 0 && !s.heartbeat() && slices.ContainsFunc(s.Cards, func(c SlotCard) bool { return c.Mem != 0 })
}

// lackedBy says that a process has no mapping of the cache, for certain: its slot is of a
// program that it was before. Only exec ends a mapping of libvgpu's.
func (r *CacheReader) lackedBy(pid uint32) bool {
	if !r.asked {
		r.inode, r.asked = mappedInode(r.file), true
	}
	return r.inode != 0 && mapsFile(strconv.FormatUint(uint64(pid), 10), r.inode) == unmapped
}

// ownerNS are the PID namespace's bits of an owner word.
func ownerNS(owner uint64) uint32 { return uint32(owner >> 54) }

func addSaturated(a, b uint64) uint64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return ^uint64(0)
}
