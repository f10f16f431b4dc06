// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// If the driver refuses time slices, jobs take turns and have their shares all the same.
func TestEngineTurns(t *testing.T) {
	opts := oneCard
	opts.Config = "[arbiter]\nslice_test = false\n"
	s := up(t, opts)
	s.sim("refuse-slices")
	a := cluster.Work{User: alice, Job: s.submit(alice, "--gres=vgpu:30", cluster.WorkScript)}
	b := cluster.Work{User: bob, Job: s.submit(bob, "--gres=vgpu:70", cluster.WorkScript)}
	rates, err := s.Measure(measureSeconds, a, b)
	if err != nil {
		t.Fatal(err)
	}
	got := 100 * rates[0] / (rates[0] + rates[1])
	t.Logf("asked 30 and 70, the first got %.1f %% of all work", got)
	if got < 30-tolerance || got > 30+tolerance {
		t.Errorf("the job of 30 %% got %.1f %% of all work, want 30 ± %d", got, tolerance)
	}
	for _, w := range []cluster.Work{a, b} {
		s.completed(w.User, w.Job)
	}
}
