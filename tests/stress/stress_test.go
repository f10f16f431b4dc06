// SPDX-License-Identifier: Apache-2.0

// Package stress runs the stress programs on the simulated card. The same
// programs run on a real one by hand: see docs/benchmarks.md.
package stress

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
)

func TestMain(m *testing.M) {
	processor.Prefer()
	os.Exit(m.Run())
}

// card makes a simulated card and returns the environment that finds it.
func card(t *testing.T, config string) (env []string, libdir, lib string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	build := filepath.Join(root, "build")
	state := filepath.Join(t.TempDir(), "state")
	toml := filepath.Join(t.TempDir(), "card.toml")
	if err := os.WriteFile(toml, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(build, "simgpu/bin/simgpu"), "init", "--config", toml, "--state", state).CombinedOutput()
	if err != nil {
		t.Fatalf("simgpu init (run make first): %v\n%s", err, out)
	}
	return append(os.Environ(), "SIMGPU_STATE="+state), filepath.Join(build, "simgpu/lib"), filepath.Join(build, "lib/libvgpu.so")
}

// limited is the environment of a program that is held at a limit of a simulated card of its
// own, and its cache file.
func limited(t *testing.T, config, limit string) (env []string, cache string) {
	t.Helper()
	env, libdir, lib := card(t, config)
	cache = filepath.Join(t.TempDir(), "cache")
	return append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "CUDA_DEVICE_MEMORY_LIMIT=8G",
		"CUDA_DEVICE_SM_LIMIT="+limit, "CUDA_DEVICE_MEMORY_SHARED_CACHE="+cache), cache
}

// run starts a stress program and decodes its line of JSON. It adds the number "late", the lateness
// (package processor).
func run(t *testing.T, env []string, program string, args ...string) (result map[string]any, err error) {
	t.Helper()
	cmd := exec.Command(filepath.Join("../../build/tests", program), args...)
	cmd.Env = env
	out, late, err := processor.Output(cmd)
	t.Logf("%s %s: %.3f of the time without a processor: %s", program, strings.Join(args, " "), late, out)
	result = decode(t, out)
	result["late"] = late
	return result, err
}

// ofCard checks which part of the card a program had. If other programs took its processor, it can
// have as much less, but never more.
func ofCard(t *testing.T, part, least, most, late float64) {
	t.Helper()
	if part < least*(1-late) || part > most {
		t.Errorf("%.3f of the card, want %.2f to %.2f; without a processor for %.3f of the time", part, least, most, late)
	}
}

// decode reads what a stress program prints.
func decode(t *testing.T, out []byte) (result map[string]any) {
	t.Helper()
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	return result
}

const oneCard = "version = 1\ncount = 1\n[model]\nmemory = \"80G\"\n"

// 16 processes of one job allocate and free at random and are killed at random;
// an outsider asks the card every 10 ms.
func TestKillsNeverOpenTheLimit(t *testing.T) {
	t.Parallel()
	secs := "20"
	if os.Getenv("VGPU_LONG") != "" {
		secs = "60"
	}
	env, libdir, lib := card(t, oneCard)
	cache := filepath.Join(t.TempDir(), "cache")
	r, err := run(t, env, "memstress", "--lib", lib, "--libdir", libdir, "--cache", cache,
		"--limit", "17179869184", "--workers", "16", "--secs", secs, "--kill-ms", "100")
	if err != nil {
		t.Errorf("memstress: %v", err)
	}
	for name, least := range map[string]float64{"samples": 50, "killed": 20, "granted": 100, "refused": 10} {
		if got := r[name].(float64); got < least {
			t.Errorf("%s: %v, want at least %v: nothing was tested", name, got, least)
		}
	}
}

// Without the library the same load goes far above the limit: the check can fail.
func TestWithoutTheLibraryTheLimitIsPassed(t *testing.T) {
	t.Parallel()
	env, libdir, _ := card(t, oneCard)
	r, err := run(t, env, "memstress", "--libdir", libdir, "--cache", filepath.Join(t.TempDir(), "cache"),
		"--limit", "2147483648", "--workers", "6", "--secs", "3")
	if err == nil || r["above"].(float64) == 0 {
		t.Errorf("passed without a library: %v", r)
	}
}

func TestManyShortProcesses(t *testing.T) {
	config := oneCard + "context_cost = \"16M\"\n"
	for _, c := range []struct{ name, count, parallel string }{
		{"1200 one after another", "1200", "1"},
		{"300 at once", "300", "300"},
	} {
		t.Run(c.name, func(t *testing.T) {
			env, libdir, lib := card(t, config)
			cache := filepath.Join(t.TempDir(), "cache")
			args := []string{"--libdir", libdir, "--count", c.count, "--parallel", c.parallel}
			// As many processes without the library show in the same seconds how fast this machine is.
			otherEnv, _, _ := card(t, config)
			without := exec.Command("../../build/tests/startup", args...)
			without.Env = otherEnv
			unlimited := make(chan []byte, 1)
			go func() {
				out, _ := without.Output() // empty if it fails
				unlimited <- out
			}()
			// 16 MiB of context and 16 to grow for each of them, and room to spare.
			r, err := run(t, env, "startup", append(args, "--lib", lib, "--cache", cache, "--limit", "1099511627776")...)
			if err != nil || r["failed"].(float64) != 0 {
				t.Errorf("%v of %s failed: %v", r["failed"], c.count, err)
			}
			text := <-unlimited
			t.Logf("without the library: %s", text)
			if took, alone := r["total_s"].(float64), decode(t, text)["total_s"].(float64); took-alone > 120 {
				t.Errorf("took %.1f s, and %.1f s without the library: they wait for each other", took, alone)
			}
		})
	}
}
