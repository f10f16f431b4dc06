// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"path/filepath"
	"testing"
)

// A limit holds for every way to start work on the card.
func TestEveryWayToStartWorkIsHeld(t *testing.T) {
	for _, way := range []string{
		"kernel", "thread", "config", "cooperative", "fill", "rows", "copy", "unified",
		"plane", "box", "peers", "peer_box", "from_array", "to_array", "arrays", "batch", "boxes", "attributed",
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel() // each has a card of its own, and few starts a second
			heldAt30(t, way)
		})
	}
}

// heldAt30 checks what a way to start work does at a limit of 30, as a part of what it does without.
func heldAt30(t *testing.T, way string) {
	t.Helper()
	env, libdir, lib := card(t, oneCard+"copy_gb_per_s = 0.02\n")
	env = append(env, "LD_LIBRARY_PATH="+libdir)
	whole, err := run(t, env, "starts", "--way", way, "--secs", "0.7")
	if err != nil {
		t.Fatal(err)
	}
	env = append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G", "CUDA_DEVICE_SM_LIMIT=30",
		"CUDA_DEVICE_MEMORY_SHARED_CACHE="+filepath.Join(t.TempDir(), "cache"))
	held, err := run(t, env, "starts", "--way", way, "--secs", "2")
	if err != nil {
		t.Fatal(err)
	}
	part := held["per_second"].(float64) / whole["per_second"].(float64)
	t.Logf("%.3f of what it does without a limit", part)
	most := 0.36 / (1 - whole["late"].(float64)) // on time it had done so much more without a limit
	ofCard(t, part, 0.24, most, held["late"].(float64))
}
