// SPDX-License-Identifier: Apache-2.0

// Package probe measures what only a CUDA context can show: the memory that a context takes of a
// card, and whether the card obeys time slices.
//
// gresd must never have a context. So it runs itself as a child process with one card. The child
// makes the context, prints the result and ends. gresd kills a child that takes too long.
package probe

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// Figure is the memory that one process with one context takes of a card.
type Figure struct {
	Context   gpu.Bytes `json:"context_bytes"`   // as NVML counts it
	Uncounted gpu.Bytes `json:"uncounted_bytes"` // more, as the card counts it
	// Idle: no other process used the card. Otherwise Uncounted can be too small, because the
	// driver takes more memory for the first user of a card.
	Idle bool `json:"idle"`
}

// Total is the card's count for the process.
func (f Figure) Total() gpu.Bytes { return f.Context + f.Uncounted }

// mostFigure is more than any context takes: 1 TiB.
const mostFigure = 1 << 40

// check refuses a figure that cannot be: it would be charged to every process.
func (f Figure) check() error {
	if f.Context > mostFigure || f.Uncounted > mostFigure-f.Context {
		return fmt.Errorf("a context of %d bytes and %d uncounted: want at most %d", f.Context, f.Uncounted, uint64(mostFigure))
	}
	return nil
}

// CardMemory reads the memory of cards.
type CardMemory interface {
	Processes(gpu.UUID) ([]driver.Process, error)
	MemoryUsed(gpu.UUID) (gpu.Bytes, error)
}

const (
	// settleEvery and settleTries bound how long NVML may take to count a new
	// context in full.
	settleEvery = 50 * time.Millisecond
	settleTries = 40
	// mostUncounted is more than any driver hides: beyond it, something else
	// has happened on the card.
	mostUncounted = gpu.GiB
)

// MeasureContext makes a context in this process and returns what it takes.
func MeasureContext(memory CardMemory, library string, uuid gpu.UUID) (Figure, error) {
	return measure(memory, uuid, uint32(os.Getpid()), func() error { return makeContext(library, uuid) })
}

// reading is a card at one moment.
type reading struct {
	used   gpu.Bytes
	own    gpu.Bytes
	others map[uint32]gpu.Bytes
}

func read(memory CardMemory, uuid gpu.UUID, pid uint32) (reading, error) {
	processes, err := memory.Processes(uuid)
	if err != nil {
		return reading{}, err
	}
	used, err := memory.MemoryUsed(uuid)
	r := reading{used: used, others: map[uint32]gpu.Bytes{}}
	for _, p := range processes {
		if p.PID == pid {
			r.own = p.Memory
		} else {
			r.others[p.PID] = p.Memory
		}
	}
	return r, err
}

func measure(memory CardMemory, uuid gpu.UUID, pid uint32, newContext func() error) (Figure, error) {
	before, err := read(memory, uuid, pid)
	if err != nil {
		return Figure{}, err
	}
	if err := newContext(); err != nil {
		return Figure{}, err
	}
	after, err := read(memory, uuid, pid)
	for range settleTries {
		if err != nil {
			return Figure{}, err
		}
		time.Sleep(settleEvery)
		last := after
		if after, err = read(memory, uuid, pid); after.used == last.used && after.own == last.own && after.used > before.used {
			break
		}
	}
	if err != nil {
		return Figure{}, err
	}
	return figure(before, after)
}

func figure(before, after reading) (Figure, error) {
	quiet := maps.Equal(before.others, after.others) && after.used > before.used
	idle := quiet && len(after.others) == 0
	grown := after.used - min(before.used, after.used)
	switch {
	case quiet && after.own == 0: // NVML does not list us: another PID namespace
		return Figure{Context: grown, Idle: idle}, nil
	case after.own == 0:
		return Figure{}, errors.New("NVML does not list this process, and other processes use the card")
	case quiet && grown >= after.own && grown-after.own <= mostUncounted:
		return Figure{Context: after.own, Uncounted: grown - after.own, Idle: idle}, nil
	}
	return Figure{Context: after.own}, nil
}

// Library returns the libcuda to load. If nvml is a path, libcuda is in the same folder. Otherwise the
// loader finds it.
func Library(nvml string) string {
	const name = "libcuda.so.1"
	if strings.Contains(nvml, "/") {
		beside := filepath.Join(filepath.Dir(nvml), name)
		if _, err := os.Stat(beside); err == nil {
			return beside
		}
	}
	return name
}

// quietest puts cards that nobody uses first, so that no job is disturbed. A
// card that cannot be asked comes last.
func quietest(memory CardMemory, cards []gpu.Card) (card gpu.Card, idle bool) {
	uses := map[gpu.UUID]int{}
	for _, c := range cards {
		processes, err := memory.Processes(c.UUID)
		if uses[c.UUID] = len(processes); err != nil {
			uses[c.UUID] = math.MaxInt
		}
	}
	best := slices.MinFunc(cards, func(a, b gpu.Card) int { return cmp.Compare(uses[a.UUID], uses[b.UUID]) })
	return best, uses[best.UUID] == 0
}

// MeasureInChild measures a card in a child process. The command must print a [Figure] in JSON.
func MeasureInChild(ctx context.Context, command []string, uuid gpu.UUID) (Figure, error) {
	ctx, cancel := context.WithTimeout(ctx, childTimeout)
	defer cancel()
	c, err := start(command, uuid)
	var text string
	if err == nil {
		text, err = c.output(ctx)
	}
	if err != nil {
		return Figure{}, fmt.Errorf("measure the context cost of %s: %w", uuid, err)
	}
	f, err := readFigure([]byte(text))
	if err != nil {
		return Figure{}, fmt.Errorf("measure the context cost of %s: read answer: %w", uuid, err)
	}
	return f, nil
}

func readFigure(answer []byte) (f Figure, err error) {
	if err := json.Unmarshal(answer, &f); err != nil {
		return Figure{}, err
	}
	return f, f.check()
}
