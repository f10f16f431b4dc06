// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Sizes that no card has are refused, and hide nothing that others take meanwhile.
func TestSizesThatNoCardHas(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	slow := exec.CommandContext(t.Context(), "../../build/simgpu/bin/simgpu", "slow", "--call", "cuMemAllocManaged", "--ms", "500", "--count", "2")
	slow.Env = env
	if out, err := slow.CombinedOutput(); err != nil {
		t.Fatalf("simgpu slow: %v\n%s", err, out)
	}
	r, err := run(t, append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "absurd", "managed")
	if err != nil {
		t.Fatal(err)
	}
	if r["error"].(float64) != 2 || r["used_mib"].(float64) < 64 {
		t.Errorf("%v; want error 2, and 64 MiB or more in use", r)
	}
}

// Nor do they take away what is announced of a job without a limit.
func TestSizesThatNoCardHasWithoutALimit(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	cache := filepath.Join(t.TempDir(), "cache")
	there, end := waiting(t, append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "CUDA_DEVICE_SM_LIMIT=50",
		"CUDA_DEVICE_MEMORY_SHARED_CACHE="+cache), "absurd", "linear")
	defer end()
	if e := there(); e != 2 {
		t.Errorf("error %v, want 2", e)
	}
	view, err := libvgpu.ReadCache(cache)
	if err != nil {
		t.Fatal(err)
	}
	if used := view.Cards[0].MemUsed; used < 1<<30 || used > 2<<30 {
		t.Errorf("%d MiB announced, want 1 GiB and a context", used>>20)
	}
}

// All memory of the card that one call unmaps is given back, whatever is mapped between.
func TestAllThatIsUnmappedIsGivenBack(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	r, err := run(t, append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "unmapped")
	if err != nil {
		t.Fatal(err)
	}
	if r["mapped_mib"].(float64) != 1024 || r["left_mib"].(float64) != 0 {
		t.Errorf("%v; want 1024 MiB in use while they are mapped, then none", r)
	}
}
