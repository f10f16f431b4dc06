// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// slurmd leaves the Prolog of a requeued job out when its node is busy
// (spank/plugin/late.c). Such a job must have its limits all the same. Here no
// job has a Prolog, which is the same at any speed.
func TestJobWithoutItsPrologHasItsLimit(t *testing.T) {
	for _, gresdPlaces := range []bool{false, true} {
		t.Run(fmt.Sprintf("gresd places=%v", gresdPlaces), func(t *testing.T) {
			opts := oneCard
			opts.GresdPlaces, opts.Without = gresdPlaces, []string{"Prolog="}
			s := up(t, opts)
			// gresd has learned the name of its node from an earlier Prolog.
			if r := s.As("root", "env", "SLURM_SCRIPT_CONTEXT=prolog_slurmd", "SLURMD_NODENAME=vgpu-node",
				"SLURM_JOB_GPUS=0", "SLURM_JOB_ID=1000000", cluster.Dir+"/bin/vgpu-prolog"); r.Code != 0 {
				t.Fatal(r)
			}
			job := s.submit(bob, "--gres=vgpu:30 --vgpu-mem=8G", cluster.LookScript)
			if got := look(t, s.completed(bob, job)); got.Total != 8*gib || got.Granted > 8*gib {
				t.Errorf("saw %d bytes and got %d, want 8 GiB", got.Total, got.Granted)
			}
			// Refused jobs are told why, as after a Prolog.
			job = s.submit(bob, "--gres=vgpu:30 --vgpu-engine=mps", "echo ran")
			if state, out := s.ended(bob, job); state != "FAILED" || !strings.Contains(out, "want --vgpu-engine=time") || hasWord(out, "ran") {
				t.Errorf("a job that is refused: %s, %q", state, out)
			}
			plain := s.submit(alice, "", "cat /etc/ld.so.preload")
			if out := s.completed(alice, plain); out != "" {
				t.Errorf("a job without a share got %q", out)
			}
			if !gresdPlaces || !isLong() {
				return
			}
			// Without gresd nothing is known of the job: it must not run.
			s.Gresd.Kill()
			job = s.submit(bob, "--gres=vgpu:30", "echo ran")
			if state, out := s.ended(bob, job); state != "FAILED" || hasWord(out, "ran") {
				t.Errorf("without gresd: %s, %q", state, out)
			}
			if err := s.Gresd.Start(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
