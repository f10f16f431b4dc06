// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
)

func TestCasesOfCompanyAreSound(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range companyCases {
		if seen[c.name] {
			t.Errorf("%s is there twice", c.name)
		}
		seen[c.name] = true
		sum := 0
		for _, m := range c.members {
			sum += m.share
			if l, ok := companyLoads[m.load]; !ok || l.shape == "" {
				t.Errorf("%s: no load %q", c.name, m.load)
			}
			if m.mark < 0.5 || m.mark > 1 || (m.mode != "" && m.mode != "soft") {
				t.Errorf("%s: %+v", c.name, m)
			}
		}
		if sum != 100 {
			t.Errorf("%s: shares are %d together, want 100", c.name, sum)
		}
	}
}

// Every rhythm that stands in for a program is one.
func TestTwinsOfCompanyAreRead(t *testing.T) {
	b := onSim(t)
	for name, l := range companyLoads {
		shape := l.twin
		if shape == "" {
			shape = l.shape
		}
		p, err := b.startTenant(t.Context(), nil, tenant{shape: shape})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.ready(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p.leave()
	}
}

// Nothing is measured twice: the second case of the same loads and shares is the company alone.
func TestCompanyMeasuresOnce(t *testing.T) {
	b, err := newBench(options{sim: true, seconds: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ours := system{name: "ours", ours: true}
	pair := func(mode string, one, other int) []tenant {
		return []tenant{{shape: "1ms", share: one, mode: mode}, {shape: "1ms", share: other, mode: mode}}
	}
	first := b.planCompany(ours, pair("", 30, 70))
	if !first.natively || len(first.solo) != 1 || len(first.entitled) != 2 || first.separately(pair("", 30, 70)) {
		t.Errorf("first: got %+v, want native sharing, one solo and two limits", first)
	}
	if p := b.planCompany(ours, pair("soft", 30, 70)); !p.separately(pair("soft", 30, 70)) {
		t.Error("soft tenants say themselves what they are entitled to")
	}
	b.remember(ours, pair("", 30, 70), first)
	if p := b.planCompany(ours, pair("soft", 30, 70)); p.natively || p.solo != nil || p.entitled != nil {
		t.Errorf("the same, soft: got %+v, want nothing to measure", p)
	}
	if p := b.planCompany(ours, pair("", 50, 50)); p.natively || p.solo != nil || len(p.entitled) != 1 {
		t.Errorf("50/50: got %+v, want one limit", p)
	}
	if p := b.planCompany(system{name: "other", ours: true}, pair("", 30, 70)); p.natively || len(p.entitled) != 2 {
		t.Errorf("another gresd: got %+v, want its limits", p)
	}
	if p := b.planCompany(system{name: "mps"}, pair("", 20, 80)); p.natively || p.solo != nil || p.entitled != nil {
		t.Errorf("mps: got %+v, want the company alone", p)
	}
	b.systems = words{"ours"}
	if p := b.planCompany(ours, []tenant{{shape: "20us", share: 100}}); p.natively || p.solo != nil {
		t.Errorf("ours alone: got %+v, want nothing native", p)
	}
}

// A host changes its speed: what a tenant does alone is the mean of before and after its company.
func TestWhatIsMeasuredBeforeAndAfter(t *testing.T) {
	if m := (measured{60, 100}); m.mean() != 80 || m.varies() != 0.25 {
		t.Errorf("got %v ± %v, want 80 ± 0.25", m.mean(), m.varies())
	}
	if m := (measured)(nil); m.mean() != 0 || m.varies() != 0 {
		t.Errorf("nothing: got %v ± %v", m.mean(), m.varies())
	}
}

func TestLongestCaseOfTwoTrainings(t *testing.T) {
	b, err := newBench(options{python: "python3", seconds: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	b.dry = true
	tenants, why := b.tenantsOf(t.Context(), companyCases[0])
	if why != "" || tenants[0].shape != "torch:train:wait=4" {
		t.Fatalf("got %v, %s", tenants, why)
	}
	p := b.planCompany(system{name: "ours", ours: true}, tenants)
	if takes := b.companyTakes(tenants, p); takes < 38*time.Second || takes > 48*time.Second {
		t.Errorf("%s", takes)
	}
	b.remember(system{name: "ours", ours: true}, tenants, p)
	p = b.planCompany(system{name: "ours", ours: true}, tenants)
	if takes := b.companyTakes(tenants, p); takes < 14*time.Second || takes > 18*time.Second {
		t.Errorf("what is left is the company: got %s", takes)
	}
}

// It measures; what it measures here depends on who else uses this machine.
func TestCompanyOnTheSimulatedCard(t *testing.T) {
	b := onSim(t, func(o *options) { o.seconds, o.cases = 2*time.Second, "^1ms/1ms 30/70$" })
	systems, err := systemsOf(b.options)
	if err != nil {
		t.Fatal(err)
	}
	ours := open(t, b, "ours")
	for _, s := range systems {
		if s.ours {
			company(t.Context(), b, s, ours)
		}
	}
	got := map[string]report.Record{}
	for _, r := range b.records {
		got[r.Case+" "+r.System] = r
		if r.Error != "" {
			t.Errorf("%s, %s: %s", r.Case, r.System, r.Error)
		}
	}
	both := got["1ms/1ms 30/70 ours"].Tenants
	if len(both) != 2 || len(got["1ms/1ms 30/70 native"].Tenants) != 2 {
		t.Fatalf("got %v", got)
	}
	for _, x := range both {
		k := x.Kept
		if k.Solo <= 0 || k.Entitled <= 0 || k.Rate <= 0 || k.Kept <= 0 || k.Native <= 0 || k.Mark != full || len(k.Seconds) != 3 || len(k.Windows) != 30 {
			t.Errorf("%+v", k)
		}
	}
	if got["1ms/1ms 30/70 native"].Tenants[0].Kept.Mark != 0 {
		t.Error("native sharing is judged")
	}
}

// One that cannot be measured for want of a module is no result, and no failure either.
func TestCompanyWithoutArraysSaysSo(t *testing.T) {
	b := onSim(t, func(o *options) { o.cases = "^arrays" })
	b.python, b.sim = "/bin/false", false
	company(t.Context(), b, system{name: "ours", ours: true}, nil)
	b.sim = true
	last := b.records[len(b.records)-1]
	if !last.Skipped || len(last.Notes) != 1 || !strings.Contains(brief(last), "neither JAX nor CuPy") {
		t.Errorf("got %+v", last)
	}
	if err := report.Verdict(b.records); err != nil {
		t.Error(err)
	}
}

// A program that ends in the middle is an error of its case, and nothing of it is left.
func TestCompanyOfABrokenProgram(t *testing.T) {
	scripts := t.TempDir()
	for _, name := range []string{"torch_load.py", "array_load.py"} {
		if err := os.WriteFile(filepath.Join(scripts, name), []byte("echo ready; read -r go; echo why >&2; exit 3"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b := onSim(t, func(o *options) { o.python, o.scripts = "sh", scripts })
	_, err := b.gather(t.Context(), native{}, []tenant{{shape: "torch:train"}, {shape: "1ms"}}, []int{0}, true)
	if err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("got %v, want what it said", err)
	}
	if errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
