// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// isCharged runs a program with a limit for 4 s, and checks what it was charged, as a part of what its
// kernels took. Without a processor for a part of the time, the host takes longer for the same launches.
func isCharged(t *testing.T, config, limit string, least, most float64, program string, args ...string) {
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
	most /= 1 - result["late"].(float64)
	t.Logf("charged %.3f of what the kernels took", part)
	if part < least || part > most {
		t.Errorf("charged %.3f of what the kernels took, want %.2f to %.2f", part, least, most)
	}
}

// A job below its limit is charged what it uses, also if its kernels become longer or differ in
// length.
func TestPacedWorkIsCharged(t *testing.T) {
	for _, lengths := range []string{"steady", "grow", "random"} {
		t.Run(lengths, func(t *testing.T) {
			t.Parallel()
			isCharged(t, oneCard, "80", 0.93, 1.25, "paced", "--lengths", lengths)
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
			isCharged(t, oneCard+"kernel_latency_us = 1\n", "20", 1, c.most, "tokens", strings.Fields(c.args)...)
		})
	}
}

// Kernels that become longer are charged what they take, so that a limit holds.
func TestLongerKernelsAreChargedMore(t *testing.T) {
	t.Parallel()
	isCharged(t, oneCard+"kernel_latency_us = 1\n", "10", 1, 1.7, "tokens",
		"--row", "1", "--compute-us", "60", "--later", "5")
}
