// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/series"
)

// side is one way to run a load that has the card alone.
type side struct {
	name   string
	tenant tenant
}

// inTurn is how often each side is measured. The card and the host drift, so the sides
// take turns, native sharing among them.
const inTurn = 3

// unlimited compares a job that may have all of an idle card with the same job without a
// library.
func unlimited(ctx context.Context, b *bench, sys system, ses session) {
	sides := []side{{"whole", tenant{share: 100}}}
	if sys.ours {
		sides = append(sides, side{"soft", tenant{share: 30, mode: "soft"}})
	}
	shapes := []string{"20us", "200us", "1ms", "5ms", "20ms", "graph", "product", "burst"}
	if b.python != "" && !b.sim {
		shapes = append(shapes, "torch:train-graph", "torch:train", "torch:decode")
	}
	for _, shape := range shapes {
		takes := time.Duration(inTurn*(1+len(sides))) * b.soloTakes(shape)
		b.do(ctx, "unlimited", shape, sys, takes, func() (report.Record, error) {
			return b.compare(ctx, ses, shape, sides, inTurn)
		})
	}
}

// compare measures a load natively and at each side in turn, so many times. Numbers: the
// medians of the sides in percent of the median of native, and how far the native runs are
// apart.
func (b *bench) compare(ctx context.Context, ses session, shape string, sides []side, times int) (report.Record, error) {
	all := append([]side{{"native", tenant{share: 100}}}, sides...)
	rates, latest := make([][]float64, len(all)), make([]float64, len(all))
	for range times {
		for i, s := range all {
			with := ses
			if i == 0 {
				with = native{}
			}
			s.tenant.shape = shape
			at, done, err := b.together(ctx, with, []tenant{s.tenant}, 500*time.Millisecond, b.soloSeconds(shape), nil)
			if err != nil {
				return report.Record{}, fmt.Errorf("%s, %s: %w", shape, s.name, err)
			}
			rates[i] = append(rates[i], done[0][0].Series.Rate(at.from, at.to))
			latest[i] = max(latest[i], late(done[0], at))
		}
	}
	base := series.Quantile(rates[0], 0.5)
	if base <= 0 {
		return report.Record{}, fmt.Errorf("%s alone: no work was done", shape)
	}
	r := report.Record{Seconds: b.soloSeconds(shape).Seconds(), Numbers: map[string]float64{
		"native_spread_percent": 100 * (series.Quantile(rates[0], 1) - series.Quantile(rates[0], 0)) / base,
	}}
	for i, s := range all {
		if i > 0 {
			r.Numbers[s.name+"_percent"] = 100 * series.Quantile(rates[i], 0.5) / base
		}
		if latest[i] > 0 {
			r.Numbers[s.name+"_late"] = latest[i]
		}
	}
	return r, nil
}
