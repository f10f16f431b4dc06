// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/series"
)

// launchCost is what vgpu-load --cost prints.
type launchCost struct {
	Launch    float64 `json:"launch_ns"`
	LaunchP99 float64 `json:"launch_p99_ns"`
	Single    float64 `json:"single_ns"`
	SingleP99 float64 `json:"single_p99_ns"`
}

// pairCost is what vgpu-load --cost-pairs prints: the median of what a launch costs more
// through the library than past it in the same process, and a 95 % interval of it.
type pairCost struct {
	Added     float64 `json:"added_ns"`
	Low       float64 `json:"low_ns"`
	High      float64 `json:"high_ns"`
	Preloaded bool    `json:"preloaded"`
}

// rounds of each cost; the machine drifts, so they are taken in turn with rounds
// without a library.
const rounds = 5

func costs(ctx context.Context, b *bench, sys system, ses session) {
	cases := []struct {
		name   string
		flag   string
		tenant tenant
	}{
		{"launch, 100 %", "--cost", tenant{share: 100}},
		{"launch, 50 % hard, in budget", "--cost-paced", tenant{share: 50}},
	}
	if sys.ours {
		cases = append(cases, cases[0])
		cases[2].name, cases[2].tenant = "launch, 50 % soft", tenant{share: 50, mode: "soft"}
	}
	for _, c := range cases {
		b.do(ctx, "cost", c.name, sys, (2*rounds+5)*1500*time.Millisecond, func() (report.Record, error) {
			return b.launchCosts(ctx, ses, c.tenant, c.flag)
		})
	}
	if o, ok := ses.(*ours); ok || (b.dry && sys.ours) {
		daemonCosts(ctx, b, sys, o)
	}
}

// launchCosts compares the medians over the rounds.
func (b *bench) launchCosts(ctx context.Context, ses session, t tenant, flag string) (report.Record, error) {
	var without, with []launchCost
	for range rounds {
		for _, side := range []struct {
			ses  session
			into *[]launchCost
		}{{native{}, &without}, {ses, &with}} {
			got, err := b.launchCost(ctx, side.ses, t, flag)
			if err != nil {
				return report.Record{}, err
			}
			*side.into = append(*side.into, got)
		}
	}
	r := report.Record{Numbers: map[string]float64{}}
	var pairs pairCost
	if err := b.costProcess(ctx, ses, t, "--cost-pairs"+strings.TrimPrefix(flag, "--cost"), &pairs); err != nil {
		return r, err
	}
	if pairs.Preloaded {
		r.Numbers["launch_pairs_added_ns"] = pairs.Added
		r.Numbers["launch_pairs_low_ns"], r.Numbers["launch_pairs_high_ns"] = pairs.Low, pairs.High
	}
	for name, of := range map[string]func(launchCost) float64{
		"launch":     func(c launchCost) float64 { return c.Launch },
		"launch_p99": func(c launchCost) float64 { return c.LaunchP99 },
		"single":     func(c launchCost) float64 { return c.Single },
		"single_p99": func(c launchCost) float64 { return c.SingleP99 },
	} {
		var a, z []float64
		for i := range without {
			a, z = append(a, of(without[i])), append(z, of(with[i]))
		}
		native := series.Quantile(a, 0.5)
		r.Numbers[name+"_native_ns"], r.Numbers[name+"_added_ns"] = native, series.Quantile(z, 0.5)-native
		if name == "launch" { // what the same thing differs from itself
			r.Numbers["launch_native_spread_ns"] = series.Quantile(a, 1) - series.Quantile(a, 0)
		}
	}
	return r, nil
}

func (b *bench) launchCost(ctx context.Context, ses session, t tenant, flag string) (got launchCost, err error) {
	err = b.costProcess(ctx, ses, t, flag, &got)
	return got, err
}

func (b *bench) costProcess(ctx context.Context, ses session, t tenant, flag string, into any) (err error) {
	env, leave, err := ses.join(ctx, b, t)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	p, err := b.start(ctx, "launch cost", env, b.program("vgpu-load"), flag)
	if err != nil {
		return err
	}
	defer p.kill()
	return p.result(60*time.Second, into)
}

// daemonCosts is gresd's part of one processor, and how often it wakes.
func daemonCosts(ctx context.Context, b *bench, sys system, o *ours) {
	load := func() (report.Record, error) { return b.daemonCost(ctx, o, b.seconds) }
	b.do(ctx, "cost", "gresd, no job", sys, b.seconds, load)
	b.do(ctx, "cost", "gresd, 8 jobs without a process", sys, b.seconds+time.Second, func() (r report.Record, err error) {
		for range 8 {
			_, leave, err := o.join(ctx, b, tenant{share: 12})
			if err != nil {
				return r, err
			}
			defer func() { _ = leave() }() // the session's end would tell
		}
		return load()
	})
	eight := shares("1ms", 12, 12, 12, 12, 12, 12, 12, 12)
	waits := slices.Clone(eight)
	waits[0].shape = "burst" // gresd follows closely what each has
	for _, c := range []struct {
		name    string
		tenants []tenant
	}{{"gresd, 8 busy tenants", eight}, {"gresd, 8 tenants, one of which waits for results", waits}} {
		b.do(ctx, "cost", c.name, sys, b.takes(c.tenants, b.seconds), func() (r report.Record, err error) {
			_, _, busy := b.together(ctx, o, c.tenants, b.warm, b.seconds, func(span) { r, err = b.daemonCost(ctx, o, b.seconds) })
			return r, errors.Join(err, busy)
		})
	}
}

func (b *bench) daemonCost(ctx context.Context, o *ours, length time.Duration) (report.Record, error) {
	before, err := o.node.use()
	if err != nil {
		return report.Record{}, err
	}
	began := time.Now()
	select {
	case <-ctx.Done():
		return report.Record{}, ctx.Err()
	case <-time.After(length):
	}
	after, err := o.node.use()
	seconds := time.Since(began).Seconds()
	return report.Record{Numbers: map[string]float64{
		"cpu_percent":   100 * (after.cpu - before.cpu).Seconds() / seconds,
		"wakeups_per_s": float64(after.wakeups-before.wakeups) / seconds,
	}}, err
}
