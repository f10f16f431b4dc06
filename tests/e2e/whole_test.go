// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// Where gresd places, slurmctld gives out whole cards and counts shares, and knows of no card that
// has both. Neither kind of job is on a card of the other, and a whole card without shares is had
// at once, also without gresd.
func TestWholeCardsAndSharesWhereGresdPlaces(t *testing.T) {
	s := up(t, cluster.Options{Cards: twoCards, GresdPlaces: true})
	waits := func(from int64) func() bool {
		return func() bool { return strings.Contains(s.Gresd.LogFrom(from), "waits for room") }
	}
	share := s.submit(alice, "--gres=vgpu:30", "sleep 300")
	s.running(share)
	whole := s.submit(bob, "--gres=gpu:1", "echo $CUDA_VISIBLE_DEVICES; exec sleep 300")
	s.eventually(shortWait, "a whole card beside the one with shares is had at once", func() bool { return s.Output(bob, whole) == "0\n" })

	size := s.Gresd.LogSize()
	large := s.submit(carol, "--gres=vgpu:100", cluster.LookScript)
	s.eventually(shortWait, "a share waits for the whole card", waits(size))
	s.cancel(bob, whole)
	if got := look(t, s.completed(carol, large)); got.Total != 80*gib {
		t.Errorf("the share saw %d bytes, want a card", got.Total)
	}

	size = s.Gresd.LogSize()
	both := s.submit(bob, "--gres=gpu:2", "echo ran")
	s.eventually(shortWait, "whole cards wait for the share", waits(size))
	if r := s.As(carol, "srun", "--gres=vgpu:50", "true"); r.Code != 0 && !strings.Contains(r.Err, "kept free for a job that has waited longer") {
		t.Errorf("a share beside: %s", r)
	}
	if out := s.Output(bob, both); out != "" {
		t.Errorf("the job of whole cards wrote %q beside a share", out)
	}
	s.cancel(alice, share)
	if out := s.completed(bob, both); out != "ran\n" {
		t.Errorf("the job of whole cards wrote %q", out)
	}

	// What starts while gresd is away is known to the next one.
	s.Gresd.Kill()
	whole = s.submit(bob, "--gres=gpu:2", "echo ran; exec sleep 300")
	s.eventually(shortWait, "whole cards are had without gresd", func() bool { return s.Output(bob, whole) == "ran\n" })
	if err := s.Gresd.Start(); err != nil {
		t.Fatal(err)
	}
	size = s.Gresd.LogSize()
	share = s.submit(alice, "--gres=vgpu:30", cluster.LookScript)
	s.eventually(shortWait, "a share waits for them", waits(size))
	s.cancel(bob, whole)
	if got := look(t, s.completed(alice, share)); got.Total != 24*gib {
		t.Errorf("the share saw %d bytes, want 24 GiB", got.Total)
	}
	if state := s.NodeState(); strings.Contains(state, "DRAIN") {
		t.Errorf("the node is %s", state)
	}
}
