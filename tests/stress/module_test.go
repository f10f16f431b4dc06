// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// What a module takes is seen by the card's free memory, which is everybody's: a
// neighbour that allocates while one process loads code must neither be charged to
// it for good nor make its load fail.
func TestANeighbourIsNotChargedForAModule(t *testing.T) {
	const limit, context = 4 << 30, 544 << 20 // what a context is charged without gresd
	for _, c := range []struct {
		name, neighbour string
		slack           float64 // what may be charged beside the context
	}{
		{"large: held against the card's count at once", "2G", 1 << 20},
		{"larger than the limit", "6G", 1 << 20},
		{"small: taken out by the next comparisons", "40M", 1 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			env, libdir, lib := card(t, oneCard+"context_cost = \"500M\"\n")
			worker, err := filepath.Abs("../../build/tests/vgpu-worker")
			if err != nil {
				t.Fatal(err)
			}
			simgpu := exec.CommandContext(t.Context(), filepath.Join("../../build/simgpu/bin/simgpu"),
				"slow", "--call", "cuModuleLoadData", "--ms", "3000", "--count", "1")
			simgpu.Env = env
			if out, err := simgpu.CombinedOutput(); err != nil {
				t.Fatalf("simgpu slow: %v\n%s", err, out)
			}
			var out bytes.Buffer
			loading := exec.CommandContext(t.Context(), worker, "--libdir", libdir, "--kernel-us", "200",
				"--saturate", "0.1", "--hold", "4", "--report", "--alloc", "3G")
			loading.Env = append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=4G")
			loading.Stdout = &out
			if err := loading.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(1500 * time.Millisecond) // it is loading now
			neighbour := exec.CommandContext(t.Context(), worker, "--libdir", libdir, "--alloc", c.neighbour, "--hold", "60")
			neighbour.Env = env
			if err := neighbour.Start(); err != nil {
				t.Fatal(err)
			}
			err = loading.Wait()
			_ = neighbour.Process.Kill()
			_ = neighbour.Wait()
			if err != nil {
				t.Fatalf("the process that loads: %v\n%s", err, out.Bytes())
			}
			results := map[string]map[string]any{}
			for line := range bytes.Lines(out.Bytes()) {
				var r map[string]any
				if err := json.Unmarshal(line, &r); err != nil {
					t.Fatalf("%v: %s", err, line)
				}
				results[r["cmd"].(string)] = r
			}
			free := results["report"]["free"].(float64)
			if used := limit - free; used > context+c.slack || used < context/2 {
				t.Errorf("told %.0f MiB used after the load, want about %d", used/(1<<20), context>>20)
			}
			if code := results["alloc"]["result"].(float64); code != 0 {
				t.Errorf("3 GiB of 4 after the load: error %v", code)
			}
		})
	}
}

// Code that comes with its first use is charged then, and again when it was unloaded; a
// program that asks for the same again and again does not wait for the driver each time.
func TestOnlyTheFirstUseIsLookedAt(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	env = append(env, "CUDA_DEVICE_MEMORY_LIMIT=4G", "CUDA_DEVICE_MEMORY_SHARED_CACHE="+filepath.Join(t.TempDir(), "cache"))
	r, err := run(t, append(env, "LD_PRELOAD="+lib), "firstuse", "--libdir", libdir)
	if err != nil {
		t.Fatal(err)
	}
	mib := func(name string) float64 { return r[name].(float64) }
	const module = 32 // MiB, and what else a module takes
	if took := mib("first_mib") - mib("before_mib"); took < module || took > module+4 {
		t.Errorf("the first use took %v MiB, want %v", took, module)
	}
	if left := mib("unloaded_mib") - mib("before_mib"); left != 0 {
		t.Errorf("%v MiB are in use after the unload", left)
	}
	if took := mib("again_mib") - mib("unloaded_mib"); took < module || took > module+4 {
		t.Errorf("the first use of what was loaded again took %v MiB, want %v", took, module)
	}
	if looks := r["looks"].(float64); looks != 0 {
		t.Errorf("%v looks at the card's free memory in %v further calls, want none", looks, r["calls"])
	}
	if anew := r["anew"].(float64); anew != 6 {
		t.Errorf("%v looks at three handles after a context has ended, twice, want one for each", anew)
	}
}
