// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
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
		{"--long 50 --each 1", 0.16, 0.25}, // was 0.30
		// Its calm times are so long that it cannot have more than 0.16.
		{"--calm 1500 --streams 2", 0.10, 0.175},
		// What the last of them took is not yet paid for at the end.
		{"--long 20 --long-us 20000 --secs 8", 0.14, 0.27},
	} {
		t.Run(strings.TrimSpace("phases "+c.args), func(t *testing.T) {
			t.Parallel()
			partOf(t, c.least, c.most, "phases", strings.Fields(c.args)...)
		})
	}
}

// partOf runs a program at a limit of 20 and checks which part of the card it had.
func partOf(t *testing.T, least, most float64, program string, args ...string) {
	t.Helper()
	env, _ := limited(t, oneCard, "20")
	result, err := run(t, env, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	ofCard(t, result["part"].(float64), least, most, result["late"].(float64))
}

// A job is not charged the time in which its stream waits for the host, or for an event:
// behind each of these kernels it waits for a millisecond.
func TestWaitsInAStreamAreNotCharged(t *testing.T) {
	t.Parallel()
	args := []string{"--calm", "40", "--long", "0", "--naps", "1"}
	isCharged(t, oneCard, "20", 1, 1.7, "phases", args...)
	// Nor with another process of the job beside, whose time is in that of each.
	env, file := limited(t, oneCard, "20")
	did := make(chan float64, 2)
	for range cap(did) {
		go func() {
			var ns float64
			defer func() { did <- ns }()
			result, err := run(t, env, "phases", args...)
			if err != nil {
				t.Error(err)
				return
			}
			ns = result["done_ns"].(float64)
		}()
	}
	done := <-did + <-did
	view, err := libvgpu.ReadCache(file)
	if err != nil {
		t.Fatal(err)
	}
	if part := float64(view.Cards[0].Budget.ChargedNS) / done; part < 0.9 || part > 2 {
		t.Errorf("two processes were charged %.3f of what their kernels took, want 0.9 to 2", part)
	}
}

// Copies over the bus are no work of the card's multiprocessors, and what two streams that wait
// for each other do is charged once. Before, jobs with copies before their kernels had 0.12 of
// a card at 20, and 0.02 instead of 0.09 where the copies take most of the time.
func TestWhatIsBetweenKernels(t *testing.T) {
	for _, c := range []struct {
		args        string
		least, most float64
	}{
		{"--what htod", 0.18, 0.22},
		{"--what dtoh", 0.18, 0.22},
		{"--what unified", 0.18, 0.22},
		{"--what pipe --us 20", 0.17, 0.22}, // were what was seen to end later taken to be later: 0.32
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			partOf(t, c.least, c.most, "between", append(strings.Fields(c.args), "--secs", "3")...)
		})
	}
	// The bus, and the processor that copies, allow less of the card than the limit does. So no launch waits.
	t.Run("--what htod --us 20", func(t *testing.T) {
		t.Parallel()
		env, file := limited(t, oneCard, "20")
		result, err := run(t, env, "between", "--what", "htod", "--us", "20", "--secs", "3")
		if err != nil {
			t.Fatal(err)
		}
		view, err := libvgpu.ReadCache(file)
		if err != nil {
			t.Fatal(err)
		}
		budget := view.Cards[0].Budget
		if result["done_ns"].(float64) == 0 || float64(budget.WaitNS) > 3e7+3e9*result["late"].(float64) {
			t.Errorf("launches waited %d ms in 3 s, want at most 30; %.3f of the time without a processor", budget.WaitNS/1e6, result["late"])
		}
	})
}

// A limit holds for a job of many short programs: what their last kernels took is charged before
// they end. Before, such a job had 41 to 82 % of the card at a limit of 20.
func TestShortProgramsAreCharged(t *testing.T) {
	for _, args := range []string{"--long 1 --long-us 100000", "--long 3 --long-us 5000"} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			env, _ := limited(t, oneCard, "20")
			done, programs, began := 0.0, 0, time.Now()
			for time.Since(began) < 4*time.Second {
				result, err := run(t, env, "phases", append(strings.Fields(args), "--calm", "0", "--secs", "0.001")...)
				if err != nil {
					t.Fatal(err)
				}
				done += result["done_ns"].(float64)
				programs++
			}
			part := done / float64(time.Since(began))
			t.Logf("%d programs, %.3f of the card", programs, part)
			// A busy machine starts fewer of them; the last one is not yet paid for.
			if part > 0.25 || programs < 4 {
				t.Errorf("%.3f of the card in %d programs, want at most 0.25 in at least 4", part, programs)
			}
		})
	}
}
