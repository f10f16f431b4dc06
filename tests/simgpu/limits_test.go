// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// oneGrant is job 7 with 4 GiB of a card.
type oneGrant string

func (oneGrant) Open() []uint32 { return []uint32{7} }

func (uuid oneGrant) Spec(uint32) (libvgpu.GrantSpec, bool) {
	return libvgpu.GrantSpec{JobID: 7, Cards: []libvgpu.GrantCard{{UUID: string(uuid), MemLimit: 4 << 30}}}, true
}

// unified is where this machine has cgroup v2.
func unified(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
			return dir
		}
	}
	t.Skip("no cgroup v2 is mounted")
	return ""
}

// cgroup makes the folder of job 7 as Slurm would, and removes it.
func cgroup(t *testing.T, root string) string {
	t.Helper()
	scope := filepath.Join(root, "system.slice", filepath.Base(filepath.Dir(t.TempDir()))+"_slurmstepd.scope")
	job := filepath.Join(scope, "job_7")
	err := os.MkdirAll(job, 0o755)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		t.Skip("needs root, and cgroups that can be written")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.Remove(job) // a test may have done so
		if err := os.Remove(scope); err != nil {
			t.Error(err)
		}
	})
	return job
}

// startIn starts a worker in a cgroup.
func startIn(t *testing.T, state, folder string, args ...string) *tenant {
	t.Helper()
	dir, err := os.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command(filepath.Join(bin, "tests", "vgpu-worker"), args...)
	cmd.Env = append(os.Environ(), "SIMGPU_STATE="+state)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	x := &tenant{t: t, cmd: cmd, lines: bufio.NewScanner(out)}
	t.Cleanup(x.end)
	return x
}

func (x *tenant) end() {
	if x.cmd.ProcessState == nil {
		_ = x.cmd.Process.Kill() // it may have ended by itself
		_ = x.cmd.Wait()
	}
}

// nvmlLimits: gresd has the driver hold the limit of a job's cgroup. Programs of the job that
// know nothing of the library have no more together; others are not concerned.
func nvmlLimits(t *testing.T, state, uuid string) {
	root := unified(t)
	job := cgroup(t, root)
	cards, err := driver.Open(filepath.Join(bin, "simgpu", "lib", "libnvidia-ml.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer cards.Close()
	if !cards.HasLimits() {
		t.Fatal("the driver has no limits for cgroups")
	}
	ctx, cancel := context.WithCancel(t.Context())
	set := make(chan error, 1)
	keeper := driver.LimitKeeper{
		Grants: oneGrant(uuid), Root: root, Proc: "/proc", Log: slog.New(slog.DiscardHandler),
		Set: func(card gpu.UUID, folder string, most gpu.Bytes) error {
			err := cards.LimitMemory(card, folder, most)
			set <- err
			cancel()
			return err
		},
	}
	keeper.Run(ctx)
	if err := <-set; err != nil {
		t.Fatal(err)
	}
	const most = 4<<30 + float64(driver.LimitMargin)
	if got := startIn(t, state, job, "--chunk=64M", "--fill").next()["granted"].(float64); got > most || got < most-1<<30 {
		t.Errorf("a program of the job had %.0f bytes, want near %.0f", got, most)
	}
	first := startIn(t, state, job, "--alloc=3G", "--hold=300")
	if v := first.next(); v["error"] != "CUDA_SUCCESS" {
		t.Fatalf("3 GiB of 4: %v", v)
	}
	v := startIn(t, state, job, "--chunk=64M", "--fill").next()
	if got := v["granted"].(float64); got+3<<30 > most || got == 0 || v["error"] != "CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("a second program of the job: %v", v)
	}
	if v := startTenant(t, state, "--alloc=20G").next(); v["error"] != "CUDA_SUCCESS" {
		t.Errorf("a program of no job: %v", v)
	}
	if err := cards.LimitMemory(gpu.UUID(uuid), job, gpu.GiB); err == nil {
		t.Error("a limit below what is in use was taken")
	}
	if err := cards.LimitMemory(gpu.UUID(uuid), job+"/none", gpu.GiB); err == nil {
		t.Error("a folder that is not there was taken")
	}
	first.end()
	// With its folder the limit is gone, and a new one of that name has none.
	if err := errors.Join(os.Remove(job), os.Mkdir(job, 0o755)); err != nil {
		t.Fatal(err)
	}
	again := startIn(t, state, job, "--alloc=20G")
	if v := again.next(); v["error"] != "CUDA_SUCCESS" {
		t.Errorf("in a new folder: %v", v)
	}
	_ = again.cmd.Wait()
}
