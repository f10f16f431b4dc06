// SPDX-License-Identifier: Apache-2.0

package ctxcost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

const (
	// patience is how long after the start a grant waits for a first figure.
	patience = 5 * time.Second
	// firstRetry grows to lastRetry between tries for a figure that is missing.
	firstRetry, lastRetry = time.Minute, time.Hour
)

// Costs are the figures of the node's card models. It is safe for concurrent
// use. The zero value knows nothing and waits for nothing.
type Costs struct {
	path, driver string
	log          *slog.Logger
	settled      chan struct{} // closed after the first try, nil: nothing is tried
	until        time.Time     // no grant waits longer

	mu      sync.Mutex
	figures map[string]Figure // by key
	fixed   *Figure           // nothing is measured
}

// Fixed returns costs that are not measured, for tests of other packages.
func Fixed(f Figure) *Costs { return &Costs{fixed: &f} }

// Open reads the figures that an earlier gresd learned, from a file that need
// not exist. They hold for one driver version.
func Open(path, driver string, log *slog.Logger) *Costs {
	c := &Costs{path: path, driver: driver, log: log, settled: make(chan struct{}), until: time.Now().Add(patience)}
	text, err := os.ReadFile(path)
	if err == nil {
		c.figures, err = readFigures(text)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("context costs are measured anew", "path", path, "error", err)
	}
	if err != nil || c.figures == nil {
		c.figures = map[string]Figure{}
	}
	return c
}

func readFigures(text []byte) (map[string]Figure, error) {
	var figures map[string]Figure
	if err := json.Unmarshal(text, &figures); err != nil {
		return nil, err
	}
	for key, f := range figures {
		if err := f.check(); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return figures, nil
}

func (c *Costs) key(model string) string { return c.driver + "/" + model }

// Of returns the figure of a card model; zero where none is known.
func (c *Costs) Of(model string) Figure {
	if c.fixed != nil {
		return *c.fixed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.figures[c.key(model)]
}

// Await waits for the first try, but only in the first seconds of this gresd.
func (c *Costs) Await(ctx context.Context) {
	if c.settled == nil {
		return
	}
	timer := time.NewTimer(time.Until(c.until))
	defer timer.Stop()
	select {
	case <-c.settled:
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Learn measures what is missing and returns when nothing is, or ctx is done.
// A card that somebody uses is measured only on the first try, and only when
// nothing at all is known of its model.
func (c *Costs) Learn(ctx context.Context, meter Meter, cards []gpu.Card, measure func(context.Context, gpu.UUID) (Figure, error)) {
	if c.settled == nil {
		return
	}
	models := map[string][]gpu.Card{}
	for _, card := range cards {
		if card.Healthy && !card.MIG {
			models[card.Name] = append(models[card.Name], card)
		}
	}
	missing := func() []string {
		return slices.DeleteFunc(slices.Sorted(maps.Keys(models)), func(m string) bool { return c.Of(m).Idle })
	}
	for pause, first := firstRetry, true; ; pause, first = min(2*pause, lastRetry), false {
		for _, model := range missing() {
			card, idle := quietest(meter, models[model])
			if idle || first && c.Of(model) == (Figure{}) {
				c.learn(ctx, card, first, measure)
			}
		}
		if first {
			close(c.settled)
		}
		if len(missing()) == 0 || !wakeup.Wait(ctx, pause) {
			return
		}
	}
}

func (c *Costs) learn(ctx context.Context, card gpu.Card, first bool, measure func(context.Context, gpu.UUID) (Figure, error)) {
	f, err := measure(ctx, card.UUID)
	if err != nil {
		level := slog.LevelDebug
		if first && ctx.Err() == nil {
			level = slog.LevelWarn
		}
		c.log.Log(ctx, level, "what a context costs is not known: it is charged only after it was made", "gpu", card.Name, "error", err)
		return
	}
	c.log.Info("context cost", "gpu", card.Name, "gpu_uuid", card.UUID, "context", f.Context, "uncounted", f.Uncounted, "idle", f.Idle)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.figures[c.key(card.Name)]; known && !f.Idle {
		return // somebody came meanwhile: it is no better than the old one
	}
	c.figures[c.key(card.Name)] = f
	if err := c.save(); err != nil {
		c.log.Warn("context costs cannot be remembered", "error", err)
	}
}

// save replaces the file. It may be lost with a power cut: then the next gresd
// measures again. c.mu is held.
func (c *Costs) save() error {
	text, err := json.MarshalIndent(c.figures, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Replace(c.path, append(text, '\n'), 0o600)
}
