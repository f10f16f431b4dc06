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
