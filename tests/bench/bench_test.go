// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
)

// What gresd makes on its host is the tests' own: the host may have a gresd, and other tests run beside.
func TestMain(m *testing.M) {
	processor.Prefer()
	if os.Geteuid() == 0 {
		if err := cluster.Enter(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// solos are the solo rates of the simulated card, which is the same in all tests: measured once.
var solos, soloLates = map[string]float64{}, map[string]float64{}

// onSim is a benchmark that is set up on a simulated card.
func onSim(t *testing.T, change ...func(*options)) *bench {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("gresd runs as root only")
	}
	o := options{
		build: "../../build", out: t.TempDir(), sim: true, user: "nobody",
		warm: time.Second, seconds: 2 * time.Second, churn: 6 * time.Second, seed: 1, peerEnv: "CUDA_DEVICE_SM_LIMIT=%d CUDA_DEVICE_MEMORY_SHARED_CACHE=%s/cache",
	}
	for _, f := range change {
		f(&o)
	}
	b, err := newBench(o)
	if err == nil {
		err = b.setUp(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(b.solos, solos)
	maps.Copy(b.soloLates, soloLates)
	t.Cleanup(func() {
		for shape, rate := range b.solos {
			if !(tenant{shape: shape}).python() { // a test has programs of its own in their place
				solos[shape], soloLates[shape] = rate, b.soloLates[shape]
			}
		}
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// open opens a system until the test ends.
func open(t *testing.T, b *bench, name string) session {
	t.Helper()
	systems, err := systemsOf(b.options)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range systems {
		if s.name != name {
			continue
		}
		ses, err := s.open(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := ses.close(); err != nil {
				t.Error(err)
			}
		})
		return ses
	}
	t.Fatalf("no system %s", name)
	return nil
}

func TestAJobOfTwoCardsIsGranted(t *testing.T) {
	b := onSim(t, func(o *options) { o.gpu = 1 })
	b.gpu = 0 // there are two
	_, leave, err := open(t, b, "ours").join(t.Context(), b, tenant{shape: "torch:train-ddp", share: 30})
	if err != nil {
		t.Fatal(err)
	}
	if err := leave(); err != nil {
		t.Error(err)
	}
}

func parts(t *testing.T, b *bench, ses session, tenants []tenant) report.Record {
	t.Helper()
	r, _, _, err := b.measure(t.Context(), ses, tenants, b.seconds)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", brief(r))
	return r
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance {
		t.Errorf("%s: got %.1f, want %.1f ± %.1f", what, got, want, tolerance)
	}
}

// nearOf is near for what the first of some tenants got, in percent, when each is due want. A tenant that
// had no processor did less, and others did more.
func nearOf(t *testing.T, what string, got float64, want []float64, tolerance float64, tenants []report.Tenant) {
	t.Helper()
	nearOfLate(t, what, got, want, tolerance, tenants, 0)
}

// nearOfSolo is nearOf for percentages of solo. If the load alone had no processor, its solo rate is too
// low and the percentages are too high.
func nearOfSolo(t *testing.T, what string, got float64, want []float64, tolerance float64, tenants []report.Tenant) {
	t.Helper()
	nearOfLate(t, what, got, want, tolerance, tenants, tenants[0].SoloLate)
}

func nearOfLate(t *testing.T, what string, got float64, want []float64, tolerance float64, tenants []report.Tenant, soloLate float64) {
	t.Helper()
	var late []float64
	for _, x := range tenants {
		late = append(late, x.Late)
	}
	low, high := processor.Bounds(0, want[0]-tolerance, want[0]+tolerance, want, late)
	if got < low || got*(1-soloLate) > high {
		t.Errorf("%s: got %.1f, want %.1f ± %.1f; without a processor for %.3f of the time, and alone for %.3f",
			what, got, want[0], tolerance, late, soloLate)
	}
}

// The bounds are wide: this is a test of the benchmark. That native is told from ours shows that it measures.
func TestSharesOnTheSimulatedCard(t *testing.T) {
	b := onSim(t)
	pair := shares("1ms", 30, 70)
	without := parts(t, b, open(t, b, "native"), pair)
	nearOf(t, "part of 30 without a library", without.Tenants[0].Part, []float64{50, 50}, 7, without.Tenants)
	with := parts(t, b, open(t, b, "ours"), pair)
	nearOf(t, "part of 30", with.Tenants[0].Part, []float64{30, 70}, 7, with.Tenants)
	if len(with.Tenants[0].Windows) != 20 || with.Numbers["stall_max_ms"] <= 0 {
		t.Errorf("got %d windows and a stall of %v ms, want 20 and more than 0", len(with.Tenants[0].Windows), with.Numbers["stall_max_ms"])
	}
}

// Processes of one job have one budget: what one of them waits for is not charged to the
// other, and none is passed again and again. Without that this gave 20 to 31 of 40.
func TestProcessesOfACappedJobShareItsBudget(t *testing.T) {
	b := onSim(t)
	with := parts(t, b, open(t, b, "ours"), []tenant{{shape: "20ms", share: 40, procs: 4}})
	nearOfSolo(t, "of solo", with.Tenants[0].OfSolo, []float64{40}, 4, with.Tenants)
}

// A burst that goes first does not cost several neighbours more than native sharing does
// (82 % of the card is left to them); with slices of 0.3 ms for each they did 41 to 65.
func TestSeveralBesideABurstKeepTheirWork(t *testing.T) {
	b := onSim(t)
	all := parts(t, b, open(t, b, "ours"), append(shares("burst", 12), shares("1ms", 12, 12, 12, 12, 12, 12, 12)...)).Tenants
	seven := report.Tenant{}
	for _, other := range all[1:] {
		seven.OfSolo += other.OfSolo
		seven.Late += other.Late / 7
		seven.SoloLate = other.SoloLate
	}
	nearOfSolo(t, "all seven, of solo", seven.OfSolo, []float64{78, 22}, 7, []report.Tenant{seven, all[0]})
}

// A job of 50 % with four processes below a burst has its share, less a sixth of its time: the
// card's switches between these processes. A launch does not pay for its siblings' time on the
// card, and the card does not switch in the middle of its kernels.
func TestProcessesBelowABurstHaveTheirShare(t *testing.T) {
	b := onSim(t)
	ses := open(t, b, "ours")
	for _, shape := range []string{"20us", "1ms"} {
		both := []tenant{{shape: shape, share: 50, procs: 4}, {shape: "burst", share: 50, priority: "high"}}
		r, _, _, err := b.measure(t.Context(), ses, both, 3*b.seconds) // the gate shuts after a second
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s; without a processor for %.3f, alone for %.3f, and the burst for %.3f of the time",
			brief(r), r.Tenants[0].Late, r.Tenants[0].SoloLate, r.Tenants[1].Late)
		nearOfSolo(t, shape+", of solo", r.Tenants[0].OfSolo, []float64{42, 58}, 7, r.Tenants)
	}
}

// The library without gresd is good enough for another library.
func TestPeerIsLimitedByItsEnvironment(t *testing.T) {
	b := onSim(t, func(o *options) { o.peers = pairs{{"env", "../../build/lib/libvgpu.so"}} })
	r := parts(t, b, open(t, b, "env"), shares("1ms", 40))
	nearOfSolo(t, "one of 40 % alone", r.Tenants[0].OfSolo, []float64{40}, 12, r.Tenants)
}

// What is held back must be seen, or nobody could believe the 99 % of what is not.
func TestUnlimitedIsComparedWithNative(t *testing.T) {
	b := onSim(t)
	r, err := b.compare(t.Context(), open(t, b, "ours"), "1ms", []side{
		{"whole", tenant{share: 100}}, {"half", tenant{share: 50}},
	}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r.Numbers)
	for _, c := range []struct {
		side            string
		want, tolerance float64
	}{{"whole", 100, 25}, {"half", 50, 15}} {
		got, late, native := r.Numbers[c.side+"_percent"], r.Numbers[c.side+"_late"], r.Numbers["native_late"]
		if got < (c.want-c.tolerance)*(1-late) || got*(1-native) > c.want+c.tolerance {
			t.Errorf("%s, %% of native: got %.1f, want %.0f ± %.0f", c.side, got, c.want, c.tolerance)
		}
	}
}

func TestChurnLeavesNothing(t *testing.T) {
	b := onSim(t, func(o *options) { o.churnJobs = 3 })
	r, err := b.churnFor(t.Context(), open(t, b, "ours").(*ours))
	t.Log(r.Numbers)
	if err != nil || r.Numbers["jobs"] < 3 || r.Numbers["processes_killed"] == 0 || r.Numbers["jobs_left"] != 0 {
		t.Errorf("got %v, %v; want at least 3 jobs, some processes killed and none left", r.Numbers, err)
	}
}

// A shell speaks the protocol of torch_load.py in Python's place.
func TestStepsOfAProgramBecomeRates(t *testing.T) {
	scripts := t.TempDir()
	const script = `echo ready; read -r go start end
printf '{"steps":['
t=$start; sep=; while [ "$t" -lt "$end" ]; do printf '%s[%s,10]' "$sep" "$t"; sep=,; t=$((t + 10000000)); done
echo ']}'`
	for _, name := range []string{"torch_load.py", "array_load.py"} {
		if err := os.WriteFile(filepath.Join(scripts, name), []byte(script), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b := onSim(t, func(o *options) { o.python, o.scripts = "sh", scripts })
	r := parts(t, b, native{}, []tenant{{shape: "torch:train", share: 100}})
	near(t, "steps a second alone", b.solos["torch:train"], 100, 0.1)
	near(t, "of solo", r.Tenants[0].OfSolo, 100, 0.1)
	near(t, "time of a step", r.Numbers["p99_0_ms"], 10, 0.1)
}

// A program that does not answer is ended, and its last words are told.
func TestABrokenTenantIsAnErrorOfItsCase(t *testing.T) {
	b := onSim(t)
	p, err := b.start(t.Context(), "broken", nil, "/bin/sh", "-c", "echo why >&2; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.ready(); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("got %v, want what it said", err)
	}
	p, err = b.start(t.Context(), "silent", nil, "/bin/sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.line(100 * time.Millisecond); err == nil {
		t.Error("a silent program is taken for one that answers")
	}
	select {
	case <-p.ended:
	default:
		t.Error("a silent program was not ended")
	}
}

func TestBudgetAndNameLeaveOut(t *testing.T) {
	b, err := newBench(options{out: t.TempDir(), cases: "^(short|long)$"})
	if err != nil {
		t.Fatal(err)
	}
	b.deadline = time.Now().Add(time.Minute)
	if b.out, err = os.Create(filepath.Join(b.options.out, "results.jsonl")); err != nil {
		t.Fatal(err)
	}
	defer b.out.Close()
	ran := 0
	run := func() (report.Record, error) { ran++; return report.Record{}, nil }
	b.do(context.Background(), "s", "short", system{}, time.Second, run)
	b.do(context.Background(), "s", "not this", system{}, time.Second, run)
	b.do(context.Background(), "s", "long", system{}, time.Hour, run)
	if ran != 1 || len(b.records) != 2 || b.records[0].Skipped || !b.records[1].Skipped {
		t.Errorf("ran %d, %+v; want the long case left out, and the one that was not asked for", ran, b.records)
	}
}

func TestCommandLine(t *testing.T) {
	if _, err := pick([]string{"contended", "nonsense"}); err == nil {
		t.Error("an unknown scenario is taken")
	}
	if _, err := systemsOf(options{systems: words{"nobody"}}); err == nil {
		t.Error("an unknown system is taken")
	}
	if _, err := systemsOf(options{ours: pairs{{"ours", ""}}}); err == nil {
		t.Error("two systems of one name are taken")
	}
	got, err := systemsOf(options{ours: pairs{{"turns", ignoresSlices}}, systems: words{"turns", "native"}})
	if err != nil || len(got) != 2 || got[0].name != "native" || got[1].name != "turns" {
		t.Errorf("got %v, %v; want native and turns", got, err)
	}
	if _, err := newBench(options{cases: "("}); err == nil {
		t.Error("a broken expression is taken")
	}
	if err := new(pairs).Set("no value"); err == nil {
		t.Error("a flag without = is taken")
	}
}
