// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// What a pool keeps counts, whichever pool is current: memory is booked on the one
// that it came from.
func TestThePoolThatIsCurrentPays(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	cmd := exec.Command("../../build/tests/poolswitch", "--libdir", libdir)
	cmd.Env = append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=4G")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var own, other, again int
	if _, err := fmt.Sscan(string(out), &own, &other, &again); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const least, most = 1024, 2048 // a GiB, and the context
	for _, c := range []struct {
		name string
		used int
	}{{"device's own pool", own}, {"one that was made current", other}, {"own one again", again}} {
		if c.used < least || c.used >= most {
			t.Errorf("%s: told %d MiB in use while the pool keeps 1024, want %d to %d", c.name, c.used, least, most)
		}
	}
}

// Memory of a pool counts as long as the program holds it, also when the pool was
// destroyed before, and in more pools than have an entry at first.
func TestMemoryOfAllPoolsCounts(t *testing.T) {
	for _, what := range []string{"destroyed", "many"} {
		t.Run(what, func(t *testing.T) {
			env, libdir, lib := card(t, oneCard)
			const limit = 6 << 10 // MiB; 300 pools of 32 MiB are more
			r, err := run(t, append(env, "LD_PRELOAD="+lib, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT=%dM", limit)), "poolend", what, "--libdir", libdir)
			if err != nil {
				t.Fatal(err)
			}
			// A context and one more do not fit.
			if got := r["taken"].(float64); got > limit || got < limit-1024 {
				t.Errorf("%v MiB taken of a limit of %d", got, limit)
			}
			if r["last"].(float64) != 2 {
				t.Errorf("ended with %v, want out of memory", r["last"])
			}
			if got := r["used_mib"].(float64); got < r["taken"].(float64) {
				t.Errorf("used: %v MiB of %v", got, r["taken"])
			}
			if got := r["after_mib"].(float64); got != 0 {
				t.Errorf("%v MiB are used when all is freed", got)
			}
		})
	}
}

// waiting starts a program that says when it is there and then waits for end, with no call.
func waiting(t *testing.T, env []string, program string, args ...string) (there func() float64, end func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join("../../build/tests", program), args...)
	cmd.Env = env
	hold, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	there = func() float64 {
		var line struct{ Error float64 }
		if err := json.NewDecoder(out).Decode(&line); err != nil {
			t.Errorf("%v: %v", args, err)
		}
		return line.Error
	}
	end = func() {
		_ = hold.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	return there, end
}

// A pool gives memory back to the card when its work is done; other processes of the job
// have it then, though the one that freed it makes no further call.
func TestWhatAPoolGaveBackIsTheJobs(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	env = append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G",
		"CUDA_DEVICE_MEMORY_SHARED_CACHE="+filepath.Join(t.TempDir(), "cache"))
	there, end := waiting(t, env, "poolback", "free", "--libdir", libdir)
	if e := there(); e != 0 {
		t.Fatalf("taking and freeing: error %v", e)
	}
	r, err := run(t, env, "poolback", "take", "--libdir", libdir)
	if err != nil || r["error"].(float64) != 0 {
		t.Errorf("5 GiB of 8 beside a process that has freed 5: %v, error %v", err, r["error"])
	}
	end()
}

// Memory that a process has freed is the job's as soon as the process has waited for that.
func TestProcessesTakeTurnsAtAPool(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G",
		"CUDA_DEVICE_MEMORY_SHARED_CACHE="+filepath.Join(t.TempDir(), "cache")), "poolback", "alternate", "--libdir", libdir)
	if err != nil || r["refused"].(float64) != 0 || r["child"].(float64) != 0 {
		t.Errorf("5 GiB of 8 in turn: %v, %v; want none refused", r, err)
	}
}

// What a graph takes is charged at every moment from before its launch on, also while the
// library asks what the pool of graphs has really taken.
func TestAGraphIsChargedAllTheTime(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	cache := filepath.Join(t.TempDir(), "cache")
	for _, call := range []string{"cuDeviceGetGraphMemAttribute", "cuGraphLaunch"} {
		slow := exec.CommandContext(t.Context(), "../../build/simgpu/bin/simgpu", "slow", "--call", call, "--ms", "50", "--count", "100")
		slow.Env = env
		if out, err := slow.CombinedOutput(); err != nil {
			t.Fatalf("simgpu slow: %v\n%s", err, out)
		}
	}
	env = append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G", "CUDA_DEVICE_MEMORY_SHARED_CACHE="+cache)
	there, end := waiting(t, env, "poolback", "graph", "--libdir", libdir)
	launched := make(chan float64)
	go func() { launched <- there() }()
	const bytes = 5 << 30
	most, least := uint64(0), ^uint64(0) // once it was there
	for done := false; !done; time.Sleep(time.Millisecond) {
		select {
		case e := <-launched:
			if e != 0 {
				t.Errorf("launch: error %v", e)
			}
			done = true
		default:
		}
		view, err := libvgpu.ReadCache(cache)
		if err != nil {
			continue // not made yet
		}
		used := view.Cards[0].MemUsed
		if most = max(most, used); most >= bytes {
			least = min(least, used)
		}
	}
	end()
	if most < bytes || least < bytes {
		t.Errorf("%d MiB charged at most, then %d at least, want 5 GiB from the launch on", most>>20, least>>20)
	}
}

// Memory that is taken in a stream is charged there, unless that stream itself is captured.
func TestACaptureElsewhereHidesNothing(t *testing.T) {
	for _, c := range []struct {
		name               string
		granted, last, mib float64
	}{
		{"beside", 7, 2, 7168}, // 8 GiB less a context
		{"inside", 3, 0, 0},    // charged when the graph is launched
		{"legacy", 0, 906, 0},  // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
	} {
		t.Run(c.name, func(t *testing.T) {
			env, libdir, lib := card(t, oneCard)
			r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "captured", c.name, "--libdir", libdir)
			if err != nil {
				t.Fatal(err)
			}
			if r["granted"] != c.granted || r["last"] != c.last || r["used_mib"] != c.mib {
				t.Errorf("%v GiB granted, error %v, %v MiB used; want %v, %v, %v", r["granted"], r["last"], r["used_mib"], c.granted, c.last, c.mib)
			}
		})
	}
}

// What a pool no longer has is nobody's, also while the library's own thread is just asking for it:
// before, who asked meanwhile was told of it, and was refused memory.
func TestPoolsAreAskedByWhoNeedsToKnow(t *testing.T) {
	env, libdir, lib := card(t, oneCard)
	slow := exec.CommandContext(t.Context(), "../../build/simgpu/bin/simgpu", "slow", "--call", "cuMemPoolGetAttribute", "--ms", "200", "--count", "100")
	slow.Env = env
	if out, err := slow.CombinedOutput(); err != nil {
		t.Fatalf("simgpu slow: %v\n%s", err, out)
	}
	r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "captured", "legacy", "--libdir", libdir, "--later-ms", "100")
	if err != nil || r["used_mib"].(float64) != 0 {
		t.Errorf("%v MiB used, %v; want none", r["used_mib"], err)
	}
}

// Memory that is freed while a dma-buf of a part of it is open counts as a whole until all of them are
// closed.
func TestWhatADescriptorKeepsCounts(t *testing.T) {
	for what, want := range map[string][2]float64{
		"linear": {1024, 1024},
		"small":  {0, 2}, // the piece that it shares with others
		"pool":   {1024, 1024},
		"mapped": {1024, 1024},
	} {
		t.Run(what, func(t *testing.T) {
			env, libdir, lib := card(t, oneCard)
			r, err := run(t, append(env, "LD_PRELOAD="+lib, "CUDA_DEVICE_MEMORY_LIMIT=8G"), "exported", what, "--libdir", libdir)
			if err != nil {
				t.Fatal(err)
			}
			if r["taken"].(float64) != want[0] || r["freed"].(float64) != want[1] || r["closed"].(float64) != 0 {
				t.Errorf("in use when taken, freed, closed: %v MiB", r)
			}
		})
	}
}

// Memory that is freed in a stream is there for another one when the card has come to that, or for what
// waits for it. Till then a pool does not grow above the limit: who asks for more has what is to be freed,
// and his stream waits, as on a card that is full. A pool that is destroyed counts until then.
func TestAPoolWithFreesToComeStaysWithinTheLimit(t *testing.T) {
	const limit = 4 << 10 // MiB
	for _, c := range []struct {
		how           string
		granted, last float64
	}{
		{"held", 6, 0},
		{"turns", 6, 0},
		{"captured", 1, 2}, // no wait, which would spoil the capture
		{"destroyed", 1, 2},
		{"brief", 6, 0}, // counted no longer than that
		{"apart", 1, 0}, // nor does a stream wait where the pool has enough without
		{"other", 6, 0}, // what nobody uses is the card's, and the job's
	} {
		t.Run(c.how, func(t *testing.T) {
			env, libdir, lib := card(t, oneCard)
			r, err := run(t, append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT=%dM", limit)), "poolgrows", c.how)
			if err != nil {
				t.Fatal(err)
			}
			if r["granted"] != c.granted || r["last"] != c.last || r["most_mib"].(float64) > limit || r["capture"].(float64) != 0 || r["after"].(float64) != 0 {
				t.Errorf("%v; want %v times granted, then error %v, the pool within %d MiB, the capture ended with 0, and 3 GiB for who asks at the end", r, c.granted, c.last, limit)
			}
		})
	}
}

// Memory of no pool that is freed in a stream counts until the card has come to that, and no longer.
func TestMemoryIsFreedInAStream(t *testing.T) {
	for how, want := range map[string][2]float64{
		"synced": {4, 0}, // 12 GiB in all, of a limit of 4
		"held":   {1, 2},
	} {
		for _, kind := range []string{"linear", "managed"} {
			t.Run(kind+" "+how, func(t *testing.T) {
				env, libdir, lib := card(t, oneCard)
				r, err := run(t, append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "CUDA_DEVICE_MEMORY_LIMIT=4G"), "freeasync", kind, how)
				if err != nil {
					t.Fatal(err)
				}
				if r["granted"] != want[0] || r["last"] != want[1] || r["left_mib"].(float64) != 0 {
					t.Errorf("%v; want %v times granted, then error %v, and no MiB left", r, want[0], want[1])
				}
			})
		}
	}
}

// A capture ends with its stream, its context or the thread of its stream. After that, pools give unused
// memory back.
func TestACaptureEndsWithItsStream(t *testing.T) {
	for _, how := range []string{"destroy", "reset", "release", "thread", "streams", "twice"} {
		t.Run(how, func(t *testing.T) {
			env, libdir, lib := card(t, oneCard)
			r, err := run(t, append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "CUDA_DEVICE_MEMORY_LIMIT=4G"), "endcapture", how)
			if err != nil {
				t.Fatal(err)
			}
			if r["first"].(float64) != 0 || r["last"].(float64) != 0 {
				t.Errorf("%v; want no errors", r)
			}
		})
	}
}

// An allocation that waits for frees of other streams blocks no other thread, and its stream does not wait
// if the program forbids that.
func TestAnAllocationNearTheLimitBlocksNothingElse(t *testing.T) {
	for how, granted := range map[string]float64{"full": 0, "forbidden": 2} {
		t.Run(how, func(t *testing.T) {
			env, libdir, lib := card(t, oneCard)
			r, err := run(t, append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "CUDA_DEVICE_MEMORY_LIMIT=4G"), "pooldeps", how)
			if err != nil {
				t.Fatal(err)
			}
			if r["granted"] != granted || r["last"].(float64) != 0 {
				t.Errorf("%v; want granted %v, last 0", r, granted)
			}
		})
	}
}
