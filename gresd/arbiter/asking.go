// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// asking decides which cards the measurer asks: at each of its looks those where
// something changes, and seldom those where nothing does. The driver needs longer for
// its answer than gresd for all else, and what is not announced comes with what is, or
// with the first work of a process.
type asking struct {
	marks map[procKey]mark
	cards map[gpu.UUID]*askedCard
}

// seldom is of how many looks one asks a card on which nothing changes.
const seldom = 4

// mark is what a process says of a card; another one means a change.
type mark struct {
	card              gpu.UUID
	begun, done       uint32
	contexts          uint32
	mem               uint64
	alive, hasStarted bool
}

type askedCard struct {
	// moves are the looks that are left until nothing is said to change: as many as
	// a measurement needs to settle.
	moves   int
	skipped int
}

func newAsking() asking {
	return asking{marks: map[procKey]mark{}, cards: map[gpu.UUID]*askedCard{}}
}

// due returns the cards of the grants to ask now, and whether something changes there. Each of them
// has a living process with a context.
func (a *asking) due(grants map[uint32]libvgpu.GrantSpec, views map[uint32]libvgpu.CacheView) map[gpu.UUID]bool {
	marks, used := map[procKey]mark{}, map[gpu.UUID]bool{}
	for job, spec := range grants {
		for i, card := range spec.Cards {
			for _, slot := range views[job].Slots {
				c := slot.Cards[i]
				if c.Contexts == 0 {
					continue
				}
				key := procKey{job, slot.PIDNS, slot.PID, slot.StartTime, i}
				marks[key] = mark{
					gpu.UUID(card.UUID), slot.MemBegun, slot.MemDone, c.Contexts, c.Mem, slot.Alive, c.Launches > 0,
				}
				used[gpu.UUID(card.UUID)] = used[gpu.UUID(card.UUID)] || slot.Alive
				if a.marks[key] != marks[key] {
					a.moved(gpu.UUID(card.UUID))
				}
			}
		}
	}
	for key, old := range a.marks {
		if _, still := marks[key]; !still {
			a.moved(old.card)
		}
	}
	a.marks = marks
	due := map[gpu.UUID]bool{}
	for uuid, alive := range used {
		card := a.cards[uuid] // there is one: its processes were new once
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
	for uuid := range a.cards {
		if _, still := used[uuid]; !still {
			delete(a.cards, uuid)
		}
	}
	return due
}

// moved notes that something has changed on a card.
func (a *asking) moved(card gpu.UUID) {
	if a.cards[card] == nil {
		a.cards[card] = &askedCard{}
	}
	a.cards[card].moves = comparisons
}
