// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

var twoCards = []cluster.Card{{Name: "Simulated H100", Memory: "80G"}, {Name: "Simulated H100", Memory: "80G"}}

func (s site) healthy(card int) bool {
	s.t.Helper()
	status, err := s.Status()
	return err == nil && len(status.Cards) > card && status.Cards[card].Healthy
}

// Where gresd chooses, the next job lands on another card than the one that
// failed, and on the first again once that was well for some probes.
func TestNextJobLandsElsewhere(t *testing.T) {
	s := up(t, cluster.Options{GresdPlaces: true, Cards: twoCards, Config: "[health]\nclean_probes = 2\n"})
	first := s.submit(alice, "--gres=vgpu:30", "sleep 300")
	s.running(first)
	s.sim("xid --card 1 --code 79")
	s.eventually(shortWait, "card 1 is out", func() bool { return !s.healthy(1) && s.healthy(0) })
	out := time.Now()
	next := s.submit(bob, "--gres=vgpu:20", "sleep 300")
	s.running(next)
	if a, b := s.cardOf(first), s.cardOf(next); a != 1 || b != 0 {
		t.Errorf("jobs are on cards %d and %d, want 1 and then 0", a, b)
	}
	page := metrics(t)
	for _, healthy := range sample(t, page, "vgpu_card_healthy") {
		if healthy != 0 && healthy != 1 {
			t.Errorf("vgpu_card_healthy %v", healthy)
		}
	}
	if n := strings.Count(page, "vgpu_card_healthy{"); n != 2 || !strings.Contains(page, `"} 0`) {
		t.Errorf("%d cards in the metrics, one of them sick:\n%s", n, page)
	}
	if facts, err := s.Job(first); err != nil || facts["JobState"] != "RUNNING" {
		t.Errorf("the job that was there: %v, %v", facts["JobState"], err)
	}
	s.eventually(shortWait, "card 1 is well after clean probes", func() bool { return s.healthy(1) })
	if took := time.Since(out); took < 4500*time.Millisecond {
		t.Errorf("well after %s, which are not two probes 5 s apart", took)
	}
	again := s.submit(bob, "--gres=vgpu:40", "sleep 300") // best fit
	s.running(again)
	if got := s.cardOf(again); got != 1 {
		t.Errorf("after card 1 became well, a job is on card %d", got)
	}
	s.cancel(alice, first)
	s.cancel(bob, next, again)
}

// slurmctld does not know of a cordoned card and binds jobs to it. They go back
// with a reason, seldom, and start once the card is well; the node stays in use.
func TestJobsBoundToACordonedCardWait(t *testing.T) {
	s := up(t, cluster.Options{Cards: twoCards})
	if r := s.As("root", "vgpuctl", "cordon", "0", "fan noise"); r.Code != 0 {
		t.Fatal(r)
	}
	job := s.submit(bob, "--gres=vgpu:30", "echo ran")
	restarts := func() int {
		facts, err := s.Job(job)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.Atoi(facts["Restarts"])
		return n
	}
	s.eventually(shortWait, "the job waits again", func() bool { return restarts() > 0 })
	told := func() string {
		out, err := s.Scontrol("show", "job", strconv.Itoa(job))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	s.eventually(shortWait, "its user can see why", func() bool {
		return strings.Contains(told(), "AdminComment=vgpu: place: job "+strconv.Itoa(job)+": card 0 ") &&
			strings.Contains(told(), "cordoned by an administrator: fan noise")
	})
	if isLong() {
		// As often as Slurm lets it (6 s here, 121 s by default), then more seldom.
		time.Sleep(60 * time.Second)
		if n := restarts(); n > 5 {
			t.Errorf("%d restarts in a minute", n)
		}
	}
	if state := s.NodeState(); strings.Contains(state, "DRAIN") || strings.Contains(state, "DOWN") {
		t.Errorf("the node is %s", state)
	}
	if r := s.As(carol, "srun", "--gres=vgpu:10", "true"); r.Code == 0 || !strings.Contains(r.Err, "fan noise") {
		t.Errorf("a job that cannot be requeued is refused with the reason: %s", r)
	}
	began := time.Now()
	if r := s.As("root", "vgpuctl", "uncordon", "0"); r.Code != 0 {
		t.Fatal(r)
	}
	if out := s.completed(bob, job); !strings.Contains(out, "ran") {
		t.Errorf("output: %s", out)
	}
	t.Logf("done %s after the card was put back", time.Since(began).Round(100*time.Millisecond))
	if strings.Contains(told(), "AdminComment=vgpu:") {
		t.Errorf("the reason is still there:\n%s", told())
	}
}
