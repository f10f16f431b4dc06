// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

const (
	// firstCostTimeout is how long after the start of gresd a grant waits for the first measurement.
	firstCostTimeout = 5 * time.Second
	// firstCostRetry and lastRetry limit the time between two measurements of a missing cost.
	firstCostRetry, lastRetry = time.Minute, time.Hour
)

// Costs are the context costs of the node's card models. It is safe for concurrent use.
type Costs struct {
	log     *slog.Logger
	settled chan struct{} // closed after the first try
	until   time.Time     // no grant waits longer

	known store[Figure]
}

// OpenCosts reads the costs that an earlier gresd measured with the same driver version.
func OpenCosts(path, driver string, log *slog.Logger) *Costs {
	c := &Costs{log: log, settled: make(chan struct{}), until: time.Now().Add(firstCostTimeout)}
	c.known.open(path, driver, func(f Figure) bool { return f.check() == nil }, log)
	return c
}

// Of returns the cost of a card model, or zero if it is unknown.
func (c *Costs) Of(model string) Figure {
	f, _ := c.known.get(model)
	return f
}

// Await waits for the first try, but only in the first seconds of this gresd.
func (c *Costs) Await(ctx context.Context) {
	select {
	case <-c.settled:
	case <-ctx.Done():
	case <-time.After(time.Until(c.until)):
	}
}

// Learn measures the missing costs. It returns when none is missing, or when ctx is done. It measures
// a card in use only in the first try, and only if no cost of its model is known.
func (c *Costs) Learn(ctx context.Context, memory CardMemory, cards []gpu.Card, measure func(context.Context, gpu.UUID) (Figure, error)) {
	models := map[string][]gpu.Card{}
	for _, card := range cards {
		if card.Healthy && !card.MIG {
			models[card.Name] = append(models[card.Name], card)
		}
	}
	missing := func() []string {
		return slices.DeleteFunc(slices.Sorted(maps.Keys(models)), func(m string) bool { return c.Of(m).Idle })
	}
	for pause, first := firstCostRetry, true; ; pause, first = min(2*pause, lastRetry), false {
		for _, model := range missing() {
			card, idle := quietest(memory, models[model])
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
	if _, known := c.known.get(card.Name); known && !f.Idle {
		return // another process came meanwhile: the old cost is as good
	}
	if err := c.known.set(card.Name, &f); err != nil {
		c.log.Warn("context costs cannot be remembered", "error", err)
	}
}
