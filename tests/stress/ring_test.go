// SPDX-License-Identifier: Apache-2.0

package stress

import "testing"

// Kernels of a job's processes wait for each other. The limit delays a launch, and another process's
// kernel spins meanwhile. That time counted as work, so each round took twice as long as the last one.
func TestKernelsThatWaitForEachOtherDoNotWaitLonger(t *testing.T) {
	for _, c := range []struct{ limit, graph string }{{"50", "0"}, {"20", "0"}, {"50", "1"}, {"20", "1"}} {
		t.Run("limit "+c.limit+" graph "+c.graph, func(t *testing.T) {
			env, _ := limited(t, oneCard, c.limit)
			result, err := run(t, env, "ring", "--rounds", "100", "--graph", c.graph, "--secs", "60")
			if err != nil {
				t.Fatal(err)
			}
			if result["rounds"].(float64) != 100 {
				t.Fatalf("%v of 100 rounds in a minute", result["rounds"])
			}
			tenths := result["tenths"].([]any)
			first, last := tenths[4].(float64), tenths[9].(float64)
			if last-first > 3*first+0.5 {
				t.Errorf("the first 50 rounds took %.2f s, the next 50 took %.2f s", first, last-first)
			}
		})
	}
}
