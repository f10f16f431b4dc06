// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/known"
)

// A limit holds if the launches of one kernel differ in length and the host is slow. The program got
// 71 % of the card at a limit of 20 %: the time of its long launches counted as the host's time.
func TestLaunchesThatDifferKeepTheLimit(t *testing.T) {
	for _, args := range []string{
		"--us 1,1,1,100 --pause-us 25",
		"--us 1,100 --pause-us 50",
		"--us 1,1,1,100 --pause-us 25 --order random",
		"--us 1,1,1,1,1,1,1,1,1,1000 --pause-us 50 --order burst",
		"--us 1,1,1,100 --pause-us 25 --graph 1",
		"--us 2,2,2000,2,2,2000 --pause-us 800 --order random --streams 2",
		"--us 50,10000 --pause-us 5000 --order random --streams 4",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			env, _ := limited(t, oneCard, "20")
			result, err := run(t, env, "mixed", append(strings.Fields(args), "--secs", "6")...)
			if err != nil {
				t.Fatal(err)
			}
			ofCard(t, result["part"].(float64), 0.01, 0.23, result["late"].(float64))
		})
	}
}

// Busy streams beyond the lanes of the gate pay for each other.
func TestManyStreamsHaveTheirLimit(t *testing.T) {
	known.Fault(t, "F26")
	env, _ := limited(t, oneCard, "30")
	result, err := run(t, env, "mixed", "--us", "20", "--pause-us", "1", "--streams", "300", "--secs", "5")
	if err != nil {
		t.Fatal(err)
	}
	if part := result["part"].(float64); part < 0.27 {
		t.Errorf("%.3f of the card, limit 0.30, want at least 0.27", part)
	}
}

// The wait for the budget comes before the first of two events that time a launch, and not between
// them: programs that choose the fastest of several kernels measure so.
func TestEventsTimeTheKernelAndNotTheWait(t *testing.T) {
	for _, limit := range []string{"20", "50"} {
		t.Run(limit, func(t *testing.T) {
			env, _ := limited(t, oneCard, limit)
			result, err := run(t, env, "mixed", "--us", "1300", "--pause-us", "0", "--timed", "1", "--secs", "3")
			if err != nil {
				t.Fatal(err)
			}
			if p90 := result["p90"].(float64); p90 > 1.1+result["late"].(float64) {
				t.Errorf("one of ten launches took %.2f times its length, want at most 1.1; %.3f of the time without a processor", p90, result["late"])
			}
		})
	}
}
