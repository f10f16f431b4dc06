// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"os/exec"
	"strings"
	"testing"
)

// Memory of graphs and of fragmented pools stays within the limit. The program checks its cases itself,
// on a real card too.
func TestGraphsAndPoolsPayForTheirAddresses(t *testing.T) {
	const two = "version = 1\ncount = 2\n[model]\nmemory = \"80G\"\n"
	for _, c := range []struct{ name, config, limit string }{
		{"turns3", oneCard, "8G"},
		{"turns20", oneCard, "8G"},
		{"shrinks", oneCard, "8G"},
		{"auto", oneCard, "8G"},
		{"upload", oneCard, "8G"},
		{"kept", oneCard, "8G"},
		{"late", oneCard, "8G"},
		{"nested", oneCard, "8G"},
		{"deep", oneCard, "8G"},
		{"cards", two, "8G"},
		{"trimmed", oneCard, "8G"},
		{"crowded", oneCard, "8G"},
		{"fragments", oneCard, "2G"},
		{"early", oneCard, "2G"},
	} {
		t.Run(c.name, func(t *testing.T) {
			env, libdir, lib := card(t, c.config)
			cmd := exec.Command("../../build/tests/graphpool", c.name)
			cmd.Env = append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "CUDA_DEVICE_MEMORY_LIMIT="+c.limit)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "PASS "+c.name) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// A graph is refused if the driver does not say what it allocates.
func TestAGraphOfUnknownSizeIsRefused(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	fail := exec.Command("../../build/simgpu/bin/simgpu", "fail", "--call", "cuGraphMemAllocNodeGetParams", "--code", "1")
	fail.Env = env
	if out, err := fail.CombinedOutput(); err != nil {
		t.Fatalf("simgpu fail: %v\n%s", err, out)
	}
	r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "contextend", "beside", "--libdir", libdir)
	if err != nil || r["mib"].(float64) != 0 || r["last"].(float64) != 2 {
		t.Errorf("%v, %v; want 0 MiB, error 2", r, err)
	}
}
