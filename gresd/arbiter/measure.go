// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	// measureEvery is the time between two comparisons with the card's own count.
	measureEvery = 100 * time.Millisecond
	// comparisons are as many as count: the card's count may lag behind what has
	// just been allocated, so a use is lowered only to the highest of the last.
	comparisons = 8
	// mourning are the looks for which a dead process still counts: the driver
	// frees its memory a moment after its death.
	mourning = 3
)

// Memory is what the measurer needs of the open grants.
type Memory interface {
	Open() []uint32
	Spec(jobID uint32) (libvgpu.GrantSpec, bool)
	Cache(jobID uint32, maxAge time.Duration) (libvgpu.CacheView, error)
	SetOutside(jobID uint32, card int, bytes int64) bool
}

// Counter is the card's own count of its processes' memory.
type Counter interface {
	Processes(gpu.UUID) ([]driver.Process, error)
}

// Measurer compares what processes announce with what the card counts for them,
// because contexts, code and local memory come from no allocation call. The
// difference goes into the grant and is part of the job's use from then on.
type Measurer struct {
	memory    Memory
	counter   Counter
	uncounted func(gpu.UUID) gpu.Bytes
	kept      func(jobID uint32, card int) int64
	log       *slog.Logger
	wake      wakeup.Bell
	diffs     map[procKey]history
	asking    asking
	whole     map[Key]bool      // jobs of which every process was compared once
	said      map[gpu.UUID]bool // cards that could not be asked
}

// history is what the last comparisons of a process said, the newest first.
type history struct {
	diffs [comparisons]int64
	dead  int // looks since its death
}

func (h history) add(diff int64) history {
	copy(h.diffs[1:], h.diffs[:])
	h.diffs[0] = diff
	return h
}

func (h history) highest() int64 { return slices.Max(h.diffs[:]) }

// NewMeasurer returns a measurer that does nothing before [Measurer.Run].
// uncounted is what a card takes for each process beyond what it counts for it.
func NewMeasurer(memory Memory, counter Counter, uncounted func(gpu.UUID) gpu.Bytes, log *slog.Logger) *Measurer {
	return &Measurer{
		memory: memory, counter: counter, uncounted: uncounted, log: log,
		wake: wakeup.NewBell(), diffs: map[procKey]history{}, asking: asking{}, whole: map[Key]bool{}, said: map[gpu.UUID]bool{},
	}
}

// Keeps sets what tells the memory that cards still have of processes of a job that have ended. It
// must be set before [Measurer.Run].
func (m *Measurer) Keeps(kept func(jobID uint32, card int) int64) { m.kept = kept }

// Wake tells the measurer that jobs have come or gone. It never blocks.
func (m *Measurer) Wake() { m.wake.Ring() }

// Run measures while jobs are awake, until ctx is done, and takes no more than a tenth
// of a core for it. The driver may block it; nothing else waits for it.
func (m *Measurer) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, m.wake.Ring)()
	for ctx.Err() == nil {
		began := time.Now()
		awake := m.step()
		end := time.Now()
		for awake == 0 && !m.wake.Sleep(time.Hour) {
		}
		// However often jobs come and go.
		next := time.Now().Add(max(wakeup.Next(measureEvery), wakeup.Rest(end.Sub(began))))
		for left := time.Until(next); left > 0 && ctx.Err() == nil; left = time.Until(next) {
			m.wake.Sleep(left)
		}
	}
}

// step measures the jobs of the cards that are to be asked, and returns how many jobs
// are awake. The caches are read before and after a card is asked: a process that
// allocated or freed in between cannot be compared, and keeps its last differences.
func (m *Measurer) step() int {
	awake := 0
	// The cards come from the grants: users can write any UUID into a cache.
	grants, before := map[uint32]libvgpu.GrantSpec{}, map[uint32]libvgpu.CacheView{}
	for _, job := range m.memory.Open() {
		spec, open := m.memory.Spec(job)
		view, err := m.memory.Cache(job, atOnce)
		if !open || err == nil && view.Asleep {
			continue
		}
		awake++ // A job with a broken cache does not sleep: its user can repair the cache.
		if err == nil && len(view.Cards) == len(spec.Cards) {
			grants[job], before[job] = spec, view
		}
	}
	due := m.asking.due(grants, before)
	asked, moving := jobsOn(due, grants)
	m.read(before, moving)
	counts := m.count(due)
	after := maps.Clone(before)
	m.read(after, asked)
	m.compare(grants, before, after, counts)
	return awake
}

// jobsOn returns the jobs that use a due card, and the jobs that use a changing card.
func jobsOn(due map[gpu.UUID]bool, grants map[uint32]libvgpu.GrantSpec) (asked, moving []uint32) {
	for job, spec := range grants {
		on, moves := false, false
		for _, card := range spec.Cards {
			m, is := due[gpu.UUID(card.UUID)]
			on, moves = on || is, moves || m
		}
		if on {
			asked = append(asked, job)
		}
		if moves {
			moving = append(moving, job)
		}
	}
	return asked, moving
}

// compare takes over what cards counted. Processes on cards that were not asked keep
// their differences.
func (m *Measurer) compare(grants map[uint32]libvgpu.GrantSpec, before, after map[uint32]libvgpu.CacheView, counts map[gpu.UUID]map[uint32]gpu.Bytes) {
	next, whole := map[procKey]history{}, map[Key]bool{}
	for job, spec := range grants {
		if len(after[job].Cards) != len(spec.Cards) {
			continue
		}
		for i, card := range spec.Cards {
			var sum int64
			name, guessed := Key{job, gpu.UUID(card.UUID)}, false
			for _, slot := range after[job].Slots {
				if slot.Cards[i].Contexts == 0 {
					continue
				}
				key := procKey{job, slot.PIDNS, slot.PID, slot.StartTime, i}
				past, measured := m.diffs[key]
				diff, known := compare(find(before[job], slot), slot, i, counts[gpu.UUID(card.UUID)])
				switch {
				case !slot.Alive:
					if past.dead++; !measured || past.dead > mourning {
						continue
					}
				case known:
					if !measured || past.diffs[0] != diff {
						m.asking.moved(gpu.UUID(card.UUID))
					}
					past = past.add(diff)
				case !measured:
					guessed = true
					continue
				}
				next[key] = past
				sum += past.highest()
			}
			// After a restart the grant still says what was measured before:
			// that stays until every process was compared again.
			if guessed && !m.whole[name] {
				continue
			}
			whole[name] = true
			if m.kept != nil {
				sum += m.kept(job, i)
			}
			if m.memory.SetOutside(job, i, sum) {
				m.log.Debug("memory outside of allocations", "job_id", job, "gpu_uuid", card.UUID, "bytes", sum)
			}
		}
	}
	m.diffs, m.whole = next, whole
}

// read reads the caches of jobs again.
func (m *Measurer) read(views map[uint32]libvgpu.CacheView, jobs []uint32) {
	for _, job := range jobs {
		delete(views, job)
		if view, err := m.memory.Cache(job, 0); err == nil && !view.Asleep {
			views[job] = view
		}
	}
}

// count asks cards.
func (m *Measurer) count(due map[gpu.UUID]bool) map[gpu.UUID]map[uint32]gpu.Bytes {
	counts := map[gpu.UUID]map[uint32]gpu.Bytes{}
	for uuid := range due {
		counts[uuid] = map[uint32]gpu.Bytes{}
		processes, err := m.counter.Processes(uuid)
		switch {
		case err == nil:
			delete(m.said, uuid)
		case !m.said[uuid]:
			m.log.Warn("memory of processes cannot be measured", "gpu_uuid", uuid, "error", err)
			m.said[uuid] = true
		}
		for _, p := range processes {
			if p.Memory > 0 {
				counts[uuid][p.PID] = p.Memory + m.uncounted(uuid)
			}
		}
	}
	return counts
}

func find(view libvgpu.CacheView, slot libvgpu.SlotView) *libvgpu.SlotView {
	for i, s := range view.Slots {
		if s.PIDNS == slot.PIDNS && s.PID == slot.PID && s.StartTime == slot.StartTime {
			return &view.Slots[i]
		}
	}
	return nil
}

// compare returns what the card counts for a process beyond what it announced.
// known is false when nothing can be said: it was allocating, it lives in
// another PID namespace, or the card does not list it.
func compare(before *libvgpu.SlotView, after libvgpu.SlotView, card int, counts map[uint32]gpu.Bytes) (diff int64, known bool) {
	if before == nil || !after.OnHost || after.MemBegun != after.MemDone || before.MemBegun != after.MemBegun || before.MemDone != after.MemDone {
		return 0, false
	}
	counted := counts[after.HostPID]
	if counted == 0 || counted > 1<<50 {
		return 0, false
	}
	told := after.Cards[card].Mem
	if told > 1<<50 { // its user wrote it: no card is that large
		return 0, false
	}
	// Less than announced is not given back. Managed memory is announced in full
	// and may be elsewhere just now; a context was charged with room to grow.
	return max(int64(counted)-int64(told), 0), true
}
