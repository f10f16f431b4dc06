// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
)

// If the driver refuses time slices, jobs take turns and have their shares all the same.
func TestEngineTurns(t *testing.T) {
	opts := oneCard
	opts.Config = "[arbiter]\nslice_test = false\n"
	s := up(t, opts)
	s.sim("refuse-slices")
	a := cluster.Work{User: alice, Job: s.submit(alice, "--gres=vgpu:30", cluster.WorkScript)}
	b := cluster.Work{User: bob, Job: s.submit(bob, "--gres=vgpu:70", cluster.WorkScript)}
	rates, late, err := s.MeasureLate(measureSeconds, a, b)
	if err != nil {
		t.Fatal(err)
	}
	got := 100 * rates[0] / (rates[0] + rates[1])
	t.Logf("asked 30 and 70, the first got %.1f %% of all work; without a processor for %.3f of the time", got, late)
	if low, high := processor.Bounds(0, 30-tolerance, 30+tolerance, []float64{30, 70}, late); got < low || got > high {
		t.Errorf("the job of 30 %% got %.1f %% of all work, want 30 ± %d", got, tolerance)
	}
	for _, w := range []cluster.Work{a, b} {
		s.completed(w.User, w.Job)
	}
}
