// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
)

// hardJob is a grant of 20 % of a simulated card whose gate gresd has opened, the environment
// that names it, and its cache.
func hardJob(t *testing.T) (grant *libvgpu.Grant, env []string, cache string) {
	t.Helper()
	env, libdir, lib := card(t, oneCard)
	m, err := simgpu.Open(strings.TrimPrefix(env[len(env)-1], "SIMGPU_STATE="))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cache = filepath.Join(dir, "cache")
	spec := libvgpu.GrantSpec{JobID: 1, Cards: []libvgpu.GrantCard{{
		UUID: m.Status()[0].UUID, MemLimit: 8 << 30, Share: 20, Cores: 20, Mode: libvgpu.ModeHard,
	}}}
	grant, err = libvgpu.CreateGrant(filepath.Join(dir, "grant"), spec)
	if err == nil {
		err = libvgpu.CreateCache(cache, spec, uint32(os.Getuid()), uint32(os.Getgid()))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = grant.Close() })
	s := grant.Schedule(0)
	s.Gate = 0
	grant.SetSchedule(0, s)
	return grant, append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "VGPU_GRANT="+filepath.Join(dir, "grant"), "VGPU_CACHE="+cache), cache
}

// A program with many thread-local variables is held as any other when gresd shuts the gate.
func TestLargeThreadLocalVariablesLeaveRoomForTheWatcher(t *testing.T) {
	grant, env, _ := hardJob(t)
	s := grant.Schedule(0)
	timer := time.AfterFunc(300*time.Millisecond, func() {
		s.Gate = libvgpu.GateBudget
		grant.SetSchedule(0, s)
	})
	defer timer.Stop()
	result, err := run(t, env, "watched", "--secs", "2")
	if err != nil {
		t.Fatal(err)
	}
	if result["watcher"].(float64) != 1 || result["per_second"].(float64) > 250 {
		t.Errorf("%v: want a watcher, and at most half of the 500 kernels that a whole card runs in a second", result)
	}
}

// Where no thread is to be had nobody would shut the gate: it is shut from the start, which
// the user and gresd are told.
func TestWithoutAWatcherTheGateHolds(t *testing.T) {
	_, env, cache := hardJob(t)
	cmd := exec.Command("../../build/tests/watched", "--secs", "2", "--no-thread", "1")
	cmd.Env = env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	if got := errs.String(); strings.Count(got, "vgpu: watcher: no thread can be started") != 1 {
		t.Errorf("stderr %q", got)
	}
	r := decode(t, out.Bytes())
	if r["watcher"].(float64) != 0 || r["per_second"].(float64) > 170 {
		t.Errorf("%v: want no watcher, and about 100 kernels a second", r)
	}
	view, err := libvgpu.ReadCache(cache)
	if err != nil || len(view.Slots) != 1 || view.Slots[0].Flags&libvgpu.SlotUnwatched == 0 {
		t.Errorf("%+v, %v: want the flag", view.Slots, err)
	}
}
