// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/series"
)

// tenant is one job: what it does and what it asks for.
type tenant struct {
	shape    string // of vgpu-load, rhythm:PARTS among them, torch:MODE of torch_load.py or array:NAME
	share    int
	mode     string // "": the default, hard
	priority string
	procs    int    // 0: one
	idle     string // ON:OFF in ms; "": always busy
}

func (t tenant) torch() bool { return strings.HasPrefix(t.shape, "torch:") }

// python says whether it is a Python program, which is slow to start.
func (t tenant) python() bool {
	return t.torch() || strings.HasPrefix(t.shape, "array:") || t.shape == arrays
}

// cards is how many it needs: data-parallel trainings have a process on each of two.
func (t tenant) cards() int {
	if strings.HasSuffix(t.shape, "-ddp") {
		return 2
	}
	return 1
}

func (t tenant) alwaysBusy() bool { return t.idle == "" && t.shape != "burst" }

func (t tenant) processes() int { return max(1, t.procs) }

// span is the time of a measurement, without the warm-up.
type span struct{ from, to int64 }

const (
	window = 100 * time.Millisecond
	// tail is how long tenants go on behind the measurement: the others are
	// still being measured.
	tail = 200 * time.Millisecond
)

// takes is about how long a measurement takes, context creation included.
func (b *bench) takes(tenants []tenant, seconds time.Duration) time.Duration {
	total := b.warm + seconds + time.Second
	for _, t := range tenants {
		total += 400 * time.Millisecond * time.Duration(t.processes())
		if t.torch() {
			total += 8 * time.Second
		}
		if _, known := b.solos[t.shape]; !known {
			total += 3 * b.soloTakes(t.shape) // twice now, once at the end
			if b.dry {
				b.solos[t.shape] = 0
			}
		}
	}
	return total
}

func (b *bench) startTenant(ctx context.Context, env []string, t tenant) (*proc, error) {
	if t.torch() {
		if t.cards() > 1 {
			env = append(slices.Clone(env), fmt.Sprintf("CUDA_VISIBLE_DEVICES=%d,%d", b.gpu, b.gpu+1))
		}
		return b.start(ctx, t.shape, env, b.python, b.program("torch_load.py"), strings.TrimPrefix(t.shape, "torch:"))
	}
	if name, ok := strings.CutPrefix(t.shape, "array:"); ok {
		return b.start(ctx, t.shape, env, b.python, b.program("array_load.py"), name)
	}
	shape, rhythm, _ := strings.Cut(t.shape, ":")
	argv := []string{b.program("vgpu-load"), "--shape", shape, "--inner", fmt.Sprint(b.inner), "--sms", fmt.Sprint(b.sms)}
	if rhythm != "" {
		argv = append(argv, "--rhythm", rhythm)
	}
	if t.idle != "" {
		argv = append(argv, "--idle", t.idle)
	}
	return b.start(ctx, fmt.Sprintf("%s of %d %%", t.shape, t.share), env, argv...)
}

// together runs tenants over the same time and returns what their processes
// did, tenant by tenant. during is called when the measurement begins and runs
// beside it; nil for nothing.
func (b *bench) together(ctx context.Context, ses session, tenants []tenant, warm, seconds time.Duration, during func(span)) (at span, done [][]outcome, err error) {
	procs := make([][]*proc, len(tenants))
	var leaves []func() error
	defer func() {
		for _, list := range procs {
			for _, p := range list {
				p.kill()
			}
		}
		for _, leave := range leaves {
			err = errors.Join(err, leave())
		}
	}()
	for i, t := range tenants {
		env, leave, err := ses.join(ctx, b, t)
		if err != nil {
			return at, nil, err
		}
		leaves = append(leaves, leave)
		for range t.processes() {
			p, err := b.startTenant(ctx, env, t)
			if err != nil {
				return at, nil, err
			}
			procs[i] = append(procs[i], p)
		}
	}
	for _, list := range procs {
		for _, p := range list {
			if err := p.ready(); err != nil {
				return at, nil, err
			}
		}
	}
	start := monotonic() + int64(100*time.Millisecond)
	at.from = start + int64(warm)
	at.to = at.from + int64(seconds)
	for _, list := range procs {
		for _, p := range list {
			if err := p.begin(start, at.to+int64(tail)); err != nil {
				p.kill()
				return at, nil, p.failed(err)
			}
		}
	}
	if during != nil {
		time.Sleep(time.Duration(at.from - monotonic()))
		during(at)
	}
	done = make([][]outcome, len(tenants))
	for i, list := range procs {
		for _, p := range list {
			o, err := p.finish(time.Duration(at.to-monotonic()) + 30*time.Second)
			if err != nil {
				return at, nil, err
			}
			done[i] = append(done[i], o)
		}
	}
	return at, done, nil
}

func (b *bench) soloSeconds(shape string) time.Duration {
	if (tenant{shape: shape}).torch() {
		return 4 * time.Second
	}
	return 2 * time.Second
}

// measureSolo returns the rate of a load that has the card alone and no library, and its lateness.
func (b *bench) measureSolo(ctx context.Context, shape string) (rate, lateness float64, err error) {
	at, done, err := b.together(ctx, native{}, []tenant{{shape: shape, share: 100}}, 500*time.Millisecond, b.soloSeconds(shape), nil)
	if err != nil {
		return 0, 0, fmt.Errorf("%s alone: %w", shape, err)
	}
	rate = done[0][0].Series.Rate(at.from, at.to)
	if rate <= 0 {
		return 0, 0, fmt.Errorf("%s alone: no work was done", shape)
	}
	return rate, late(done[0], at), nil
}

// solo is the same, the better of two runs, measured once: whatever else happens
// on the machine can only make it less.
func (b *bench) solo(ctx context.Context, shape string) (float64, error) {
	if rate := b.solos[shape]; rate > 0 {
		return rate, nil
	}
	first, lateness, err := b.measureSolo(ctx, shape)
	if err != nil {
		return 0, err
	}
	second, secondLateness, err := b.measureSolo(ctx, shape)
	if err != nil {
		return 0, err
	}
	best := max(first, second)
	if second > first {
		lateness = secondLateness
	}
	b.solos[shape], b.soloLates[shape] = best, lateness
	b.add(report.Record{Scenario: "solo", Case: shape, System: "native", Numbers: map[string]float64{
		"units_per_s": best, "spread_percent": 100 * (best - min(first, second)) / best,
	}})
	return best, nil
}

// soloTakes is about how long one solo run takes.
func (b *bench) soloTakes(shape string) time.Duration {
	takes := b.soloSeconds(shape) + 1500*time.Millisecond
	if (tenant{shape: shape}).torch() {
		takes += 8 * time.Second
	}
	return takes
}

// reserve is what the end of the run needs.
func (b *bench) reserve() time.Duration {
	var sum time.Duration
	for shape := range b.solos {
		sum += b.soloTakes(shape)
	}
	return sum
}

// drift measures the solo rates again: what a difference between two figures
// must be larger than.
func (b *bench) drift(ctx context.Context) {
	b.drifting = true
	for _, shape := range slices.Sorted(maps.Keys(b.solos)) {
		b.do(ctx, "drift", shape, system{name: "native"}, b.soloTakes(shape), func() (report.Record, error) {
			rate, _, err := b.measureSolo(ctx, shape)
			if err != nil {
				return report.Record{}, err
			}
			return report.Record{Numbers: map[string]float64{"change_percent": 100 * (rate/b.solos[shape] - 1)}}, nil
		})
	}
}

// rates are a tenant's rates in windows, in percent of solo.
func rates(done []outcome, at span, width time.Duration, solo float64) []float64 {
	var all [][]float64
	for _, o := range done {
		all = append(all, o.Series.Windows(at.from, at.to, width))
	}
	sum := series.Sum(all...)
	for i := range sum {
		sum[i] *= 100 / solo
	}
	return sum
}

// measure runs tenants together and says what each one got.
func (b *bench) measure(ctx context.Context, ses session, tenants []tenant, seconds time.Duration) (report.Record, span, [][]outcome, error) {
	r := report.Record{Seconds: seconds.Seconds(), Numbers: map[string]float64{}}
	for _, t := range tenants {
		if _, err := b.solo(ctx, t.shape); err != nil {
			return r, span{}, nil, err
		}
	}
	at, done, err := b.together(ctx, ses, tenants, b.warm, seconds, nil)
	if err != nil {
		return r, at, nil, err
	}
	equal := true
	r.Judged = true
	var seconds1 [][]float64
	for i, t := range tenants {
		solo := b.solos[t.shape]
		w := rates(done[i], at, window, solo)
		r.Tenants = append(r.Tenants, report.Tenant{
			Shape: t.shape, Share: t.share, OfSolo: series.Mean(w), Sigma: series.Sigma(w), Windows: w,
			StepsMS: stepsOf(done[i], at), Late: late(done[i], at), SoloLate: b.soloLates[t.shape],
		})
		equal = equal && t.share == tenants[0].share
		r.Judged = r.Judged && t.alwaysBusy() && t.mode != "soft"
		seconds1 = append(seconds1, rates(done[i], at, time.Second, solo))
		single(r.Numbers, i, t, done[i], at)
	}
	r.Parts()
	if equal && r.Judged && len(tenants) > 1 && len(seconds1[0]) > 0 {
		r.Numbers["jain_1s_min"] = leastJain(seconds1)
	}
	return r, at, done, nil
}

// late is the largest lateness (package processor) of a tenant's processes.
func late(done []outcome, at span) (part float64) {
	for _, o := range done {
		part = max(part, min(1, o.LateS*1e9/float64(at.to-at.from)))
	}
	return part
}

// leastJain is the worst second of a run of equal shares.
func leastJain(windows [][]float64) float64 {
	least := 1.0
	for i := range windows[0] {
		var v []float64
		for _, w := range windows {
			v = append(v, w[i])
		}
		least = min(least, series.Jain(v))
	}
	return least
}

// stepsOf are the steps of all processes of a tenant.
func stepsOf(done []outcome, at span) (took []float64) {
	for _, o := range done {
		took = append(took, between(o.Steps, at)...)
	}
	return took
}

// single adds figures of single steps of a training or requests, and of the
// longest time in which any tenant that is always busy did nothing.
func single(numbers map[string]float64, i int, t tenant, done []outcome, at span) {
	took := stepsOf(done, at)
	for _, o := range done {
		took = append(took, between(o.Bursts, at)...)
		if t.alwaysBusy() {
			stall := float64(o.Series.Stall(at.from, at.to)) / 1e6
			numbers["stall_max_ms"] = max(numbers["stall_max_ms"], stall)
		}
	}
	for name, q := range map[string]float64{"p50": 0.5, "p99": 0.99, "max": 1} {
		if len(took) > 0 {
			numbers[fmt.Sprintf("%s_%d_ms", name, i)] = series.Quantile(took, q)
		}
	}
}

// between returns how long those took that began in the span, in ms.
func between(steps [][2]float64, at span) []float64 {
	var took []float64
	for _, s := range steps {
		if int64(s[0]) >= at.from && int64(s[0]) < at.to {
			took = append(took, s[1])
		}
	}
	return took
}
