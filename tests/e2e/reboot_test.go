// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// A node that loses its power comes back with a ledger of jobs that are gone.
// They leave nothing, those that may run again do, and the card is not given
// out twice.
func TestNodeReboot(t *testing.T) {
	opts := oneCard
	// slurmctld looks for jobs that a node has lost when it registers, and only for
	// those that are older than these two.
	opts.Slurm = "BatchStartTimeout=1\nMessageTimeout=5\n"
	s := up(t, opts)
	again := s.submit(alice, "--requeue --gres=vgpu:60 --vgpu-mem=8G",
		cluster.LookScript+"; test ${SLURM_RESTART_COUNT:-0} = 1 || sleep 300")
	lost := s.submit(bob, "--no-requeue --gres=vgpu:40", cluster.BusyScript(300))
	s.running(again, lost)
	s.eventually(shortWait, "both work", func() bool { return s.Output(alice, again) != "" })
	time.Sleep(7 * time.Second)
	if err := s.Reboot(); err != nil {
		t.Fatal(err)
	}
	if state, err := s.Wait(lost, 60*time.Second); err != nil || state != "NODE_FAIL" {
		t.Errorf("the job that is not requeued: %s, %v; want NODE_FAIL", state, err)
	}
	if got := look(t, s.completed(alice, again)); got.Total != 8*gib {
		t.Errorf("the second run saw %d bytes, want 8 GiB", got.Total)
	}
	if got := look(t, s.completed(bob, s.submit(bob, "--gres=vgpu:100", cluster.LookScript))); got.Total != 80*gib {
		t.Errorf("a whole card afterwards: saw %d bytes, want 80 GiB", got.Total)
	}
}
