// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"strings"
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

// A job below its limit is charged what it uses, also if its kernels become longer or differ in
// length.
func TestPacedWorkIsCharged(t *testing.T) {
	for _, lengths := range []string{"steady", "grow", "random"} {
		t.Run(lengths, func(t *testing.T) {
			t.Parallel()
			if part := charged(t, "80", "paced", "--lengths", lengths); part < 0.93 || part > 1.25 {
				t.Errorf("charged %.3f of what the kernels took, want 0.93 to 1.25", part)
			}
		})
	}
}

// A job whose host takes longer to launch kernels than the card to run them is measured launch by
// launch. It pays for its kernels, and for the start and the measurement of each kernel. It does
// not pay while the card waits for the host: then these programs would pay 2.6, 4.8 and 8.5.
func TestASlowHostPaysForItsLaunchesOnly(t *testing.T) {
	for _, c := range []struct {
		args string
		most float64
	}{
		{"", 2.2},
		{"--row 1 --compute-us 15", 3.4},
		{"--row 1 --compute-us 30 --longer 20", 4}, // its kernels become shorter after 0.3 s
	} {
		t.Run(strings.TrimSpace("tokens "+c.args), func(t *testing.T) {
			t.Parallel()
			part := chargedOn(t, oneCard+"kernel_latency_us = 1\n", "20", "tokens", strings.Fields(c.args)...)
			if part < 1 || part > c.most {
				t.Errorf("charged %.3f of what the kernels took, want 1 to %.1f", part, c.most)
			}
		})
	}
}

// Kernels that become longer are charged what they take, so that a limit holds.
func TestLongerKernelsAreChargedMore(t *testing.T) {
	t.Parallel()
	if part := chargedOn(t, oneCard+"kernel_latency_us = 1\n", "10", "tokens",
		"--row", "1", "--compute-us", "60", "--later", "5"); part < 1 || part > 1.7 {
		t.Errorf("charged %.3f of what the kernels took, want 1 to 1.7", part)
	}
}
