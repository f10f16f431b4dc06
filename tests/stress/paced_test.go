// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// charged runs a program with a limit and returns what it was charged, as a part of what its
// kernels took.
func charged(t *testing.T, limit, program string, args ...string) float64 {
	t.Helper()
	return chargedOn(t, oneCard, limit, program, args...)
}

// chargedOn is the same on another card, for 4 s unless the arguments say otherwise.
func chargedOn(t *testing.T, config, limit, program string, args ...string) float64 {
	t.Helper()
	env, file := limited(t, config, limit)
	result, err := run(t, env, program, append(args, "--secs", "4")...)
	if err != nil {
		t.Fatal(err)
	}
	view, err := libvgpu.ReadCache(file)
	if err != nil {
		t.Fatal(err)
	}
	part := float64(view.Cards[0].Budget.ChargedNS) / result["done_ns"].(float64)
	t.Logf("charged %.3f of what the kernels took", part)
	return part
}

// A job far below its limit is charged what it uses, although most of its short kernels
// are not measured: also when they become longer, and when their lengths differ.
func TestWorkThatIsNotMeasuredIsCharged(t *testing.T) {
	for _, lengths := range []string{"steady", "grow", "random"} {
		t.Run(lengths, func(t *testing.T) {
			t.Parallel()
			if part := charged(t, "80", "paced", "--lengths", lengths); part < 0.93 || part > 1.25 {
				t.Errorf("charged %.3f of what the kernels took, want 0.93 to 1.25", part)
			}
		})
	}
}

// A job whose host takes longer to launch kernels than the card for them is charged what
// they take, and what the card needs to begin one after another; not the time in which it
// waits for the host. Before single launches were measured that was 1.5.
func TestTimeOfTheHostIsNotCharged(t *testing.T) {
	t.Parallel()
	if part := charged(t, "20", "tokens"); part < 1 || part > 1.4 {
		t.Errorf("charged %.3f of what the kernels took, want 1 to 1.4", part)
	}
}

// Nor is the time in which the host loses its processor. Each such time while it recorded an
// event was taken for work, and made all estimates longer for a second or so: that was 2.2
// to 2.3, and a job that uses a fifth of the card was held back by a limit of 30 (H200: a
// decode loop did half of what it does alone, now and then).
func TestLostTimeOfTheHostIsNotCharged(t *testing.T) {
	for _, stop := range []string{"300", "3000"} {
		t.Run(stop+" us", func(t *testing.T) {
			t.Parallel()
			chargedLikeTokens(t, "15", "--stop-us", stop)
		})
	}
}

// Nor is what kernels took before they became shorter. Estimates of more than 20 us were never
// measured alone, so a batch's time, which is the host's, was all that they came down to: 3.8.
func TestShorterKernelsAreChargedLess(t *testing.T) {
	t.Parallel()
	chargedLikeTokens(t, "30", "--longer", "20")
}

// Nor less than they take since they became longer, so that a limit holds: a batch in which the
// card can have waited for the host all the time says nothing of that. It was 0.32, and the
// job had 29 % of the card. A busy machine takes a second or two to see it: so long a run.
func TestLongerKernelsAreChargedMore(t *testing.T) {
	t.Parallel()
	if part := chargedOn(t, oneCard+"kernel_latency_us = 1\n", "10", "tokens",
		"--secs", "10", "--row", "1", "--compute-us", "60", "--later", "5"); part < 0.85 || part > 1.7 {
		t.Errorf("charged %.3f of what the kernels took, want 0.85 to 1.7", part)
	}
}

func chargedLikeTokens(t *testing.T, computeUS string, args ...string) {
	t.Helper()
	args = append([]string{"--row", "1", "--compute-us", computeUS}, args...)
	if part := chargedOn(t, oneCard+"kernel_latency_us = 1\n", "30", "tokens", args...); part < 1 || part > 1.7 {
		t.Errorf("charged %.3f of what the kernels took, want 1 to 1.7", part)
	}
}
