// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

func TestStepsOfAJobHaveItsLimit(t *testing.T) {
	s := up(t, oneCard)
	out := s.completed(alice, s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G",
		"srun "+cluster.LookScript+"; srun --export=NONE "+cluster.LookScript+"; "+cluster.LookScript))
	all := cluster.Looks(out)
	if len(all) != 3 {
		t.Fatalf("%d looks, want 3:\n%s", len(all), out)
	}
	for i, got := range all {
		if got.Total != 8*gib || got.Granted > 8*gib {
			t.Errorf("look %d: saw %d bytes and got %d, want 8 GiB", i, got.Total, got.Granted)
		}
	}
}

// The tasks of a job share its limit: together they never get more.
func TestTasksOfAJobShareItsLimit(t *testing.T) {
	s := up(t, oneCard)
	out := s.completed(alice, s.submit(alice, "--ntasks=3 --gres=vgpu:30 --vgpu-mem=8G",
		"srun "+cluster.Worker+" --report --hold 2"+strings.Repeat(" --alloc 1G", 6)+" --hold 4"))
	got, refused := cluster.Taken(out)
	if got > 8*gib || got < 6*gib || refused < 10 {
		t.Errorf("3 tasks that want 6 GiB each got %d bytes, %d pieces refused; want at most 8 GiB:\n%s", got, refused, out)
	}
}

func TestSrunAndSallocWork(t *testing.T) {
	s := up(t, oneCard)
	for _, argv := range [][]string{
		{"srun", "--gres=vgpu:30", "--vgpu-mem=8G", "bash", "-c", cluster.LookScript},
		{"salloc", "--gres=vgpu:30", "--vgpu-mem=8G", "srun", "bash", "-c", cluster.LookScript},
	} {
		r := s.As(alice, argv...)
		if r.Code != 0 {
			t.Errorf("%v: %s", argv, r)
			continue
		}
		if got := look(t, r.Out); got.Total != 8*gib {
			t.Errorf("%v: saw %d bytes, want 8 GiB", argv, got.Total)
		}
	}
}

func TestVgpuSrun(t *testing.T) {
	s := up(t, oneCard)
	r := s.As(alice, "vgpu-srun", "--gres=vgpu:30", "--vgpu-mem=8G", "bash", "-c", cluster.LookScript)
	if r.Code != 0 {
		t.Fatal(r)
	}
	if got := look(t, r.Out); got.Total != 8*gib {
		t.Errorf("saw %d bytes, want 8 GiB", got.Total)
	}
}

// A site that may not install the SPANK plugin has vgpu-srun and TaskProlog.
func TestWithoutThePlugin(t *testing.T) {
	opts := oneCard
	opts.NoPlugin = true
	s := up(t, opts)
	r := s.As(alice, "vgpu-srun", "--gres=vgpu:30", "--vgpu-mem=8G", "bash", "-c", cluster.LookScript)
	if r.Code != 0 {
		t.Fatal(r)
	}
	if got := look(t, r.Out); got.Total != 8*gib {
		t.Errorf("vgpu-srun: saw %d bytes, want 8 GiB", got.Total)
	}
	// Without options the memory follows the share.
	if got := look(t, s.completed(bob, s.submit(bob, "--gres=vgpu:25", cluster.LookScript))); got.Total != 20*gib {
		t.Errorf("sbatch: saw %d bytes, want 20 GiB", got.Total)
	}
}

func TestWholeCards(t *testing.T) {
	s := up(t, cluster.Options{})
	out := s.completed(alice, s.submit(alice, "--gres=vgpu:200", cluster.Worker+" --count; "+cluster.LookScript))
	if got := look(t, out); cluster.Devices(out) != 2 || got.Total != 80*gib {
		t.Errorf("saw %d cards, the first of %d bytes; want 2 of 80 GiB", cluster.Devices(out), got.Total)
	}
}
