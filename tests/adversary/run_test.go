// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	uuid = "GPU-5a3c5e4f-0000-4000-8000-000000000001"
	card = "version = 1\ncount = 1\n[model]\nuuid = \"" + uuid + "\"\nmemory = \"80G\"\ncopy_gb_per_s = 0.2097152\n"
)

// Whether a program runs with the library, and so within its limits.
const (
	limited   = true
	unlimited = false
)

// run runs a program for so long on a card of its own.
func run(t *testing.T, p program, long time.Duration, limits bool) (r record, err error) {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	file, state, toml := filepath.Join(dir, "program"), filepath.Join(dir, "state"), filepath.Join(dir, "card.toml")
	if err := os.WriteFile(toml, []byte(card), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(p.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	simgpu := filepath.Join(build, "simgpu/bin/simgpu")
	if out, err := exec.Command(simgpu, "init", "--config", toml, "--state", state).CombinedOutput(); err != nil {
		t.Fatalf("simgpu init (run make first): %v\n%s", err, out)
	}
	meter := exec.Command(simgpu, "used", "--state", state, "--ms", "10")
	read, err := meter.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stop, err := meter.StdinPipe()
	if err == nil {
		err = meter.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	args := []string{file, fmt.Sprint(long.Seconds())}
	if limits && p.fits() {
		args = append(args, "fits")
	}
	cmd := exec.Command(filepath.Join(build, "tests/vgpu-adversary"), args...)
	cmd.Env = append(os.Environ(), "SIMGPU_STATE="+state, "LD_LIBRARY_PATH="+filepath.Join(build, "simgpu/lib"))
	if limits {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+filepath.Join(build, "lib/libvgpu.so"))
		cmd.Env = append(cmd.Env, p.limits(t, dir)...)
	}
	if p.blocking {
		cmd.Env = append(cmd.Env, "CUDA_LAUNCH_BLOCKING=1")
	}
	cmd.Stdout, cmd.Stderr = &out, &errs
	running := make(chan error, 1)
	go func() {
		running <- cmd.Run()
		_ = stop.Close() // the meter ends with it, or has ended
	}()
	for lines := bufio.NewScanner(read); lines.Scan(); {
		var s sample
		if _, err := fmt.Sscan(lines.Text(), &s.now, &s.used, &s.memory, &s.queued, &s.orphaned); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		r.samples = append(r.samples, s)
	}
	if err := meter.Wait(); err != nil {
		t.Errorf("simgpu used: %v", err)
	}
	if err := <-running; err != nil {
		return r, fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	if _, err := fmt.Sscan(out.String(), &r.ring.n, &r.ring.seconds, &r.ring.longest, &r.ring.late); err != nil {
		t.Fatalf("%q: %v", out.String(), err)
	}
	return r, nil
}

// limits is the environment with the program's limits: these themselves, or a grant as gresd writes
// it, of a job whose gate is open until the lease expires.
func (p program) limits(t *testing.T, dir string) []string {
	t.Helper()
	cache := filepath.Join(dir, "cache")
	if !p.lease {
		return []string{
			fmt.Sprintf("CUDA_DEVICE_MEMORY_LIMIT=%dG", p.memory), fmt.Sprintf("CUDA_DEVICE_SM_LIMIT=%d", p.limit),
			"CUDA_DEVICE_MEMORY_SHARED_CACHE=" + cache,
		}
	}
	spec := libvgpu.GrantSpec{JobID: 1, Cards: []libvgpu.GrantCard{{
		UUID: uuid, MemLimit: uint64(p.memory) << 30, MemOverhead: 528 << 20,
		Share: uint32(p.limit), Cores: uint32(p.limit), Mode: libvgpu.ModeHard,
	}}}
	grant, err := libvgpu.CreateGrant(filepath.Join(dir, "grant"), spec)
	if err == nil {
		err = libvgpu.CreateCache(cache, spec, uint32(os.Getuid()), uint32(os.Getgid()))
	}
	var now unix.Timespec
	if err == nil {
		err = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer grant.Close()
	grant.SetSchedule(0, libvgpu.Schedule{
		Cores: uint32(p.limit), WeightPPM: 1e6, LeastPPM: 1e6, LeaseNS: uint64(now.Nano() + int64(lease)),
	})
	return []string{"VGPU_GRANT=" + filepath.Join(dir, "grant"), "VGPU_CACHE=" + cache}
}
