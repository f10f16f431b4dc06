// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"path/filepath"
	"strings"
	"testing"
)

// A limit holds for a program whose kernels become fifty times as long at once, again and
// again (docs/adr/0002). Before, such a job had 38 to 79 % of the card at a limit of 20: work
// that goes by its estimates was never seen to take longer, and what was launched while all
// entries for batches were taken was not in flight for anybody.
func TestKernelsThatBecomeLongAtOnce(t *testing.T) {
	for _, c := range []struct {
		args        string
		least, most float64
	}{
		{"", 0.16, 0.26},
		{"--marks 1", 0.16, 0.26},
		{"--waits 1", 0.16, 0.27},
		{"--long 20 --long-us 5000 --waits 20", 0.16, 0.27},
		// Its calm times are so long that it cannot have more than 0.16.
		{"--calm 1500 --streams 2", 0.10, 0.175},
		// What the last of them took is not yet paid for at the end.
		{"--long 20 --long-us 20000 --secs 8", 0.14, 0.27},
	} {
		t.Run(strings.TrimSpace("phases "+c.args), func(t *testing.T) {
			part := 0.0
			for range tries {
				env, libdir, lib := card(t, oneCard)
				env = append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "CUDA_DEVICE_MEMORY_LIMIT=8G",
					"CUDA_DEVICE_SM_LIMIT=20", "CUDA_DEVICE_MEMORY_SHARED_CACHE="+filepath.Join(t.TempDir(), "cache"))
				result, err := run(t, env, "phases", strings.Fields(c.args)...)
				if err != nil {
					t.Fatal(err)
				}
				if part = result["part"].(float64); part >= c.least { // too much is never the machine's doing
					break
				}
			}
			if part < c.least || part > c.most {
				t.Errorf("%.3f of the card, want %.2f to %.2f", part, c.least, c.most)
			}
		})
	}
}

// A job is not charged the time in which its stream waits for the host, or for an event:
// behind each of these kernels it waits for a millisecond.
func TestWaitsInAStreamAreNotCharged(t *testing.T) {
	if part := charged(t, "20", "phases", "--calm", "40", "--long", "0", "--naps", "1"); part < 1 || part > 1.7 {
		t.Errorf("charged %.3f of what the kernels took, want 1 to 1.7", part)
	}
}
