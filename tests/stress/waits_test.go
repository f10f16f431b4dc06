// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// A host that waits for its last work leaves the card idle, and is counted; one that
// waits for the last but one keeps the card busy, and is not.
func TestWhichWaitsAreCounted(t *testing.T) {
	// It calibrates first, and waits for each kernel; then it keeps some in flight.
	brief, long := waits(t, "0.1"), waits(t, "2.1")
	if brief < 300 {
		t.Errorf("%d waits counted while the card was idle after each, want 300 and more", brief)
	}
	if more := int(long) - int(brief); more > 500 {
		t.Errorf("%d waits counted in 2 s in which the card was always busy, of 2000", more)
	}
}

// A thread that waits for its own default stream leaves the work of other streams alone: the card is not
// idle, and the batches of these streams go on.
func TestACopyInAThreadsOwnStreamLeavesOtherStreamsAlone(t *testing.T) {
	env, cache := limited(t, oneCard, "100")
	r, err := run(t, env, "losses")
	if err != nil {
		t.Fatal(err)
	}
	view, err := libvgpu.ReadCache(cache)
	if err != nil || len(view.Slots) != 1 {
		t.Fatalf("%d slots, %v; want the one of the program", len(view.Slots), err)
	}
	copies, idle := r["copies"].(float64), r["idle"].(float64)
	if n := float64(view.Slots[0].Cards[0].Syncs); n > idle+copies/4 {
		t.Errorf("%v waits for an idle card in %v copies, in %v of which it was idle", n, copies, idle)
	}
}

// gresd takes a process for busy while its count of launches grows. The count grows while the host waits
// for a long kernel.
func TestAHostThatWaitsForALongKernelLooksBusy(t *testing.T) {
	j := newMachine(t, oneCard).job(1, 8*gib, libvgpu.Schedule{Cores: 20})
	p := j.start(j.env, "--us", "2000000", "--queued", "1")
	p.does("work", "result")
	p.eventually("a launch", func() bool { return j.slot().Cards[0].Launches > 0 })
	before := j.slot().Cards[0].Launches
	time.Sleep(time.Second)
	if more := j.slot().Cards[0].Launches - before; more < 10 {
		t.Errorf("%d launches counted in a second of one kernel, want about 20", more)
	}
}

func waits(t *testing.T, seconds string) uint32 {
	t.Helper()
	env, libdir, lib := card(t, oneCard)
	file := filepath.Join(t.TempDir(), "cache")
	cmd := exec.Command("../../build/tests/vgpu-worker", "--inflight", "4", "--kernel-us", "1000", "--saturate", seconds)
	cmd.Env = append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "CUDA_DEVICE_MEMORY_LIMIT=8G", "CUDA_DEVICE_MEMORY_SHARED_CACHE="+file)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	view, err := libvgpu.ReadCache(file)
	if err != nil || len(view.Slots) != 1 {
		t.Fatalf("%d slots, %v; want the one of the worker", len(view.Slots), err)
	}
	return view.Slots[0].Cards[0].Syncs
}

// The library's own marks in a stream wait when it is full, as those of the program do. Other
// threads go on meanwhile: what the stream waits for may come from them.
func TestFullStreamHoldsNoOtherThread(t *testing.T) {
	for how, rounds := range map[string]float64{"launch": 10, "copy": 26, "held": 26} {
		t.Run(how, func(t *testing.T) {
			env, _ := limited(t, oneCard, "50")
			if r, err := run(t, env, "full", how); err != nil || r["rounds"].(float64) != rounds {
				t.Errorf("%v, %v; want %v rounds", r, err, rounds)
			}
		})
	}
}

// A profiler's callback comes from within the library's own calls of the driver, and may make any
// call itself.
func TestCallbackOfAProfilerMayCallTheDriver(t *testing.T) {
	env, _ := limited(t, oneCard, "50")
	r, err := run(t, env, "profiled")
	if err != nil || r["own"].(float64) == 0 {
		t.Fatalf("%v, %v; want some calls of the library's own told", r, err)
	}
	// From within one nobody could measure it.
	if r["launched"].(float64) != 0 || r["refused"].(float64) == 0 {
		t.Errorf("%v of its kernels were launched within a call of the library's, %v refused; want none launched",
			r["launched"], r["refused"])
	}
}

// Work that waits for the host does not end, so that a launch may be what it waits for. Such launches
// have the job's part of the time even so.
func TestWorkThatNeverEndsDoesNotLiftTheLimit(t *testing.T) {
	env, _ := limited(t, oneCard, "20")
	r, err := run(t, env, "behind", "200000", "5")
	if err != nil {
		t.Fatal(err)
	}
	if part := r["part"].(float64); part > 0.3 {
		t.Errorf("%.2f of the card, limit 0.20", part)
	}
}

// A program destroys a full stream, or its context, while the library waits for room in the stream to record an
// event. The program continues at once.
func TestFullStreamMayBeDestroyed(t *testing.T) {
	for _, what := range []string{"stream", "context"} {
		t.Run(what, func(t *testing.T) {
			env, _ := limited(t, oneCard, "90")
			r, err := run(t, env, "undone", what)
			if err != nil || r["rounds"].(float64) != 8 {
				t.Fatalf("%v, %v; want 8 rounds", r, err)
			}
			for _, ms := range r["ms"].([]any) {
				if ms.(float64) > 40 {
					t.Errorf("%v ms for the end of the %s, want at most 40", ms, what)
				}
			}
		})
	}
}
