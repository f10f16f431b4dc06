// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"os/exec"
	"testing"
)

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

// What arrays of many levels take is known: a volume's levels are an eighth of each other,
// layers stay as many.
func TestMipmappedArraysAreChargedAsTheyAre(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "contextend", "sizes", "--libdir", libdir)
	if err != nil {
		t.Fatal(err)
	}
	const cube, layers = 512.0 * 8 / 7, 64.0 * 4 / 3 // MiB; rows are padded
	for name, want := range map[string]float64{"cube_mib": cube, "layers_mib": layers} {
		if got := r[name].(float64); got < want-1 || got > want*1.02+1 {
			t.Errorf("%s: %v, want %.0f", name, got, want)
		}
	}
}

// Room for launches from the device is charged as the card takes it, and not given where it
// does not fit.
func TestRoomForPendingLaunchesIsCharged(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "contextend", "pending", "--libdir", libdir)
	if err != nil {
		t.Fatal(err)
	}
	const launches = 2 << 20
	mib := float64(launches*256) / (1 << 20) // as the simulated card takes
	if got := r["mib"].(float64); r["first"].(float64) != 0 || got < mib-4 || got > mib+4 {
		t.Errorf("error %v, %v MiB charged, want %v", r["first"], got, mib)
	}
	if r["second"].(float64) != 2 || r["limit"].(float64) != launches {
		t.Errorf("10 GiB more: error %v, limit %v; want out of memory and what it was", r["second"], r["limit"])
	}
	if got := r["after_mib"].(float64); got > mib+4 {
		t.Errorf("%v MiB charged after the refusal, want %v", got, mib)
	}
}

// Managed memory of pools counts as other managed memory does.
func TestManagedPoolsAreCharged(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "contextend", "pools", "--libdir", libdir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"made", "default"} {
		if got := r[name].(float64); got != 7 {
			t.Errorf("%s: %v GiB granted, want 7 of 8 beside a context", name, got)
		}
	}
	if left := r["left_mib"].(float64); left > 544 {
		t.Errorf("%v MiB used when all is freed, want a context", left)
	}
}

// The primary context is there, and paid for once, as long as anybody refers to it: by name
// or by a green context.
func TestGreenContextsKeepThePrimaryOne(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "contextend", "greens", "--libdir", libdir)
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range r["at"].([]any) {
		want := 544.0
		if i == 5 {
			want = 0
		}
		if got.(float64) != want {
			t.Errorf("step %d: %v MiB charged, want %v", i, got, want)
		}
	}
}

// A graph is charged for what it holds at once, not for all that it takes in turn, and
// launched again it needs no more.
func TestAGraphIsChargedForWhatItHoldsAtOnce(t *testing.T) {
	for _, c := range []struct {
		how       string
		mib, last float64
	}{{"turns", 3 << 10, 0}, {"beside", 6 << 10, 0}, {"more", 0, 2}} {
		t.Run(c.how, func(t *testing.T) {
			env, libdir, lib := card(t, oneCard)
			r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "contextend", c.how, "--libdir", libdir)
			if err != nil {
				t.Fatal(err)
			}
			if r["mib"] != c.mib || r["last"] != c.last {
				t.Errorf("%v MiB, error %v; want %v, %v", r["mib"], r["last"], c.mib, c.last)
			}
		})
	}
}

// The primary context is counted once, whichever of two threads that retain it gets it first.
func TestThePrimaryContextIsCountedOnce(t *testing.T) {
	env, cache := limited(t, oneCard, "50")
	slow := exec.CommandContext(t.Context(), "../../build/simgpu/bin/simgpu", "slow", "--call", "cuDevicePrimaryCtxRetain", "--ms", "500", "--count", "1")
	slow.Env = env
	if out, err := slow.CombinedOutput(); err != nil {
		t.Fatalf("simgpu slow: %v\n%s", err, out)
	}
	r, err := run(t, env, "retains", cache)
	if err != nil {
		t.Fatal(err)
	}
	if r["contexts"] != 1.0 {
		t.Errorf("%v contexts are counted, want 1", r["contexts"])
	}
}
