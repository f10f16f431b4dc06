// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"hash/maphash"
	"maps"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// asking decides which cards the measurer polls. The driver needs longer for its answer than gresd for
// all else. So the measurer polls a card while a counter of its processes changes, and else every fourth
// time.
type asking map[gpu.UUID]*askedCard

// seldom: the measurer polls a card without changes once in so many times.
const seldom = 4

type askedCard struct {
	counters uint64 // of all its processes
	// moves are the polls until the last change counts no more: as many as a measurement needs to settle.
	moves, skipped int
}

// counters belong to a process on a card.
type counters struct {
	key               procKey
	begun, done       uint32
	contexts          uint32
	mem               uint64
	alive, hasStarted bool
}

var countersSeed = maphash.MakeSeed()

// due returns the cards of the grants to ask now, and whether something changes there. Each of them
// has a living process with a context.
func (a asking) due(grants map[uint32]libvgpu.GrantSpec, views map[uint32]libvgpu.CacheView) map[gpu.UUID]bool {
	sums, used := map[gpu.UUID]uint64{}, map[gpu.UUID]bool{}
	for job, spec := range grants {
		for i, card := range spec.Cards {
			for _, slot := range views[job].Slots {
				c, uuid := slot.Cards[i], gpu.UUID(card.UUID)
				if c.Contexts == 0 {
					continue
				}
				sums[uuid] += maphash.Comparable(countersSeed, counters{
					procKey{job, slot.PIDNS, slot.PID, slot.StartTime, i},
					slot.MemBegun, slot.MemDone, c.Contexts, c.Mem, slot.Alive, c.Launches > 0,
				})
				used[uuid] = used[uuid] || slot.Alive
			}
		}
	}
	due := map[gpu.UUID]bool{}
	for uuid, alive := range used {
		if a[uuid] == nil || a[uuid].counters != sums[uuid] {
			a.moved(uuid)
		}
		card := a[uuid]
		card.counters = sums[uuid]
		if !alive {
			continue
		}
		if card.moves == 0 && card.skipped < seldom-1 {
			card.skipped++
			continue
		}
		due[uuid] = card.moves > 0
		card.moves, card.skipped = max(0, card.moves-1), 0
	}
	maps.DeleteFunc(a, func(uuid gpu.UUID, _ *askedCard) bool { _, still := used[uuid]; return !still })
	return due
}

// moved notes that something has changed on a card.
func (a asking) moved(card gpu.UUID) {
	if a[card] == nil {
		a[card] = &askedCard{}
	}
	a[card].moves = comparisons
}
