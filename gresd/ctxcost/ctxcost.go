// SPDX-License-Identifier: Apache-2.0

// Package ctxcost learns what a CUDA context costs on the cards of a node.
//
// Only a context tells what a context costs, and gresd must never hold one: so
// gresd runs itself as a child for it ([Child]), which makes one context, reads
// what NVML and the card count for it ([Measure]), prints that and ends.
// [Costs] keeps the figures and remembers them over restarts.
package ctxcost

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/inventory"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/libcuda"
)

// Figure is what one process with one context takes of a card.
type Figure struct {
	Context   gpu.Bytes `json:"context_bytes"`   // what NVML counts for the process
	Uncounted gpu.Bytes `json:"uncounted_bytes"` // what the card counts beyond that
	// Idle says that nobody else used the card. Otherwise Uncounted is what of it
	// could be seen: the first user of a card makes the driver take more.
	Idle bool `json:"idle"`
}

// Total is what the card counts for the process.
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

// Meter is what is read of a card.
type Meter interface {
	Processes(gpu.UUID) ([]inventory.Process, error)
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

// Measure makes a context in this process and returns what it takes.
func Measure(meter Meter, library string, uuid gpu.UUID) (Figure, error) {
	return measure(meter, uuid, uint32(os.Getpid()), func() error { return libcuda.MakeContext(library, uuid) })
}

// reading is a card at one moment.
type reading struct {
	used   gpu.Bytes
	own    gpu.Bytes
	others map[uint32]gpu.Bytes
}

func read(meter Meter, uuid gpu.UUID, pid uint32) (reading, error) {
	processes, err := meter.Processes(uuid)
	if err != nil {
		return reading{}, err
	}
	used, err := meter.MemoryUsed(uuid)
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

func measure(meter Meter, uuid gpu.UUID, pid uint32, makeContext func() error) (Figure, error) {
	before, err := read(meter, uuid, pid)
	if err != nil {
		return Figure{}, err
	}
	if err := makeContext(); err != nil {
		return Figure{}, err
	}
	after, err := read(meter, uuid, pid)
	for range settleTries {
		if err != nil {
			return Figure{}, err
		}
		time.Sleep(settleEvery)
		last := after
		if after, err = read(meter, uuid, pid); after.used == last.used && after.own == last.own && after.used > before.used {
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

// Library is the libcuda to load: the one beside an NVML library that is named
// with its folder; else the loader's.
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
func quietest(meter Meter, cards []gpu.Card) (card gpu.Card, idle bool) {
	use := func(c gpu.Card) int {
		processes, err := meter.Processes(c.UUID)
		if err != nil {
			return int(^uint(0) >> 1)
		}
		return len(processes)
	}
	uses := map[gpu.UUID]int{}
	for _, c := range cards {
		uses[c.UUID] = use(c)
	}
	best := slices.MinFunc(cards, func(a, b gpu.Card) int { return cmp.Compare(uses[a.UUID], uses[b.UUID]) })
	return best, uses[best.UUID] == 0
}

// Environment is that of gresd for a child with one card, without what would change its
// context: preload libraries, CUDA's settings, a running MPS server, systemd's socket.
func Environment(env []string, uuid gpu.UUID) []string {
	clean := slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		for _, prefix := range []string{"LD_PRELOAD", "LD_AUDIT", "CUDA_", "VGPU_", "GPU_CORE_", "NOTIFY_SOCKET", "WATCHDOG_"} {
			if strings.HasPrefix(name, prefix) {
				return true
			}
		}
		return false
	})
	return append(clean, fmt.Sprintf("CUDA_VISIBLE_DEVICES=%s", uuid), "CUDA_CACHE_DISABLE=1",
		// A client of MPS shares its server's context, which costs less.
		"CUDA_MPS_PIPE_DIRECTORY=/nonexistent")
}
