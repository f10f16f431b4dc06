// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/series"
)

// A load of a real card, and the rhythm that stands in for it where there is no PyTorch.
// Loads of vgpu-load have no twin.
type companyLoad struct{ shape, twin string }

const (
	trainTwin  = "rhythm:kernels=330,kernel=41,launch=42,gap=1850,"
	inferTwin  = "rhythm:kernels=90,kernel=4,launch=13,gap=90,wait=1"
	decodeTwin = "rhythm:kernels=60,kernel=5,launch=12,gap=200,wait=1"
	batchTwin  = "rhythm:kernels=100,kernel=80,launch=12,gap=500,wait=1"
)

var companyLoads = map[string]companyLoad{
	"T0":  {"torch:train:wait=0", trainTwin + "wait=0"},
	"T1":  {"torch:train:wait=1", trainTwin + "wait=1"},
	"T4":  {"torch:train:wait=4", trainTwin + "wait=4"},
	"T16": {"torch:train:wait=16", trainTwin + "wait=16"},
	"TG":  {"torch:train-graph:wait=1", trainTwin + "wait=1,graph"},
	"TG4": {"torch:train-graph:wait=4", trainTwin + "wait=4,graph"},
	"TL":  {"torch:train:late=80/60", trainTwin + "wait=1,late=80/60"},
	"I":   {"torch:infer", inferTwin},
	"IB":  {"torch:infer:batch=8,ahead=2", batchTwin + ",ahead=2"},
	"D":   {"torch:decode", decodeTwin},
	// JAX or CuPy, whichever this Python has.
	arrays:        {arrays, batchTwin},
	"20us":        {"20us", ""},
	"1ms":         {"1ms", ""},
	"20ms":        {"20ms", ""},
	"burst":       {"burst", ""},
	"two streams": {"rhythm:kernels=100,kernel=80,launch=12,gap=500,wait=1,streams=2,copy=1048576", ""},
}

const arrays = "arrays"

// The least that is accepted of what a tenant is entitled to.
const (
	full      = 0.95 // queues that are full, among themselves
	step      = 0.85 // steps of 5 ms and more
	short     = 0.70 // it waits for the card every millisecond or two
	neighbour = 0.80 // of one that does
)

// member is a tenant of a company.
type member struct {
	load  string // of companyLoads
	share int
	mark  float64
	mode  string // "": hard
}

type companyCase struct {
	name    string
	members []member
}

// companyCases begin with the most important.
var companyCases = []companyCase{
	{"T4/T4 30/70", []member{{"T4", 30, step, ""}, {"T4", 70, step, ""}}},
	{"I/T4 30/70", []member{{"I", 30, short, ""}, {"T4", 70, neighbour, ""}}},
	{"I/T4 50/50", []member{{"I", 50, short, ""}, {"T4", 50, neighbour, ""}}},
	{"T1/T1 30/70", []member{{"T1", 30, step, ""}, {"T1", 70, step, ""}}},
	{"I/T4 70/30", []member{{"I", 70, short, ""}, {"T4", 30, neighbour, ""}}},
	{"T16/T16 30/70", []member{{"T16", 30, step, ""}, {"T16", 70, step, ""}}},
	{"T0/T0 30/70", []member{{"T0", 30, full, ""}, {"T0", 70, full, ""}}},
	{"TG/TG 30/70", []member{{"TG", 30, step, ""}, {"TG", 70, step, ""}}},
	{"TG4/TG4 30/70", []member{{"TG4", 30, step, ""}, {"TG4", 70, step, ""}}},
	{"D/T4 30/70", []member{{"D", 30, short, ""}, {"T4", 70, neighbour, ""}}},
	{"IB/T4 30/70", []member{{"IB", 30, short, ""}, {"T4", 70, neighbour, ""}}},
	{"TL/T4 30/70", []member{{"TL", 30, step, ""}, {"T4", 70, step, ""}}},
	{"burst/1ms 30/70", []member{{"burst", 30, short, ""}, {"1ms", 70, neighbour, ""}}},
	{"1ms/1ms 30/70", []member{{"1ms", 30, full, ""}, {"1ms", 70, full, ""}}},
	{"20us/20us 30/70", []member{{"20us", 30, full, ""}, {"20us", 70, full, ""}}},
	{"I/1ms 30/70", []member{{"I", 30, short, ""}, {"1ms", 70, neighbour, ""}}},
	{"I/20ms 30/70", []member{{"I", 30, short, ""}, {"20ms", 70, neighbour, ""}}},
	{"two streams/T4 50/50", []member{{"two streams", 50, step, ""}, {"T4", 50, step, ""}}},
	{"arrays/T4 30/70", []member{{arrays, 30, short, ""}, {"T4", 70, neighbour, ""}}},
	{"I/T4/T4 10/30/60", []member{{"I", 10, short, ""}, {"T4", 30, neighbour, ""}, {"T4", 60, neighbour, ""}}},
	{"I/T4/TG/1ms 4 x 25", []member{{"I", 25, short, ""}, {"T4", 25, neighbour, ""}, {"TG", 25, neighbour, ""}, {"1ms", 25, neighbour, ""}}},
	{"T1/T4/T16/1ms 4 x 25", []member{{"T1", 25, step, ""}, {"T4", 25, step, ""}, {"T16", 25, step, ""}, {"1ms", 25, step, ""}}},
	{"I/T4 30/70 soft", []member{{"I", 30, short, "soft"}, {"T4", 70, neighbour, "soft"}}},
	{"T4/T4 30/70 soft", []member{{"T4", 30, step, "soft"}, {"T4", 70, step, "soft"}}},
}

// known is what company has measured in this run: rates, in steps or units a second.
type known struct {
	solo      map[string]float64   // by shape: alone, without a library
	natively  map[string][]float64 // by shapes: all together, without a library
	entitled  map[string]measured  // by system, shape and share: alone under its own hard limit
	yardstick string               // the system of ours that the others are compared with
	arrays    string               // the shape of JAX or CuPy; "": not asked yet
}

func newKnown() known {
	return known{solo: map[string]float64{}, natively: map[string][]float64{}, entitled: map[string]measured{}}
}

// measured is a rate that was measured before and after the company: hosts change their speed.
type measured []float64

func (m measured) mean() (mean float64) {
	for _, rate := range m {
		mean += rate / float64(len(m))
	}
	return mean
}

// varies is by what part of its mean it was less or more at most.
func (m measured) varies() float64 {
	if len(m) == 0 || m.mean() <= 0 {
		return 0
	}
	return max(slices.Max(m)/m.mean()-1, 1-slices.Min(m)/m.mean())
}

func entitledKey(sys string, t tenant) string { return fmt.Sprintf("%s %s %d", sys, t.shape, t.share) }

func nativelyKey(tenants []tenant) string {
	var shapes []string
	for _, t := range tenants {
		shapes = append(shapes, t.shape)
	}
	return strings.Join(shapes, " ")
}

// company asks whether a program does in company what it does alone under the same limit.
func company(ctx context.Context, b *bench, sys system, ses session) {
	for _, c := range companyCases {
		if !b.match.MatchString(c.name) {
			continue
		}
		tenants, why := b.tenantsOf(ctx, c)
		if why != "" {
			b.add(report.Record{Scenario: "company", Case: c.name, System: sys.name, Skipped: true, Notes: []string{why}})
			continue
		}
		plan := b.planCompany(sys, tenants)
		if b.dry {
			b.remember(sys, tenants, plan)
		}
		b.do(ctx, "company", c.name, sys, b.companyTakes(tenants, plan), func() (report.Record, error) {
			return b.keep(ctx, sys, ses, c, tenants, plan)
		})
	}
}

// tenantsOf are the tenants of a case on this card; why says what is missing for them.
func (b *bench) tenantsOf(ctx context.Context, c companyCase) (tenants []tenant, why string) {
	for _, m := range c.members {
		l := companyLoads[m.load]
		shape := l.shape
		switch {
		case l.twin != "" && (b.sim || b.python == ""):
			shape = l.twin
		case shape == arrays && !b.dry:
			if shape = b.arrays(ctx); shape == arrays {
				return nil, "left out: this Python has neither JAX nor CuPy for the card"
			}
		}
		tenants = append(tenants, tenant{shape: shape, share: m.share, mode: m.mode})
	}
	return tenants, ""
}

// arrays is the shape of JAX or CuPy, arrays where there is neither.
func (b *bench) arrays(ctx context.Context) string {
	if b.known.arrays != "" {
		return b.known.arrays
	}
	b.known.arrays = arrays
	for _, try := range [][2]string{
		{"jax", "import jax; assert jax.default_backend() == 'gpu'; print('ready')"},
		{"cupy", "import cupy; cupy.zeros(1); print('ready')"},
	} {
		p, err := b.start(ctx, try[0], []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false"}, b.python, "-c", try[1])
		if err != nil {
			continue
		}
		err = p.ready()
		p.kill()
		if err == nil {
			b.known.arrays = "array:" + try[0]
			break
		}
	}
	return b.known.arrays
}

// companyPlan is what a case has to measure besides the company itself.
type companyPlan struct {
	natively bool
	solo     []int // tenants that run alone without a library,
	entitled []int // and under their own limit
}

// planCompany leaves out what is known.
func (b *bench) planCompany(sys system, tenants []tenant) (p companyPlan) {
	if !sys.ours {
		return p
	}
	withNative := len(b.systems) == 0 || slices.Contains(b.systems, "native")
	_, done := b.known.natively[nativelyKey(tenants)]
	p.natively = withNative && !done
	seen := map[string]bool{}
	for i, t := range tenants {
		if _, have := b.known.solo[t.shape]; p.natively && !have && !seen[t.shape] {
			p.solo = append(p.solo, i)
			seen[t.shape] = true
		}
		key := entitledKey(sys.name, t)
		if _, have := b.known.entitled[key]; !have && !seen[key] {
			p.entitled = append(p.entitled, i)
			seen[key] = true
		}
	}
	return p
}

// Lengths of a company and of a run alone, 6 s and 2 s by default, and what is between two runs.
func (b *bench) companySeconds() time.Duration { return b.seconds * 3 / 2 }
func (b *bench) aloneSeconds() time.Duration   { return b.seconds / 2 }

const betweenRuns = 300 * time.Millisecond

// companyTakes is about how long a case takes.
func (b *bench) companyTakes(tenants []tenant, p companyPlan) time.Duration {
	start := time.Second
	if slices.ContainsFunc(tenants, tenant.python) {
		start = 9 * time.Second
	}
	rest := betweenRuns + tail + 100*time.Millisecond
	sets, runs := 1, 2*(len(p.solo)+len(p.entitled))
	if p.natively {
		sets++
	}
	if p.separately(tenants) {
		sets++
	}
	takes := time.Duration(sets)*start + time.Duration(runs)*(b.aloneSeconds()+rest) + b.companySeconds() + rest
	if p.natively {
		takes += b.companySeconds() + rest
	}
	return takes
}

// remember takes a plan for done, where everything is only planned.
func (b *bench) remember(sys system, tenants []tenant, p companyPlan) {
	if p.natively {
		b.known.natively[nativelyKey(tenants)] = nil
	}
	for _, i := range p.solo {
		b.known.solo[tenants[i].shape] = 0
	}
	for _, i := range p.entitled {
		b.known.entitled[entitledKey(sys.name, tenants[i])] = nil
	}
}

// separately says whether what tenants are entitled to is measured in other jobs: a soft one
// has more than its share when it is alone.
func (p companyPlan) separately(tenants []tenant) bool {
	return slices.ContainsFunc(p.entitled, func(i int) bool { return tenants[i].mode == "soft" })
}

// keep measures one case.
func (b *bench) keep(ctx context.Context, sys system, ses session, c companyCase, tenants []tenant, plan companyPlan) (report.Record, error) {
	var nativeRun *gathering
	if plan.natively {
		got, err := b.gather(ctx, native{}, tenants, plan.solo, true)
		if err != nil {
			return report.Record{}, fmt.Errorf("natively: %w", err)
		}
		nativeRun = got
		b.known.natively[nativelyKey(tenants)] = got.rates()
		for i, rate := range got.alone {
			b.known.solo[tenants[i].shape] = rate.mean()
		}
	}
	alone := plan.entitled
	var separate *gathering
	if plan.separately(tenants) {
		hard := slices.Clone(tenants)
		for i := range hard {
			hard[i].mode = ""
		}
		var err error
		if separate, err = b.gather(ctx, ses, hard, alone, false); err != nil {
			return report.Record{}, err
		}
		alone = nil
	}
	got, err := b.gather(ctx, ses, tenants, alone, true)
	if err != nil {
		return report.Record{}, err
	}
	if separate != nil {
		got.alone = separate.alone
	}
	for i, rate := range got.alone {
		b.known.entitled[entitledKey(sys.name, tenants[i])] = rate
	}
	if sys.ours && b.known.yardstick == "" {
		b.known.yardstick = sys.name
	}
	if nativeRun != nil {
		r := b.kept(system{name: "native"}, c, tenants, nativeRun, sys.name)
		r.Scenario, r.Case, r.System = "company", c.name, "native"
		b.add(r)
	}
	yardstick := b.known.yardstick
	if sys.ours {
		yardstick = sys.name
	}
	return b.kept(sys, c, tenants, got, yardstick), nil
}

// kept says what each tenant has of what it is entitled to under a system, the yardstick.
func (b *bench) kept(sys system, c companyCase, tenants []tenant, g *gathering, yardstick string) report.Record {
	r := report.Record{Seconds: float64(g.at.to-g.at.from) / 1e9, Numbers: map[string]float64{}}
	natively := b.known.natively[nativelyKey(tenants)]
	for i, t := range tenants {
		entitled := b.known.entitled[entitledKey(yardstick, t)]
		k := report.Kept{
			Load: c.members[i].load, Mode: "hard", Solo: b.known.solo[t.shape],
			Entitled: entitled.mean(), Varies: entitled.varies(),
			Seconds: g.done[i].Series.Windows(g.at.from, g.at.to, time.Second),
			Windows: g.done[i].Series.Windows(g.at.from, g.at.to, window),
			Rate:    g.done[i].Series.Rate(g.at.from, g.at.to),
		}
		if t.mode != "" {
			k.Mode = t.mode
		}
		if sys.ours {
			k.Mark = c.members[i].mark
			if len(natively) > i && k.Entitled > 0 {
				k.Native = natively[i] / k.Entitled
			}
		}
		k.Judge()
		done := []outcome{g.done[i]}
		r.Tenants = append(r.Tenants, report.Tenant{Shape: t.shape, Share: t.share, Kept: &k, StepsMS: stepsOf(done, g.at)})
		if k.Solo > 0 {
			r.Tenants[i].OfSolo = 100 * k.Rate / k.Solo
		}
		single(r.Numbers, i, t, done, g.at)
	}
	r.Parts()
	return r
}

// gathering is what tenants did, each alone and all together, in the same processes.
type gathering struct {
	alone map[int]measured // rates of those that were asked for
	at    span             // of the company
	done  []outcome
}

func (g *gathering) rates() (list []float64) {
	for _, o := range g.done {
		list = append(list, o.Series.Rate(g.at.from, g.at.to))
	}
	return list
}

// gather starts tenants once, one process each, and lets some of them run alone, one by one,
// then all together if they shall, and those alone again.
func (b *bench) gather(ctx context.Context, ses session, tenants []tenant, alone []int, together bool) (g *gathering, err error) {
	var procs []*proc
	var leaves []func() error
	defer func() {
		for _, p := range procs {
			p.leave()
		}
		for _, leave := range leaves {
			err = errors.Join(err, leave())
		}
	}()
	for _, t := range tenants {
		env, leave, err := ses.join(ctx, b, t)
		if err != nil {
			return nil, err
		}
		leaves = append(leaves, leave)
		p, err := b.startTenant(ctx, env, t)
		if err != nil {
			return nil, err
		}
		procs = append(procs, p)
	}
	for _, p := range procs {
		if err := p.ready(); err != nil {
			return nil, err
		}
	}
	g = &gathering{alone: map[int]measured{}}
	if err := g.runAlone(procs, alone, b.aloneSeconds()); err != nil {
		return nil, err
	}
	if together {
		if g.at, g.done, err = play(procs, b.companySeconds()); err != nil {
			return nil, err
		}
	}
	return g, g.runAlone(procs, alone, b.aloneSeconds())
}

// runAlone lets some of the processes run, one after the other.
func (g *gathering) runAlone(procs []*proc, which []int, length time.Duration) error {
	for _, i := range which {
		at, done, err := play(procs[i:i+1], length)
		if err != nil {
			return err
		}
		rate := done[0].Series.Rate(at.from, at.to)
		if rate <= 0 {
			return fmt.Errorf("%s alone: no work was done", procs[i].name)
		}
		g.alone[i] = append(g.alone[i], rate)
	}
	return nil
}

// play lets processes that are ready run over the same time. There is no warm-up: the first
// second counts.
func play(procs []*proc, length time.Duration) (at span, done []outcome, err error) {
	time.Sleep(betweenRuns) // nothing of the run before is on the card
	at.from = monotonic() + int64(100*time.Millisecond)
	at.to = at.from + int64(length)
	for _, p := range procs {
		if err := p.begin(at.from, at.to+int64(tail)); err != nil {
			p.kill()
			return at, nil, p.failed(err)
		}
	}
	for _, p := range procs {
		o, err := p.round(time.Duration(at.to-monotonic()) + 30*time.Second)
		if err != nil {
			return at, nil, err
		}
		if len(o.Series) == 0 {
			o.Series = series.Series{{T: at.from}} // not one step was done
		}
		done = append(done, o)
	}
	return at, done, nil
}
