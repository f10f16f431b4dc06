// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// grants are specs of jobs.
type grants map[uint32][]libvgpu.GrantCard

func (g grants) Open() []uint32 { return slices.Sorted(maps.Keys(g)) }

func (g grants) Spec(job uint32) (libvgpu.GrantSpec, bool) {
	cards, ok := g[job]
	return libvgpu.GrantSpec{JobID: job, Cards: cards}, ok
}

const gib = uint64(gpu.GiB)

func card(uuid string, limit, physical uint64) libvgpu.GrantCard {
	return libvgpu.GrantCard{UUID: uuid, MemLimit: limit * gib, MemPhysical: physical * gib}
}

// node is a tree of cgroups, and a driver that writes down what it is told.
type node struct {
	*LimitKeeper
	t    *testing.T
	said bytes.Buffer
	set  []string
	err  error
}

func newNode(t *testing.T, g grants) *node {
	t.Helper()
	n := &node{t: t}
	n.LimitKeeper = &LimitKeeper{
		Grants: g, Root: t.TempDir(), Proc: t.TempDir(), Log: slog.New(slog.NewTextHandler(&n.said, nil)),
		Set: func(uuid gpu.UUID, folder string, most gpu.Bytes) error {
			below, err := filepath.Rel(n.Root, folder)
			n.set = append(n.set, fmt.Sprintf("%s %s %d", uuid, filepath.Base(below), (most-LimitMargin)/gpu.GiB))
			return errors.Join(err, n.err)
		},
	}
	return n
}

func (n *node) write(path, text string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// job makes the cgroup of a job, as Slurm does with its first step.
func (n *node) job(name string) string {
	n.t.Helper()
	path := filepath.Join(n.Root, "system.slice/n1_slurmstepd.scope", name)
	if err := os.MkdirAll(filepath.Join(path, "step_0/user"), 0o755); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// steps looks once, and wants these calls of the driver.
func (n *node) steps(want ...string) {
	n.t.Helper()
	n.set = nil
	n.step()
	if !slices.Equal(n.set, want) {
		n.t.Errorf("the driver was told %q, want %q", n.set, want)
	}
}

func TestLimitsAreSetOnce(t *testing.T) {
	g := grants{7: {card("GPU-a", 8, 0), card("GPU-b", 4, 0)}, 8: {card("GPU-a", 16, 0)}}
	n := newNode(t, g)
	n.steps() // no step has begun
	path := n.job("job_7")
	n.job("job_9") // has no share
	n.job("system")
	n.steps("GPU-a job_7 8", "GPU-b job_7 4")
	n.steps()
	n.job("job_8")
	n.steps("GPU-a job_8 16")
	g[8] = []libvgpu.GrantCard{card("GPU-a", 20, 0)}
	n.steps("GPU-a job_8 20")
	// Between two steps Slurm may remove it, and with it goes the limit.
	if err := os.Rename(path, filepath.Join(n.Root, "away")); err != nil {
		t.Fatal(err)
	}
	n.steps()
	n.job("job_7")
	n.steps("GPU-a job_7 8", "GPU-b job_7 4")
	delete(g, 7)
	delete(g, 8)
	n.steps()
	if len(n.held) != 0 {
		t.Errorf("remembered for ever: %v", n.held)
	}
}

// Slurm 26.05 names the folders of jobs by SLUID: then a slurmstepd in it tells the job.
func TestLimitsOfFoldersWithoutANumber(t *testing.T) {
	n := newNode(t, grants{7: {card("GPU-a", 8, 0)}})
	n.job("sEV9M89YGJHF00")
	n.steps()
	pid := filepath.Join(n.Proc, "100")
	n.write(filepath.Join(pid, "cmdline"), "slurmstepd: [7.batch]\x00")
	n.write(filepath.Join(pid, "comm"), "slurmstepd\n")
	n.write(filepath.Join(pid, "status"), "Name:\tx\nUid:\t0\t0\t0\t0\n")
	n.write(filepath.Join(pid, "cgroup"), "0::/system.slice/n1_slurmstepd.scope/sEV9M89YGJHF00/step_batch/slurm\n")
	if err := os.Symlink("/usr/sbin/slurmstepd", filepath.Join(pid, "exe")); err != nil {
		t.Fatal(err)
	}
	n.steps("GPU-a sEV9M89YGJHF00 8")
	if err := os.RemoveAll(pid); err != nil {
		t.Fatal(err)
	}
	n.steps()
	if len(n.held) != 1 {
		t.Errorf("held %v, want what was set once", n.held)
	}
}

// Of these the driver's count is not the job's.
func TestWhatHasNoLimitOfTheDriver(t *testing.T) {
	n := newNode(t, grants{7: {card("GPU-a", 0, 0), card("GPU-b", 48, 24), card("GPU-c", 8, 8)}})
	n.job("job_7")
	n.steps("GPU-c job_7 8")
}

// A driver that refuses is asked again, and complained about once; one that has no such limits is left alone.
func TestDriverThatDoesNotHoldLimits(t *testing.T) {
	n := newNode(t, grants{7: {card("GPU-a", 8, 0)}})
	n.job("job_7")
	n.err = errors.New("invalid limit")
	n.steps("GPU-a job_7 8")
	n.steps("GPU-a job_7 8")
	if c := strings.Count(n.said.String(), "the driver does not hold the memory limit of a job"); c != 1 {
		t.Errorf("said %d times, want once: %s", c, &n.said)
	}
	n.err = nil
	n.steps("GPU-a job_7 8")
	n.steps()

	n = newNode(t, grants{7: {card("GPU-a", 8, 0)}})
	n.job("job_7")
	n.err = ErrNoLimits
	n.steps("GPU-a job_7 8")
	n.steps()
	if c := strings.Count(n.said.String(), "the library alone holds memory limits"); c != 1 {
		t.Errorf("said %d times, want once: %s", c, &n.said)
	}
}

// The kernel's controller must be asked for in each folder above that of the job, and not in that one.
func TestControllerIsEnabled(t *testing.T) {
	for controllers, want := range map[string]string{"cpu memory dmem\n": "+dmem", "cpu memory\n": ""} {
		n := newNode(t, grants{7: {card("GPU-a", 8, 0)}})
		n.write(filepath.Join(n.Root, "cgroup.controllers"), controllers)
		path := n.job("job_7")
		all := []string{n.Root, filepath.Join(n.Root, "system.slice"), filepath.Dir(path), path}
		for _, dir := range all {
			n.write(filepath.Join(dir, "cgroup.subtree_control"), "")
		}
		n.steps("GPU-a job_7 8")
		for i, dir := range all {
			expect := want
			if i == len(all)-1 {
				expect = ""
			}
			if got, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control")); err != nil || string(got) != expect {
				t.Errorf("%s: %q, %v, want %q", dir, got, err, expect)
			}
		}
	}
}
