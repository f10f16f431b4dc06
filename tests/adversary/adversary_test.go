// SPDX-License-Identifier: Apache-2.0

// Package adversary runs random programs in a job with hard limits on the simulated card. The card's
// own records show what the job did. It never exceeds its limits, and processes that wait for each
// other go on.
//
// worker/worker.c runs a program, and generate makes one from a seed. A program that fails is made
// smaller as long as it fails, and printed. Store it in testdata when the fault is understood.
package adversary

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/known"
)

// verdict is the judgement of a run.
type verdict struct {
	why      string  // "": nothing is wrong
	all, sec float64 // part of the card in all, and in the second with the most
}

// try runs a program and judges it. A ring also runs without the library, at the same time, so that
// the machine is as busy for both.
func try(t *testing.T, p program) (v verdict) {
	t.Helper()
	rings := p.ring() && (p.memory == oldMemory || p.fits())
	natives := make(chan record, 1)
	go func() {
		defer close(natives)
		if !rings {
			return
		}
		native, err := run(t, p, p.time(), unlimited)
		if err != nil {
			t.Errorf("without the library: %v", err)
			return
		}
		natives <- native
	}()
	r, err := run(t, p, p.time(), limited)
	native, ok := <-natives
	v = judge(p, r)
	if err != nil {
		v.why = err.Error()
	}
	if v.why != "" || !ok {
		return v
	}
	t.Logf("ring %+v, without the library %+v", r.ring, native.ring)
	late := lateRing(p, native.ring, r.ring)
	if late != "" && !p.onlyRing() && !known.Runs("F17") {
		t.Logf("known fault F17: %s", late)
		return v
	}
	v.why = late
	return v
}

// shrink returns the smallest part of a program that it finds to fail, and how that fails.
func shrink(t *testing.T, p program, why string, until time.Time) (program, string) {
	t.Helper()
	for {
		smaller := false
		for _, q := range p.without() {
			if time.Now().After(until) {
				return p, why
			}
			if v := try(t, q); v.why != "" {
				p, why, smaller = q, v.why, true
				break
			}
		}
		if !smaller {
			return p, why
		}
	}
}

// report says which program failed, and what of it is enough.
func report(t *testing.T, name string, p program, v verdict) {
	t.Helper()
	t.Logf("%s: %s; looking for a smaller one", name, v.why)
	small, why := shrink(t, p, v.why, time.Now().Add(3*time.Minute))
	t.Errorf("%s: %s; of it, this is enough (%s):\n%s", name, v.why, why, small)
}

// Launches of one function and grid may differ by any factor, which nobody knows before: once the
// job is in debt for as much as has gone by then. From the second second on it is known.
func TestLaunchesThatDifferAreKnown(t *testing.T) {
	t.Parallel()
	p := program{limit: 15, memory: oldMemory, procs: []process{{threads: [][]operation{
		{{"launch", [4]int{0, 5, 1}}},
		{{"launch", [4]int{1, 5, 1}}, {"launch", [4]int{2, 800, 1}}, {"launch", [4]int{3, 800, 1}}},
	}}}}
	r, err := run(t, p, 4*time.Second, limited)
	if err != nil {
		t.Fatal(err)
	}
	for from := r.samples[0].now; r.samples[0].now-from < uint64(time.Second); {
		r.samples = r.samples[1:]
	}
	v := judge(p, r)
	t.Logf("%.3f of the card, at most %.3f in a second", v.all, v.sec)
	if v.why != "" {
		t.Error(v.why)
	}
}

// Programs that were found, and some seeds, or the one of VGPU_ADVERSARY_SEED. A ring
// runs alone, because each of its rounds waits for the host several times.
func TestProgramsHaveTheirLimit(t *testing.T) {
	names, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			p, err := parse(string(text))
			if err != nil {
				t.Fatal(err)
			}
			if !p.ring() {
				t.Parallel()
			}
			v := try(t, p)
			t.Logf("%.3f of the card, at most %.3f in a second", v.all, v.sec)
			if v.why != "" {
				t.Error(v.why)
			}
		})
	}
	seeds := []uint64{1, 3, 4, 9} // 4 imports, 9 has memory nodes
	if seed, err := strconv.ParseUint(os.Getenv("VGPU_ADVERSARY_SEED"), 10, 64); err == nil {
		seeds = []uint64{seed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			p := generate(seed)
			v := try(t, p)
			t.Logf("%.3f of the card, at most %.3f in a second", v.all, v.sec)
			if v.why != "" {
				report(t, fmt.Sprint("seed ", seed), p, v)
			}
		})
	}
}

// Rings whose processes also launch other kernels: they take longer than they should.
func TestRingsNextToOtherKernels(t *testing.T) {
	known.Fault(t, "F17")
	runKnown(t, "ring-next-to-launches", "ring-next-to-lengths")
}

// The long launches of a function and grid are in one stream, and the short ones in another stream. A
// host that allocates between them uses 0.5 to 0.7 of the card at a limit of 40 %.
func TestLengthsInTwoStreams(t *testing.T) {
	known.Fault(t, "lengths")
	runKnown(t, "two-lengths-in-two-streams")
}

func runKnown(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		text, err := os.ReadFile("testdata/known/" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		p, err := parse(string(text))
		if err != nil {
			t.Fatal(err)
		}
		if v := try(t, p); v.why != "" {
			t.Errorf("%s: %s", name, v.why)
		}
	}
}

// New seeds for as long as VGPU_ADVERSARY says (make test-adversary): so many programs at a time.
func TestNewSeeds(t *testing.T) {
	long, err := time.ParseDuration(os.Getenv("VGPU_ADVERSARY"))
	if err != nil {
		t.Skip("VGPU_ADVERSARY is not set: make test-adversary")
	}
	const lanes = 4
	until := time.Now().Add(long)
	ran := make(chan int)
	for lane := range lanes {
		go func() {
			n := 0
			defer func() { ran <- n }()
			for ; time.Now().Before(until) && !t.Failed(); n++ {
				seed := rand.Uint64()
				p := generate(seed)
				if v := try(t, p); v.why != "" {
					report(t, fmt.Sprint("lane ", lane, ", seed ", seed), p, v)
				}
			}
		}()
	}
	sum := 0
	for range lanes {
		sum += <-ran
	}
	t.Logf("%d programs", sum)
}

// A program is read as it was written.
func TestParse(t *testing.T) {
	for seed := range uint64(100) {
		p := generate(seed)
		q, err := parse(p.String())
		if err != nil || q.String() != p.String() {
			t.Fatalf("%v: %s, want %s", err, q, p)
		}
		for _, less := range p.without() {
			if len(less.procs) > len(p.procs) || less.String() == p.String() {
				t.Fatalf("not less: %s", less)
			}
		}
	}
}

// Each feature is in a quarter of the programs, and a fifth of them have a lease.
func TestFeaturesAreFrequent(t *testing.T) {
	const seeds = 2000
	count := map[string]float64{}
	for seed := range uint64(seeds) {
		p := generate(seed)
		for _, feature := range []struct {
			name string
			has  bool
		}{
			{"lengths", p.mixed()},
			{"memory nodes", p.has("memgraph") || p.has("alloc") && p.has("begin")},
			{"imports", p.has("import")},
			{"ring", p.ring()},
			{"lease", p.lease},
			{"fits", p.fits() && p.memory < oldMemory},
		} {
			if feature.has {
				count[feature.name] += 1. / seeds
			}
		}
	}
	t.Log(count)
	for name, least := range map[string]float64{"lengths": 0.25, "memory nodes": 0.25, "imports": 0.25, "ring": 0.25, "lease": 0.15, "fits": 0.08} {
		if count[name] < least {
			t.Errorf("%s: in %.2f of the programs, want %.2f", name, count[name], least)
		}
	}
}

// The judge finds the faults of a card without limits, and of a ring that nearly stands still.
func TestJudgeFindsBrokenLimits(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"compute": "# limit 40 blocking false memory 8 lease false\nproc 0 0\nthread\nlaunch 0 5000 1 0\n",
		"lengths": "# limit 20 blocking false memory 8 lease true\nproc 0 0\nthread\nvary 0 0 100 25\n",
		"memory":  "# limit 40 blocking false memory 4 lease false\nproc 0 0\nthread\ncreate 0 3072\ncreate 1 3072\n",
		"given":   "# limit 40 blocking false memory 4 lease false\nproc 0 0\nthread\ncreate 0 3072\nexport 0\ngive 0\nrelease 0\nshut 0\ncreate 1 3072\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := parse(text)
			if err != nil {
				t.Fatal(err)
			}
			long := window + 300*time.Millisecond
			if p.mixed() || p.lease {
				long += judgedFrom
			}
			r, err := run(t, p, long, unlimited)
			if err != nil {
				t.Fatal(err)
			}
			if v := judge(p, r); v.why == "" {
				t.Errorf("%.3f of the card, at most %.3f in a second: want a fault", v.all, v.sec)
			} else {
				t.Log(v.why)
			}
		})
	}
	p := program{limit: 20, procs: []process{{threads: [][]operation{{{"ring", [4]int{0, 1, 100}}}}}}}
	for _, got := range []rounds{{n: 10, seconds: 5, longest: 2.6}, {n: 150, seconds: 5, longest: 2.6}, {n: 150, seconds: 5, longest: 0.1, late: 20}, {}} {
		if lateRing(p, rounds{n: 50, seconds: 1, longest: 0.03}, got) == "" {
			t.Errorf("%+v: want a fault", got)
		}
	}
}
