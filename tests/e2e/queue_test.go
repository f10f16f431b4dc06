// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// oneCard is a node on which jobs must share.
var oneCard = cluster.Options{Cards: []cluster.Card{{Name: "Simulated H100", Memory: "80G"}}}

func TestJobThatDoesNotFitWaitsForOneToEnd(t *testing.T) {
	s := up(t, oneCard)
	first := s.submit(alice, "--gres=vgpu:30", "sleep 300")
	second := s.submit(bob, "--gres=vgpu:50", "sleep 300")
	s.running(first, second)
	third := s.submit(carol, "--gres=vgpu:40", "sleep 300")
	time.Sleep(3 * time.Second) // three turns of the scheduler
	if facts, err := s.Job(third); err != nil || facts["JobState"] != "PENDING" || facts["Reason"] != "Resources" {
		t.Errorf("third job: %s, %s, %v; want PENDING for Resources", facts["JobState"], facts["Reason"], err)
	}
	s.cancel(bob, second)
	s.running(third)
	s.cancel(alice, first)
	s.cancel(carol, third)
}

// Memory counts like compute, of the card of the type that is asked for: 60 % of
// the memory takes 60 shards, so a second such job waits although their compute
// shares are small. Without a type the smallest card counts.
func TestMemoryCountsAsMuchAsCompute(t *testing.T) {
	s := up(t, cluster.Options{Cards: []cluster.Card{
		{Name: "Simulated L4", Memory: "40G", Type: "small"}, {Name: "Simulated H100", Memory: "80G", Type: "large"},
	}})
	first := s.submit(alice, "--gres=vgpu:large:10 --vgpu-mem=48G", "sleep 300")
	s.running(first)
	second := s.submit(bob, "--gres=vgpu:large:10 --vgpu-mem=48G", "sleep 300")
	third := s.submit(bob, "--gres=vgpu:large:10 --vgpu-mem=8G", "sleep 300")
	small := s.submit(carol, "--gres=vgpu:small:10 --vgpu-mem=24G", "sleep 300")
	s.running(third, small)
	if facts, err := s.Job(second); err != nil || facts["JobState"] != "PENDING" {
		t.Errorf("second job: %s, %v; want PENDING", facts["JobState"], err)
	}
	untyped := s.submit(alice, "--gres=vgpu:5 --vgpu-mem=12G", "sleep 300")
	s.running(untyped)
	records, err := s.Records()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct{ job, share, memory int }{{first, 60, 48}, {third, 10, 8}, {small, 60, 24}, {untyped, 30, 12}} {
		for _, r := range records {
			if r.JobID == uint32(want.job) && (int(r.Cards[0].Share) != want.share || r.Cards[0].LimitBytes != uint64(want.memory)*gib) {
				t.Errorf("job %d has %d %% and %d bytes, want %d %% and %d GiB", want.job, r.Cards[0].Share, r.Cards[0].LimitBytes, want.share, want.memory)
			}
		}
	}
	s.cancel(bob, second, third)
	s.cancel(alice, first, untyped)
	s.cancel(carol, small)
}

func TestArrayTasksEachGetTheirShare(t *testing.T) {
	s := up(t, oneCard)
	job := s.submit(alice, "--array=1-4 --gres=vgpu:25 --vgpu-mem=10G --output=array.%a", cluster.LookScript)
	s.eventually(60*time.Second, "the array ends", func() bool {
		queue, err := s.Queue()
		return err == nil && len(queue) == 0
	})
	_ = job
	for i := 1; i <= 4; i++ {
		got := look(t, s.File(alice, fmt.Sprintf("array.%d", i)))
		if got.Total != 10*gib {
			t.Errorf("task %d saw %d bytes, want 10 GiB", i, got.Total)
		}
	}
}

func TestRequeuedJobIsGrantedAgain(t *testing.T) {
	s := up(t, oneCard)
	job := s.submit(alice, "--requeue --gres=vgpu:30 --vgpu-mem=8G",
		cluster.LookScript+"; test ${SLURM_RESTART_COUNT:-0} = 1 || sleep 300")
	s.running(job)
	s.eventually(20*time.Second, "the first run has a record", func() bool {
		records, err := s.Records()
		return err == nil && len(records) == 1
	})
	if r := s.As(alice, "scontrol", "requeue", fmt.Sprint(job)); r.Code != 0 {
		t.Fatalf("requeue: %s", r)
	}
	if _, err := s.WaitState(job, 30*time.Second, "PENDING"); err != nil {
		t.Fatal(err)
	}
	s.eventually(20*time.Second, "the record goes between the runs", func() bool {
		records, err := s.Records()
		return err == nil && len(records) == 0
	})
	if got := look(t, s.completed(alice, job)); got.Total != 8*gib {
		t.Errorf("second run saw %d bytes, want 8 GiB", got.Total)
	}
}

func TestCancelledJobLeavesNothing(t *testing.T) {
	s := up(t, oneCard)
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", cluster.BusyScript(300))
	s.running(job)
	s.eventually(20*time.Second, "the job uses the card", func() bool {
		records, err := s.Records()
		return err == nil && len(records) == 1 && len(records[0].Cards) == 1 &&
			records[0].Cards[0].UsedBytes != nil && *records[0].Cards[0].UsedBytes > 0
	})
	s.cancel(alice, job)
	if left := s.Leftovers(5 * time.Second); len(left) != 0 {
		t.Errorf("left: %s", strings.Join(left, "; "))
	}
}

// A job that asks for no share is none of our business.
func TestOtherJobsAreLeftAlone(t *testing.T) {
	s := up(t, oneCard)
	job := s.submit(alice, "", "cat /etc/ld.so.preload; echo LD_PRELOAD=$LD_PRELOAD; sleep 1")
	if out := s.completed(alice, job); out != "LD_PRELOAD=\n" {
		t.Errorf("a job without a share got: %q", out)
	}
}
