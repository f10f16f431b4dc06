// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/series"
)

// scenario is a group of cases.
type scenario struct {
	name, about string
	run         func(ctx context.Context, b *bench, sys system, ses session)
	only        func(system) bool // nil: for every system
}

func onlyOurs(s system) bool { return s.ours }

func scenarios() []scenario {
	return []scenario{
		{"contended", "tenants that are always busy", contended, nil},
		{"soft", "idle time is lent, and given back", soft, nil},
		{"latency", "short requests beside a busy neighbour", latency, nil},
		{"alone", "one tenant under a hard limit", alone, nil},
		{"cost", "what a launch costs, and gresd's processor time", costs, func(s system) bool { return s.name != "native" }},
		{"torch", "PyTorch: trainings and a decode loop", torch, nil},
		{"ddp", "PyTorch: data-parallel trainings on two cards", ddp, nil},
		{"unlimited", "one tenant that may have the whole card", unlimited, func(s system) bool { return s.name != "native" }},
		{"churn", "tenants come, go and are killed for a long time", churn, onlyOurs},
		{"company", "a program does in company what it does alone under its limit", company, func(s system) bool { return s.name != "native" }},
	}
}

func pick(names []string) ([]scenario, error) {
	all := scenarios()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []scenario
	for _, name := range names {
		i := slices.IndexFunc(all, func(s scenario) bool { return s.name == name })
		if i < 0 {
			var known []string
			for _, s := range all {
				known = append(known, s.name)
			}
			return nil, fmt.Errorf("--scenario %q: want some of %s", name, strings.Join(known, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

// shares makes one tenant of a shape for each share.
func shares(shape string, shares ...int) []tenant {
	var list []tenant
	for _, s := range shares {
		list = append(list, tenant{shape: shape, share: s})
	}
	return list
}

func contended(ctx context.Context, b *bench, sys system, ses session) {
	for _, c := range []struct {
		name    string
		tenants []tenant
	}{
		{"30/70, 1 ms", shares("1ms", 30, 70)},
		{"30/70, 20 us", shares("20us", 30, 70)},
		{"30/70, 200 us", shares("200us", 30, 70)},
		{"30/70, 20 ms", shares("20ms", 30, 70)},
		{"50/50, 1 ms", shares("1ms", 50, 50)},
		{"10/30/60, 200 us", shares("200us", 10, 30, 60)},
		{"4 x 25, 1 ms", shares("1ms", 25, 25, 25, 25)},
		{"8 x 12, 1 ms", shares("1ms", 12, 12, 12, 12, 12, 12, 12, 12)}, // 96 of 100: hard jobs cannot have more
		{"4 x 12 + 4 x 13, 1 ms", shares("1ms", 12, 12, 12, 12, 13, 13, 13, 13)},
		{"50/50, 20 us beside 50 ms", []tenant{{shape: "20us", share: 50}, {shape: "50ms", share: 50}}},
		{"50/50, graph beside plain", []tenant{{shape: "graph", share: 50}, {shape: "1ms", share: 50}}},
		{"30/70, steps of 13 ms, each waited for", shares("steps", 30, 70)},
		{"30/70, eager steps of 12 ms", shares("eager", 30, 70)},
		{"30/70, steps beside 1 ms", []tenant{{shape: "steps", share: 30}, {shape: "1ms", share: 70}}},
		{"70/30, steps beside 1 ms", []tenant{{shape: "steps", share: 70}, {shape: "1ms", share: 30}}},
		{"30/70, eager steps beside 1 ms", []tenant{{shape: "eager", share: 30}, {shape: "1ms", share: 70}}},
		{"50/50, persistent beside 20 us", []tenant{{shape: "persistent", share: 50}, {shape: "20us", share: 50}}},
		{"30/70, 1 process beside 4", []tenant{{shape: "1ms", share: 30}, {shape: "1ms", share: 70, procs: 4}}},
		{"70/30, 1 process beside 4", []tenant{{shape: "1ms", share: 70}, {shape: "1ms", share: 30, procs: 4}}},
		{"30+50, rest idle, 1 ms", shares("1ms", 30, 50)},
		{"30+50, rest idle, 20 ms", shares("20ms", 30, 50)},
	} {
		if b.sim && slices.ContainsFunc(c.tenants, func(t tenant) bool { return t.shape == "persistent" }) {
			continue // nothing on a simulated card tells the kernel to stop
		}
		b.do(ctx, "contended", c.name, sys, b.takes(c.tenants, b.seconds), func() (report.Record, error) {
			r, _, _, err := b.measure(ctx, ses, c.tenants, b.seconds)
			return r, err
		})
	}
	light(ctx, b, sys, ses)
}

// light has neighbours that leave most of their share: a hard job may not have it. Kernels
// that fit a slice, and longer ones, which begin beside others and end alone.
func light(ctx context.Context, b *bench, sys system, ses session) {
	for _, c := range []struct {
		name string
		pair []tenant
	}{
		{"30 of 1 ms beside 70 that works 5 ms of 50", []tenant{{shape: "1ms", share: 30}, {shape: "1ms", share: 70, idle: "5:45"}}},
		{"30 of 20 ms beside 70 that works 5 ms of 50", []tenant{{shape: "20ms", share: 30}, {shape: "1ms", share: 70, idle: "5:45"}}},
		{"20 of 50 ms beside 60 that works 130 ms of 300", []tenant{{shape: "50ms", share: 20}, {shape: "1ms", share: 60, idle: "130:170"}}},
		{"70 of eager steps beside 30 that works 5 ms of 50", []tenant{{shape: "eager", share: 70}, {shape: "1ms", share: 30, idle: "5:45"}}},
		{"30 that works 200 ms of 310 beside 70 that works 5 ms of 50", []tenant{{shape: "1ms", share: 30, idle: "200:110"}, {shape: "1ms", share: 70, idle: "5:45"}}},
	} {
		length := 2 * b.seconds
		b.do(ctx, "contended", c.name, sys, b.takes(c.pair, length), func() (report.Record, error) {
			r, _, _, err := b.measure(ctx, ses, c.pair, length)
			for i := range r.Tenants { // not both are always busy: parts are no yardstick
				r.Tenants[i].Windows = nil
			}
			return r, err
		})
	}
}

// The neighbour that comes and goes: half of the time each.
const (
	wakeEvery  = 2 * time.Second
	wakeWindow = 10 * time.Millisecond
)

func soft(ctx context.Context, b *bench, sys system, ses session) {
	one := []tenant{{shape: "1ms", share: 30, mode: "soft"}}
	b.do(ctx, "soft", "30 soft alone", sys, b.takes(one, b.seconds), func() (report.Record, error) {
		r, _, _, err := b.measure(ctx, ses, one, b.seconds)
		return r, err
	})
	half := wakeEvery.Milliseconds() / 2
	for _, shape := range []string{"1ms", "20us"} {
		pair := []tenant{{shape: shape, share: 30, mode: "soft"}, {shape: shape, share: 70, idle: fmt.Sprintf("%d:%d", half, half)}}
		length := 6 * wakeEvery
		b.do(ctx, "soft", "30 soft, 70 comes and goes, "+shape, sys, b.takes(pair, length), func() (report.Record, error) {
			return b.lendAndReturn(ctx, ses, pair, length)
		})
	}
}

// lendAndReturn looks at how fast the second tenant has its share when it
// wakes, and how busy the card is all the time.
func (b *bench) lendAndReturn(ctx context.Context, ses session, pair []tenant, length time.Duration) (report.Record, error) {
	warm := b.warm
	b.warm = wakeEvery // the phase of the neighbour begins with the run
	defer func() { b.warm = warm }()
	r, at, done, err := b.measure(ctx, ses, pair, length)
	if err != nil {
		return r, err
	}
	lender := rates(done[1], at, wakeWindow, b.solos[pair[1].shape])
	borrower := rates(done[0], at, wakeWindow, b.solos[pair[0].shape])
	perWake := int(wakeEvery / wakeWindow)
	var returned, lent, got []float64
	never := 0.0
	for i := 0; i+perWake <= len(lender); i += perWake {
		busy := lender[i : i+perWake/2]
		// 90 % of the share, over 3 windows: a time slice is longer than one
		if n := series.Reached(busy, 0.9*float64(pair[1].share), 3); n >= 0 {
			returned = append(returned, float64(n)*float64(wakeWindow.Milliseconds()))
		} else {
			never++
		}
		got = append(got, busy[perWake/10:]...)
		lent = append(lent, borrower[i+perWake/2+perWake/10:i+perWake]...)
	}
	r.Numbers["return_ms_p50"], r.Numbers["return_ms_max"] = series.Quantile(returned, 0.5), series.Quantile(returned, 1)
	r.Numbers["never_returned"] = never
	r.Numbers["returned_percent"], r.Numbers["lent_percent"] = series.Mean(got), series.Mean(lent)
	r.Numbers["card_percent"] = r.Sum()
	for i := range r.Tenants { // they were not both busy: shares are no yardstick
		r.Tenants[i].Windows = nil
	}
	return r, nil
}

func latency(ctx context.Context, b *bench, sys system, ses session) {
	busy := func(shape string, n, share int) []tenant {
		return slices.Repeat([]tenant{{shape: shape, share: share}}, n)
	}
	for _, c := range []struct {
		name       string
		share      int
		priority   string
		neighbours []tenant
	}{
		{"burst alone", 30, "", nil},
		{"burst 30 beside 70, 1 ms", 30, "", busy("1ms", 1, 70)},
		{"burst 30 beside 70, 20 ms", 30, "", busy("20ms", 1, 70)},
		{"burst 12 beside 7 x 12 of 1 ms", 12, "", busy("1ms", 7, 12)},
		{"burst 20 beside 80 of 4 processes", 20, "", []tenant{{shape: "1ms", share: 80, procs: 4}}},
		{"high burst 30 beside 70, 1 ms", 30, "high", busy("1ms", 1, 70)},
		{"high burst 30 beside 70, 20 ms", 30, "high", busy("20ms", 1, 70)},
		{"high burst 12 beside 7 x 12 of 1 ms", 12, "high", busy("1ms", 7, 12)},
		{"high burst 20 beside 80 of 4 processes", 20, "high", []tenant{{shape: "1ms", share: 80, procs: 4}}},
	} {
		if c.priority != "" && !sys.ours {
			continue
		}
		length := 2 * b.seconds
		tenants := append([]tenant{{shape: "burst", share: c.share, priority: c.priority}}, c.neighbours...)
		b.do(ctx, "latency", c.name, sys, b.takes(tenants, length), func() (report.Record, error) {
			r, at, done, err := b.measure(ctx, ses, tenants, length)
			for _, o := range slices.Concat(done...) {
				r.LatencyMS = append(r.LatencyMS, between(o.Bursts, at)...)
			}
			return r, err
		})
	}
}

func alone(ctx context.Context, b *bench, sys system, ses session) {
	if sys.name == "native" {
		return // it has no limit
	}
	for _, shape := range []string{"20us", "200us", "1ms", "5ms", "20ms", "graph", "product"} {
		limits := []int{10, 25, 50, 75}
		if shape == "1ms" {
			limits = []int{10, 25, 30, 50, 75} // "regression quick" needs 30
		}
		for _, share := range limits {
			one := shares(shape, share)
			b.do(ctx, "alone", fmt.Sprintf("%d, %s", share, shape), sys, b.takes(one, b.seconds), func() (report.Record, error) {
				return b.settle(ctx, ses, one)
			})
		}
	}
	for _, c := range []struct {
		shape  string
		shares []int
		procs  int
	}{{"20us", []int{30, 75}, 4}, {"1ms", []int{30, 75}, 4}, {"20ms", []int{30, 75}, 2}, {"50ms", []int{10}, 2}} {
		for _, share := range c.shares {
			one := []tenant{{shape: c.shape, share: share, procs: c.procs}}
			length := b.seconds
			if c.shape == "50ms" {
				length *= 3 // a kernel is half a second of this share
			}
			b.do(ctx, "alone", fmt.Sprintf("%d, %s, %d processes", share, c.shape, c.procs), sys, b.takes(one, length), func() (report.Record, error) {
				r, _, _, err := b.measure(ctx, ses, one, length)
				return r, err
			})
		}
	}
}

// settle also says when the limit held: from then on, every 500 ms are within
// 15 % of it, or 2 points.
func (b *bench) settle(ctx context.Context, ses session, one []tenant) (report.Record, error) {
	r, at, done, err := b.measure(ctx, ses, one, b.seconds)
	if err != nil {
		return r, err
	}
	at.from -= int64(b.warm)
	want := float64(one[0].share)
	n := series.Settle(rates(done[0], at, window, b.solos[one[0].shape]), want, max(0.15*want, 2), 5)
	r.Numbers["settle_ms"] = float64(n) * float64(window.Milliseconds())
	if n < 0 {
		r.Numbers["settle_ms"] = -1
	}
	return r, nil
}

const torchWarm = 4 * time.Second

func torch(ctx context.Context, b *bench, sys system, ses session) {
	if b.sim || b.python == "" {
		return
	}
	length := 2 * b.seconds
	// gresd compares what steps were charged with the driver's figures of some seconds.
	warm := b.warm
	b.warm = max(b.warm, torchWarm)
	defer func() { b.warm = warm }()
	for _, c := range []struct {
		name    string
		tenants []tenant
	}{
		{"training 30/70", shares("torch:train", 30, 70)},
		{"training 30/70, CUDA graphs", shares("torch:train-graph", 30, 70)},
		{"training 30/70, half the batch", shares("torch:train-half", 30, 70)},
		{"training 30/70, late data", shares("torch:train-paused", 30, 70)},
		{"decode 30 beside training 70", []tenant{{shape: "torch:decode", share: 30}, {shape: "torch:train", share: 70}}},
		{"high decode 30 beside training 70", []tenant{{shape: "torch:decode", share: 30, priority: "high"}, {shape: "torch:train", share: 70}}},
		{"decode 30 alone", shares("torch:decode", 30)},
		{"training 30 alone", shares("torch:train", 30)},
		{"training 30 alone, CUDA graphs", shares("torch:train-graph", 30)},
	} {
		if c.tenants[0].priority != "" && !sys.ours {
			continue
		}
		alone := len(c.tenants) == 1
		takes := b.takes(c.tenants, length)
		if alone {
			takes += b.soloTakes(c.tenants[0].shape)
		}
		b.do(ctx, "torch", c.name, sys, takes, func() (report.Record, error) {
			r, _, _, err := b.measure(ctx, ses, c.tenants, length)
			if err == nil && alone {
				err = b.ofCard(ctx, &r)
			}
			return r, err
		})
	}
}

// ofCard says how much of the card's time the steps of one tenant alone took. A program
// whose host leaves the card idle between them uses less of it than of its own solo rate.
func (b *bench) ofCard(ctx context.Context, r *report.Record) error {
	t := r.Tenants[0]
	p, err := b.start(ctx, t.Shape, nil, b.python, b.program("torch_load.py"), strings.TrimPrefix(t.Shape, "torch:"), "--kernels")
	if err != nil {
		return err
	}
	var got struct {
		MS float64 `json:"kernels_ms"`
	}
	if err := p.result(readyTimeout, &got); err != nil {
		return fmt.Errorf("kernels of %s: %w", t.Shape, err)
	}
	r.Numbers["kernels_ms"] = got.MS
	r.Numbers["of_card_percent"] = t.OfSolo * b.solos[t.Shape] * got.MS / 1000
	return nil
}

// ddp has a process of each training on two cards, which wait for each other on the card.
func ddp(ctx context.Context, b *bench, sys system, ses session) {
	if b.sim || b.python == "" {
		return
	}
	for _, c := range []struct {
		name   string
		shares []int
	}{
		{"two trainings 30/70 on 2 cards", []int{30, 70}},
		{"two trainings 50/50 on 2 cards", []int{50, 50}},
		{"training 50 alone on 2 cards", []int{50}},
		{"training 30 alone on 2 cards", []int{30}},
	} {
		if len(c.shares) == 1 && !sys.ours {
			continue
		}
		tenants := shares("torch:train-ddp", c.shares...)
		length := 2 * b.seconds
		b.do(ctx, "ddp", c.name, sys, b.takes(tenants, length), func() (report.Record, error) {
			r, _, _, err := b.measure(ctx, ses, tenants, length)
			return r, err
		})
	}
	if !sys.ours {
		return
	}
	whole := []side{{"whole", tenant{share: 100}}}
	b.do(ctx, "ddp", "unlimited on 2 cards", sys, 2*inTurn*b.soloTakes("torch:train-ddp"), func() (report.Record, error) {
		return b.compare(ctx, ses, "torch:train-ddp", whole, inTurn)
	})
}
