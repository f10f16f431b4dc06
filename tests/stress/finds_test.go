// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// However a program comes by the driver's functions, its memory is held and its work is counted.
func TestEveryWayToFindTheDriverIsHeld(t *testing.T) {
	for _, c := range []struct{ name, way, plugin, wrap, set string }{
		{"dlsym", "dlsym", "", "", ""},
		{"a preload that wraps the next dlsym of 2.34", "dlsym", "", "GLIBC_2.34", ""},
		{"a preload that wraps the next dlsym of 2.2.5", "dlsym", "", "GLIBC_2.2.5", ""},
		{"a preload that wraps the dlsym of libc", "dlsym", "", "libc", ""},
		{"deepbind: linked to the driver", "deepbind", "stress-linked.so", "", ""},
		{"deepbind: opens the driver", "deepbind", "stress-opens.so", "", ""},
		{"dlmopen of the driver", "dlmopen", "", "", ""},
		{"dlmopen: linked to the driver", "space", "stress-linked.so", "", ""},
		{"dlmopen: opens the driver", "space", "stress-opens.so", "", ""},
		{"closed more often than opened", "closed", "", "", ""},
		{"all descriptors become others", "closefrom", "", "", ""},
		{"in the child of a raw clone", "clone", "", "", ""},
		{"a copy of the driver after the driver", "copy", "copy", "", ""},
		{"a copy of the driver and the driver at once", "second", "copy", "", ""},
		{"a wrapper of the driver", "dlsym", "forward", "", ""},
		{"built with AddressSanitizer", "address", "", "", "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0"},
		{"built with ThreadSanitizer", "thread", "", "", ""},
		{"built with LeakSanitizer", "leak", "", "", "LSAN_OPTIONS=detect_leaks=0"},
		{"built with UndefinedBehaviorSanitizer", "undefined", "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			env, cache := limited(t, oneCard, "50")
			dir, err := filepath.Abs("../../build/tests")
			if err != nil {
				t.Fatal(err)
			}
			if c.wrap != "" {
				env = append(preloads(t, env, "stress-wrap.so"), "WRAP_BY="+c.wrap)
			}
			plugin := filepath.Join(dir, c.plugin)
			switch c.plugin {
			case "copy":
				plugin = copyOf(t, "libcuda.so.1")
			case "forward":
				env = append(env, "LD_LIBRARY_PATH="+plugin, "FORWARD_TO="+copyOf(t, "libcuda.so.1"))
			}
			program, way := "finds", c.way
			if strings.HasPrefix(c.name, "built with") {
				program, way = "finds-"+c.way, "dlsym"
			}
			r, err := run(t, append(env, c.set), program, "--way", way, "--plugin", plugin)
			if err != nil {
				t.Fatal(err)
			}
			if got := r["granted"].(float64); got != 7 {
				t.Errorf("%v GiB granted of a limit of 8 with a context, want 7", got)
			}
			view, err := libvgpu.ReadCache(cache)
			if err != nil || len(view.Slots) != 1 {
				t.Fatalf("%d slots, %v; want the one of the program", len(view.Slots), err)
			}
			if n := view.Slots[0].Cards[0].Launches; n < 100 {
				t.Errorf("%d launches counted of 100", n)
			}
		})
	}
}

// Limits of the environment that cannot be counted give no memory: without room for its cache the process
// gets no context.
func TestAnEnvironmentsLimitWithoutRoomForItsCacheRefuses(t *testing.T) {
	env, _ := limited(t, oneCard, "50")
	r, err := run(t, env, "finds", "--way", "crowded")
	if err != nil || r["refused"] != 1.0 {
		t.Errorf("%v, %v; want no context", r, err)
	}
}

// copyOf returns the path of a copy of a library of the simulated card, which the loader does not take for
// the library itself.
func copyOf(t *testing.T, lib string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("../../build/simgpu/lib", lib))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "mine.so")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// preloads puts a preload of the user's before the library.
func preloads(t *testing.T, env []string, lib string) []string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../../build/tests", lib))
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range env {
		if ours, found := strings.CutPrefix(v, "LD_PRELOAD="); found {
			env[i] = "LD_PRELOAD=" + path + ":" + ours
		}
	}
	return env
}

// A version that the library does not know may take other arguments than its hook: one of what
// takes memory is refused, as if the driver did not have it, and each is counted.
func TestVersionsThatTheLibraryDoesNotKnow(t *testing.T) {
	env, cache := limited(t, oneCard, "50")
	r, err := run(t, env, "newer")
	if err != nil {
		t.Fatal(err)
	}
	const notFound = 500 // CUDA_ERROR_NOT_FOUND
	for name, want := range map[string]float64{
		"today": 1, "old": 1, "newer": 0, "newer_status": r["none_status"].(float64), "by_name": notFound, "waits": 1,
	} {
		if got := r[name].(float64); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	view, err := libvgpu.ReadCache(cache)
	if err != nil || len(view.Slots) != 1 || view.Slots[0].UnknownSymbols != 3 {
		t.Errorf("%v, %+v; want one slot that counts 3", err, view.Slots)
	}
}

// The driver's cuGetProcAddress may return functions that libcuda does not export. libvgpu has no hook for
// them, so it refuses them and names the first one on stderr.
func TestADriverOfUnknownFunctionsIsNamed(t *testing.T) {
	env, _ := limited(t, oneCard, "50")
	dir, err := filepath.Abs("../../build/tests/forward")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("../../build/tests/vgpu-worker", "--via", "getproc", "--alloc", "12G")
	cmd.Env = append(env, "LD_LIBRARY_PATH="+dir, "FORWARD_TO="+copyOf(t, "libcuda.so.1"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err == nil {
		t.Errorf("it ran: %s", out)
	}
	if n := strings.Count(stderr.String(), "this libvgpu.so does not know the driver's function, and refuses it"); n != 1 {
		t.Errorf("stderr %q, want the refused function once", &stderr)
	}
}

// A thread that loads a library has the loader's lock, and its constructor may need the driver
// while another thread looks for the driver's functions.
func TestConstructorsMayAskForTheDriver(t *testing.T) {
	env, _ := limited(t, oneCard, "50")
	dir, err := filepath.Abs("../../build/tests")
	if err != nil {
		t.Fatal(err)
	}
	env = append(env, "LD_LIBRARY_PATH="+filepath.Join(dir, "stub"))
	r, err := run(t, env, "together", "--plugin", filepath.Join(dir, "stress-once.so"))
	if err != nil || r["hung"].(float64) != 0 || r["failed"].(float64) != 0 {
		t.Errorf("%v: %v; want none hung or failed", err, r)
	}
}

// Without the driver a program finds none of its names, as without the library.
func TestNoNameIsFoundWithoutADriver(t *testing.T) {
	env, _ := limited(t, oneCard, "50")
	r, err := run(t, env, "finds", "--way", "none")
	if err != nil || r["default"].(float64) != 0 || r["next"].(float64) != 0 || r["other"].(float64) != 1 {
		t.Errorf("%v, %v; want only what is no name of the driver's", r, err)
	}
}
