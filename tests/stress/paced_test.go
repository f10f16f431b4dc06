// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"path/filepath"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// charged runs a program with a limit and returns what it was charged, as a part of what its
// kernels took.
func charged(t *testing.T, limit, program string, args ...string) float64 {
	t.Helper()
	env, libdir, lib := card(t, oneCard)
	file := filepath.Join(t.TempDir(), "cache")
	env = append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "CUDA_DEVICE_MEMORY_LIMIT=8G",
		"CUDA_DEVICE_SM_LIMIT="+limit, "CUDA_DEVICE_MEMORY_SHARED_CACHE="+file)
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
	part := 0.0
	for range 3 { // a busy machine makes the host of this program slower still
		if part = charged(t, "20", "tokens"); part >= 1 && part <= 1.4 {
			return
		}
	}
	t.Errorf("charged %.3f of what the kernels took, want 1 to 1.4", part)
}
