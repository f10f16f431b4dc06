// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

const (
	measureSeconds = 5
	tolerance      = 3 // points
)

func TestJobSeesItsMemoryAndNoMore(t *testing.T) {
	s := up(t, cluster.Options{})
	got := look(t, s.completed(alice, s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", cluster.LookScript)))
	if got.Total != 8*gib || got.NVMLTotal != 8*gib {
		t.Errorf("saw %d bytes by CUDA and %d by NVML, want 8 GiB", got.Total, got.NVMLTotal)
	}
	if got.Granted > 8*gib || got.Granted < 7*gib || got.Refusal != "CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("took %d bytes until %q, want 7 to 8 GiB until CUDA_ERROR_OUT_OF_MEMORY", got.Granted, got.Refusal)
	}
}

func TestSharesHold(t *testing.T) {
	s := up(t, oneCard)
	solo, err := s.Solo(alice, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []struct {
		name   string
		shares []string
		want   []float64
	}{
		{"hard, alone", []string{"30"}, []float64{30}},
		{"hard, on a full card", []string{"30", "70"}, []float64{30, 70}},
		{"hard, on a card with room", []string{"30", "50"}, []float64{30, 50}},
		{"soft, alone", []string{"30 --vgpu-mode=soft"}, []float64{100}},
		{"soft with a ceiling, alone", []string{"30 --vgpu-mode=soft:60"}, []float64{60}},
		{"soft, on a full card", []string{"30 --vgpu-mode=soft", "70 --vgpu-mode=soft"}, []float64{30, 70}},
	} {
		t.Run(run.name, func(t *testing.T) {
			s := site{s.Cluster, t}
			users := []string{alice, bob}
			var works []cluster.Work
			for i, share := range run.shares {
				works = append(works, cluster.Work{User: users[i], Job: s.submit(users[i], "--gres=vgpu:"+share, cluster.WorkScript)})
			}
			rates, err := s.Measure(measureSeconds, works...)
			if err != nil {
				t.Fatal(err)
			}
			for i, w := range works {
				got := 100 * rates[i] / solo
				t.Logf("asked %s, got %.1f %%", run.shares[i], got)
				if got < run.want[i]-tolerance || got > run.want[i]+tolerance {
					t.Errorf("%s: got %.1f %% of the card, want %.0f ± %d", run.shares[i], got, run.want[i], tolerance)
				}
				s.completed(w.User, w.Job)
			}
		})
	}
}

// Several processes of a job share its share.
func TestProcessesOfAJobShareItsShare(t *testing.T) {
	s := up(t, oneCard)
	solo, err := s.Solo(alice, 3)
	if err != nil {
		t.Fatal(err)
	}
	two := "until [ -s go.$SLURM_JOB_ID ]; do sleep 0.1; done; for i in 1 2; do " + cluster.Worker + " $(cat go.$SLURM_JOB_ID) >part.$i & done; wait; cat part.1 part.2"
	a := cluster.Work{User: alice, Job: s.submit(alice, "--gres=vgpu:60", two)}
	b := cluster.Work{User: bob, Job: s.submit(bob, "--gres=vgpu:40", cluster.WorkScript)}
	rates, err := s.Measure(measureSeconds, a, b)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{60, 40} {
		got := 100 * rates[i] / solo
		t.Logf("asked %.0f %%, got %.1f %%", want, got)
		if got < want-tolerance || got > want+tolerance {
			t.Errorf("%s got %.1f %% of the card, want %.0f ± %d", []string{"two processes", "one process"}[i], got, want, tolerance)
		}
	}
	for _, w := range []cluster.Work{a, b} {
		s.completed(w.User, w.Job)
	}
}
