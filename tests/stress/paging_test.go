// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What a job has beyond its physical share is paged, all of it and nothing else.
// What that costs only a real card can say.
func TestWhatIsPaged(t *testing.T) {
	t.Parallel()
	env, libdir, lib := card(t, oneCard)
	r, err := run(t, env, "pagecost", "--lib", lib, "--libdir", libdir, "--physical", "4608", "--limit", "8192")
	if err != nil {
		t.Fatal(err)
	}
	// 528 MiB are the context's; a piece has 64.
	plain, paged := r["plain_mib"].(float64), r["paged_mib"].(float64)
	if plain < 4608-528-64 || plain > 4608-528 {
		t.Errorf("%v MiB of plain memory, want what is left of 4608", plain)
	}
	if sum := plain + paged; sum < 8192-528-64 || sum > 8192-528 {
		t.Errorf("%v MiB in all, want what is left of 8192", sum)
	}
}

// CUDA_OVERSUBSCRIBE without gresd: a limit above the card's memory counts.
func TestOversubscribedByEnvironment(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		value string
		total float64
		said  string
	}{
		{"", 80 * gib, ""},
		{"false", 80 * gib, ""},
		{"true", 120 * gib, "past the card's physical share"},
		{"1", 120 * gib, "past the card's physical share"},
		{"perhaps", 80 * gib, `CUDA_OVERSUBSCRIBE: "perhaps": want true or false; nothing is paged`},
	} {
		env, libdir, lib := card(t, oneCard)
		cmd := exec.Command("../../build/tests/vgpu-worker", "--report", "--alloc", "60G", "--alloc", "30G")
		cmd.Env = append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "CUDA_DEVICE_MEMORY_LIMIT=120G", "CUDA_OVERSUBSCRIBE="+c.value)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v: %s", c.value, err, &stderr)
		}
		var told map[string]any
		if err := json.NewDecoder(strings.NewReader(string(out))).Decode(&told); err != nil {
			t.Fatalf("%q: %v: %s", c.value, err, out)
		}
		for _, name := range []string{"total", "device_total", "nvml_total", "nvml2_total"} {
			if told[name] != c.total {
				t.Errorf("%q: %s is %v, want %v", c.value, name, told[name], c.total)
			}
		}
		if !strings.Contains(stderr.String(), c.said) || c.said == "" && stderr.Len() > 0 {
			t.Errorf("%q: said %q, want %q", c.value, &stderr, c.said)
		}
	}
}

// nvidia-smi and a CUDA program are told the same total, though the first never asks CUDA.
func TestNVMLAloneTellsTheSameTotal(t *testing.T) {
	for _, c := range []struct {
		limit, oversubscribe, copied string
		mib                          float64
	}{
		{"100G", "true", "", 100 << 10},
		{"40G", "true", "", 40 << 10},
		{"40G", "", "", 40 << 10},
		{"40G", "", copyOf(t, "libnvidia-ml.so.1"), 40 << 10},
	} {
		t.Run(c.limit+" "+c.oversubscribe+" "+filepath.Base(c.copied), func(t *testing.T) {
			env, libdir, lib := card(t, oneCard)
			r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT="+c.limit, "CUDA_OVERSUBSCRIBE="+c.oversubscribe), "nvmltotal", "--libdir", libdir, "--copy", c.copied)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"nvml", "nvml_after", "cuda"} {
				if r[name] != c.mib {
					t.Errorf("%s: %v MiB, want %v", name, r[name], c.mib)
				}
			}
		})
	}
}

// A library in front of NVML may not know the number of a card: the card has the first limit.
func TestACardWithoutANumberHasTheFirstLimit(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	r, err := run(t, append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH=../../build/tests/shadow:"+libdir, "CUDA_DEVICE_MEMORY_LIMIT=40G"), "nvmltotal")
	if err != nil || r["nvml"] != 40.0*1024 {
		t.Errorf("%v, %v; want 40 GiB", r, err)
	}
}
