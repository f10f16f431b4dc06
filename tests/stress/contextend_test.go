// SPDX-License-Identifier: Apache-2.0

package stress

import "testing"

// A context's memory ends with it, and so does what is charged for it, whatever it is and
// however the context ends: three times 5 GiB fit one after another in 8, and nothing is left.
func TestMemoryEndsWithItsContext(t *testing.T) {
	for _, kind := range []string{"linear", "pitched", "managed", "array", "mipmapped", "module", "library", "stack", "async", "graph"} {
		for _, end := range []string{"destroy", "detach", "reset", "release", "green", "mixed"} {
			t.Run(kind+", "+end, func(t *testing.T) {
				env, libdir, lib := card(t, oneCard)
				r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "contextend", kind, end, "--libdir", libdir)
				if err != nil {
					t.Fatal(err)
				}
				if r["rounds"].(float64) != 3 || r["last"].(float64) != 0 {
					t.Errorf("%v of 3 rounds, error %v", r["rounds"], r["last"])
				}
				if left := r["left_mib"].(float64); left != 0 {
					t.Errorf("%v MiB are used when all has ended", left)
				}
			})
		}
	}
}

// Each context has a heap of its own, and pays for it.
func TestHeapsOfAllContextsCount(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "contextend", "heaps", "--libdir", libdir)
	if err != nil {
		t.Fatal(err)
	}
	const heaps, context = 2 * 2048, 544
	if held := r["held_mib"].(float64); held != heaps {
		t.Errorf("two heaps of 2 GiB: %v MiB more are used, want %v", held, heaps)
	}
	if left := r["left_mib"].(float64); left != -2*context {
		t.Errorf("two of three contexts have ended: %v MiB are used beyond the three, want %v", left, -2*context)
	}
}
