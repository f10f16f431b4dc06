// SPDX-License-Identifier: Apache-2.0

// Package adversary runs random programs in a job with a hard limit on the simulated card. What
// the card did for the job, by its own records, is at most the limit, whatever the programs do.
//
// A program is what worker/worker.c runs; generate makes one of a seed. One that fails is made
// smaller, as long as it fails, and printed: into testdata with it, once it is understood.
package adversary

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	// A second, and the whole run.
	window  = time.Second
	runTime = 2500 * time.Millisecond
	// So much more than its part, of a second and of the whole run: what is measured is not
	// exact, and some is charged as much as it usually takes.
	overSecond, overAll = 0.06, 0.03
	// A saved-up burst, and what a budget of 0 lets go of work that is known.
	burst = 20 * time.Millisecond
	// Launches that nobody has seen yet are taken for so short that as many go at once.
	unseen = 6
	// 1 MiB within the card takes 5 ms.
	card     = "version = 1\ncount = 1\n[model]\nmemory = \"80G\"\ncopy_gb_per_s = 0.2097152\n"
	copy1MiB = 5000 // us
)

// bound is what the job may have more than its limit in any time: work that is on its way when the
// budget is used up. It is paid for later.
func (p program) bound() time.Duration {
	most := 0
	for _, proc := range p.procs {
		longest, all, graphs := 0, 0, false
		for _, t := range proc.threads {
			for _, o := range t {
				us := 0
				switch {
				case o.word == "launch":
					us = o.arg[1]
				case o.word == "copy" && (o.arg[1]%19 == 15 || o.arg[1]%19 == 16):
					us = (o.arg[2]%4 + 1) * copy1MiB / 20
				case o.word == "copy" && o.arg[1]%19 < 15:
					us = (o.arg[2]%4 + 1) * copy1MiB
				}
				longest, all = max(longest, us), all+us
				graphs = graphs || o.word == "graph"
			}
		}
		if graphs {
			longest = max(longest, all)
		}
		most += unseen * longest
	}
	return burst + time.Duration(most)*time.Microsecond
}

// verdict is what a run shows.
type verdict struct {
	why      string  // "": nothing is wrong
	all, sec float64 // part of the card in all, and in the second with the most
}

type sample struct{ now, used uint64 }

func judge(p program, samples []sample) (v verdict) {
	bound := float64(p.bound())
	part := func(from, to sample, over float64) (float64, bool) {
		dt, used := float64(to.now-from.now), float64(to.used-from.used)
		return used / dt, used > dt*(float64(p.limit)/100+over)+bound
	}
	for i, j := 0, 0; j < len(samples); j++ {
		for ; samples[j].now-samples[i].now >= uint64(window); i++ {
			got, bad := part(samples[i], samples[j], overSecond)
			v.sec = max(v.sec, got)
			if bad && v.why == "" {
				v.why = fmt.Sprintf("%.3f of the card in a second, limit %d %%", got, p.limit)
			}
		}
	}
	if n := len(samples); n > 1 {
		got, bad := part(samples[0], samples[n-1], overAll)
		v.all = got
		if bad && v.why == "" {
			v.why = fmt.Sprintf("%.3f of the card in %.1f s, limit %d %%", got,
				float64(samples[n-1].now-samples[0].now)/1e9, p.limit)
		}
	}
	return v
}

// try runs a program and judges it.
func try(t *testing.T, p program) verdict {
	t.Helper()
	samples, err := run(t, p, runTime)
	v := judge(p, samples)
	if err != nil {
		v.why = err.Error()
	}
	return v
}

// run runs a program for so long on a card of its own.
func run(t *testing.T, p program, long time.Duration) ([]sample, error) {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	file, state, toml := filepath.Join(dir, "program"), filepath.Join(dir, "state"), filepath.Join(dir, "card.toml")
	if err := os.WriteFile(toml, []byte(card), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(p.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	simgpu := filepath.Join(build, "simgpu/bin/simgpu")
	if out, err := exec.Command(simgpu, "init", "--config", toml, "--state", state).CombinedOutput(); err != nil {
		t.Fatalf("simgpu init (run make first): %v\n%s", err, out)
	}
	meter := exec.Command(simgpu, "used", "--state", state, "--ms", "10")
	read, err := meter.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stop, err := meter.StdinPipe()
	if err == nil {
		err = meter.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd := exec.Command(filepath.Join(build, "tests/vgpu-adversary"), file, fmt.Sprint(long.Seconds()))
	cmd.Env = append(os.Environ(), "SIMGPU_STATE="+state, "LD_LIBRARY_PATH="+filepath.Join(build, "simgpu/lib"),
		"LD_PRELOAD="+filepath.Join(build, "lib/libvgpu.so"), "CUDA_DEVICE_MEMORY_LIMIT=32G",
		fmt.Sprintf("CUDA_DEVICE_SM_LIMIT=%d", p.limit), "CUDA_DEVICE_MEMORY_SHARED_CACHE="+filepath.Join(dir, "cache"))
	if p.blocking {
		cmd.Env = append(cmd.Env, "CUDA_LAUNCH_BLOCKING=1")
	}
	cmd.Stderr = &errs
	running := make(chan error, 1)
	go func() {
		running <- cmd.Run()
		_ = stop.Close() // the meter ends with it, or has ended
	}()
	var samples []sample
	for lines := bufio.NewScanner(read); lines.Scan(); {
		var s sample
		if _, err := fmt.Sscan(lines.Text(), &s.now, &s.used); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		samples = append(samples, s)
	}
	if err := meter.Wait(); err != nil {
		t.Errorf("simgpu used: %v", err)
	}
	if err := <-running; err != nil {
		return samples, fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	return samples, nil
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
	p := program{limit: 15, procs: []process{{threads: [][]operation{
		{{"launch", [4]int{0, 5, 1}}},
		{{"launch", [4]int{1, 5, 1}}, {"launch", [4]int{2, 800, 1}}, {"launch", [4]int{3, 800, 1}}},
	}}}}
	samples, err := run(t, p, 4*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	known := samples
	for known[0].now-samples[0].now < uint64(time.Second) {
		known = known[1:]
	}
	v := judge(p, known)
	t.Logf("%.3f of the card, at most %.3f in a second", v.all, v.sec)
	if v.why != "" {
		t.Error(v.why)
	}
}

// Programs that were found, and some seeds, or the one of VGPU_ADVERSARY_SEED.
func TestProgramsHaveTheirLimit(t *testing.T) {
	names, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			p, err := parse(string(text))
			if err != nil {
				t.Fatal(err)
			}
			v := try(t, p)
			t.Logf("%.3f of the card, at most %.3f in a second", v.all, v.sec)
			if v.why != "" {
				t.Error(v.why)
			}
		})
	}
	seeds := []uint64{1, 2, 3, 4, 5, 6}
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
