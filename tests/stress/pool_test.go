// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"fmt"
	"os/exec"
	"testing"
)

// What a pool keeps counts, whichever pool is current: memory is booked on the one
// that it came from.
func TestThePoolThatIsCurrentPays(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	cmd := exec.Command("../../build/tests/poolswitch", "--libdir", libdir)
	cmd.Env = append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=4G")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var own, other, again int
	if _, err := fmt.Sscan(string(out), &own, &other, &again); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const least, most = 1024, 2048 // a GiB, and the context
	for _, c := range []struct {
		name string
		used int
	}{{"device's own pool", own}, {"one that was made current", other}, {"own one again", again}} {
		if c.used < least || c.used >= most {
			t.Errorf("%s: told %d MiB in use while the pool keeps 1024, want %d to %d", c.name, c.used, least, most)
		}
	}
}

// Memory of a pool counts as long as the program holds it, also when the pool was
// destroyed before, and in more pools than have an entry at first.
func TestMemoryOfAllPoolsCounts(t *testing.T) {
	for _, what := range []string{"destroyed", "many"} {
		t.Run(what, func(t *testing.T) {
			env, libdir, lib := card(t, oneCard)
			const limit = 6 << 10 // MiB; 300 pools of 32 MiB are more
			r, err := run(t, append(env, "LD_PRELOAD="+lib, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT=%dM", limit)), "poolend", what, "--libdir", libdir)
			if err != nil {
				t.Fatal(err)
			}
			// A context and one more do not fit.
			if got := r["taken"].(float64); got > limit || got < limit-1024 {
				t.Errorf("%v MiB taken of a limit of %d", got, limit)
			}
			if r["last"].(float64) != 2 {
				t.Errorf("ended with %v, want out of memory", r["last"])
			}
			if got := r["used_mib"].(float64); got < r["taken"].(float64) {
				t.Errorf("used: %v MiB of %v", got, r["taken"])
			}
			if got := r["after_mib"].(float64); got != 0 {
				t.Errorf("%v MiB are used when all is freed", got)
			}
		})
	}
}
