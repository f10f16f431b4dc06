// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// twoTypes are a small card, then two larger ones of another type; gresd chooses.
var twoTypes = cluster.Options{
	GresdPlaces: true,
	Cards: []cluster.Card{
		{Name: "Simulated Small", Memory: "40G"}, {Name: "Simulated Large", Memory: "80G"}, {Name: "Simulated Large", Memory: "80G"},
	},
}

// cardOf is the index of the one card of a job.
func (s site) cardOf(job int) int {
	s.t.Helper()
	records, err := s.Records()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range records {
		if r.JobID == uint32(job) && len(r.Cards) == 1 {
			return r.Cards[0].Index
		}
	}
	s.t.Fatalf("job %d has no card: %+v", job, records)
	return -1
}

// Where gresd chooses the card, --gres=vgpu:TYPE:N gets one of that type, with
// what "gresd gres-conf" printed for a real slurmctld.
func TestGresdPlacesJobsOnTheTypeTheyAskFor(t *testing.T) {
	s := up(t, twoTypes)
	large := s.submit(alice, "--gres=vgpu:simulated-large:30", "sleep 300")
	s.running(large)
	small := s.submit(bob, "--gres=vgpu:simulated-small:60 --vgpu-mem=8G", cluster.LookScript+"; sleep 300")
	s.running(small)
	// Best fit over all cards would be the small one, which has 40 left.
	again := s.submit(carol, "--gres=vgpu:simulated-large:40", "sleep 300")
	s.running(again)
	if got := [3]int{s.cardOf(large), s.cardOf(small), s.cardOf(again)}; got != [3]int{2, 0, 2} {
		t.Errorf("large, small and large again are on cards %v, want 2, 0 and 2", got)
	}
	s.eventually(shortWait, "the job has looked", func() bool { return len(cluster.Looks(s.Output(bob, small))) > 0 })
	if got := look(t, s.Output(bob, small)); got.Total != 8*gib {
		t.Errorf("the job on the small card saw %d bytes, want 8 GiB", got.Total)
	}
	// slurmctld counts by type: a small card's 40 do not make up for it.
	full := s.submit(alice, "--gres=vgpu:simulated-small:50", "true")
	s.eventually(shortWait, "it waits in the queue", func() bool {
		facts, err := s.Job(full)
		return err == nil && facts["JobState"] == "PENDING" && facts["Reason"] == "Resources"
	})
	if r := s.TrySbatch(alice, strings.Fields("--gres=vgpu:simulated-none:10"), "true"); r.Code == 0 {
		t.Errorf("a type that no node has was accepted: %s", r)
	}
	plain := s.submit(bob, "--gres=vgpu:20", "sleep 300")
	s.running(plain)
	s.cancel(bob, plain, small)
	s.cancel(carol, again)
	s.cancel(alice, large)
	s.completed(alice, full)
	if left, err := s.Records(); err != nil || len(left) != 0 {
		t.Errorf("left: %+v, %v", left, err)
	}
}
