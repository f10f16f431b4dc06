// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

func (s site) sim(command string) {
	s.t.Helper()
	if err := s.Sim(command); err != nil {
		s.t.Fatal(err)
	}
}

// card waits until gresd finds card 0 well or not, and returns why not.
func (s site) card(well bool) string {
	s.t.Helper()
	var status wire.Status
	s.eventually(shortWait, fmt.Sprintf("card 0 is well: %v", well), func() bool {
		var err error
		status, err = s.Status()
		return err == nil && len(status.Cards) > 0 && status.Cards[0].Healthy == well
	})
	return status.Cards[0].Why
}

// refused starts a job that must be refused with these words.
func (s site) refused(words ...string) {
	s.t.Helper()
	r := s.As(bob, "srun", "--gres=vgpu:10", "true")
	if r.Code == 0 {
		s.t.Fatalf("a job on a card that is out of use: %s", r)
	}
	for _, word := range words {
		if !strings.Contains(r.Err, word) {
			s.t.Errorf("refused without %q: %s", word, r)
		}
	}
}

func (s site) works() {
	s.t.Helper()
	if r := s.As(bob, "srun", "--gres=vgpu:10", cluster.Worker, "--alloc", "1G"); r.Code != 0 {
		s.t.Errorf("a job on a card that is well: %s", r)
	}
}

func (s site) nodeSays(what, text string) bool {
	out, err := s.Scontrol("show", "node")
	for line := range strings.Lines(out) {
		if rest, is := strings.CutPrefix(strings.TrimSpace(line), what+"="); err == nil && is {
			return text != "" && strings.Contains(rest, text)
		}
	}
	return err == nil && text == ""
}

// A card that fails takes no jobs until it was well for a while. Those that
// have it are told, and live on.
func TestSickCardTakesNoJobs(t *testing.T) {
	opts := oneCard
	opts.Config = "[health]\nclean_probes = 2\n"
	s := up(t, opts)
	job := s.submit(alice, "--gres=vgpu:30", "sleep 300")
	s.running(job)
	s.sim("xid --card 0 --code 13") // a program's own fault
	s.works()
	if why := s.card(true); why != "" {
		t.Errorf("out after a program's fault: %s", why)
	}

	s.sim("xid --card 0 --code 79 --lost 999")
	began := time.Now()
	s.eventually(shortWait, "the card is out for the XID and its loss", func() bool {
		why := s.card(false)
		return strings.Contains(why, "XID 79") && strings.Contains(why, "lost")
	})
	t.Logf("out within %s", time.Since(began).Round(100*time.Millisecond))
	s.refused("card 0", "not healthy", "XID 79")
	for _, show := range []struct{ command, want string }{
		{"status", "XID 79"},
		{"jobs", fmt.Sprintf("job %d: ", job)},
	} {
		if r := s.As("root", "vgpuctl", show.command); r.Code != 0 || !strings.Contains(r.Out, show.want) {
			t.Errorf("vgpuctl %s: want %q in: %s", show.command, show.want, r)
		}
	}
	if r := s.As(alice, "cat", cluster.JobDir(job)+"/messages"); r.Code != 0 || !strings.Contains(r.Out, "XID 79") {
		t.Errorf("what the job's user is told: %s", r)
	}
	s.eventually(shortWait, "the node has a comment", func() bool { return s.nodeSays("Comment", "vgpu: card 0: ") })
	if facts, err := s.Job(job); err != nil || facts["JobState"] != "RUNNING" {
		t.Errorf("the job that was there: %v, %v", facts["JobState"], err)
	}

	s.sim("xid --card 0") // not lost any more
	s.card(true)
	s.works()
	s.eventually(shortWait, "the comment is gone", func() bool { return s.nodeSays("Comment", "") })
	if r := s.As("root", "vgpuctl", "jobs"); !strings.Contains(r.Out, "well again") {
		t.Errorf("the job is not told that its card is well: %s", r)
	}
	s.cancel(alice, job)
}

// A card that gresd cannot read when it starts fails no job. Jobs on that card are requeued, and
// complete once gresd can read it.
func TestACardThatCannotBeReadFailsNoJob(t *testing.T) {
	s := up(t, cluster.Options{Cards: twoCards})
	s.Gresd.Kill()
	s.sim("xid --card 1 --lost 999")
	if err := s.Gresd.Start(); err != nil {
		t.Fatal(err)
	}
	if status, err := s.Status(); err != nil || len(status.Cards) != 1 {
		t.Fatalf("cards %+v, %v; want the one that can be read", status.Cards, err)
	}
	const tasks = 6
	array := s.submit(alice, fmt.Sprintf("--requeue --array=1-%d --gres=vgpu:40", tasks), "sleep 1")
	states := func(of string) int {
		out, err := s.Scontrol("show", "job", fmt.Sprint(array))
		if err != nil {
			return 0
		}
		return strings.Count(out, of)
	}
	s.eventually(60*time.Second, "jobs of the lost card are requeued", func() bool {
		return states("Restarts=")-states("Restarts=0") > 0
	})
	s.eventually(60*time.Second, "jobs of the other card complete", func() bool { return states("JobState=COMPLETED") > 0 })
	if failed := states("JobState=FAILED"); failed > 0 {
		t.Errorf("%d jobs have failed", failed)
	}
	s.sim("xid --card 1")                    // not lost any more
	if err := s.Gresd.Reload(); err != nil { // else gresd asks the driver again within a minute
		t.Fatal(err)
	}
	s.eventually(90*time.Second, "all jobs complete", func() bool { return states("JobState=COMPLETED") == tasks })
	if state := s.NodeState(); strings.Contains(state, "DRAIN") {
		t.Errorf("the node is %s", state)
	}
}

// What an administrator took out of use stays out, whatever gresd does.
func TestCordonOutlivesGresd(t *testing.T) {
	opts := oneCard
	opts.Config = "[health]\nclean_probes = 1\n"
	s := up(t, opts)
	if r := s.As(alice, "vgpuctl", "cordon", "0"); r.Code == 0 || !strings.Contains(r.Err, "only root") {
		t.Errorf("cordon by a user: %s", r)
	}
	if r := s.As("root", "vgpuctl", "cordon", "0", "fan", "noise"); r.Code != 0 {
		t.Fatal(r)
	}
	s.refused("card 0", "cordoned by an administrator: fan noise")
	// A batch job goes back into the queue.
	job := s.submit(carol, "--gres=vgpu:10", "true")
	s.eventually(shortWait, "the batch job waits again", func() bool {
		facts, err := s.Job(job)
		return err == nil && facts["Restarts"] == "1"
	})
	s.cancel(carol, job)

	s.Gresd.Kill()
	if err := s.Gresd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(11 * time.Second) // and two clean probes
	s.refused("fan noise")
	if r := s.As("root", "vgpuctl", "uncordon", "0"); r.Code != 0 {
		t.Fatal(r)
	}
	s.works()
}

func TestSickCardDrainsItsNodeWhereTheSiteSaysSo(t *testing.T) {
	opts := oneCard
	opts.Config = "[health]\naction = \"drain\"\nclean_probes = 2\n"
	s := up(t, opts)
	s.works() // gresd has learned the name of its node
	s.sim("xid --card 0 --ecc 2")
	s.card(false)
	s.eventually(shortWait, "the node is drained", func() bool {
		return strings.Contains(s.NodeState(), "DRAIN") && s.nodeSays("Reason", "vgpu: card 0: 2 uncorrected memory errors")
	})
	s.card(true)
	s.eventually(shortWait, "the node is back", func() bool { return s.NodeState() == "IDLE" })
	s.works()
}

// While the driver hangs gresd answers, keeps its jobs, and finds the card sick.
func TestDriverThatHangs(t *testing.T) {
	opts := oneCard
	opts.Config = "[health]\nclean_probes = 2\n"
	s := up(t, opts)
	job := s.submit(alice, "--gres=vgpu:30", cluster.Worker+" --alloc 1G --hold 300")
	s.running(job)
	s.card(true)
	hang := 15 * time.Second // three questions without an answer
	if isLong() {
		hang = 30 * time.Second
	}
	for _, call := range []string{
		"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlEventSetWait_v2", "nvmlDeviceGetHandleByUUID",
	} {
		s.sim(fmt.Sprintf("slow --call %s --ms %d", call, hang.Milliseconds()))
	}
	var slowest time.Duration
	for began := time.Now(); time.Since(began) < hang; time.Sleep(500 * time.Millisecond) {
		for _, command := range []string{"status", "jobs"} {
			asked := time.Now()
			if r := s.As("root", "vgpuctl", command); r.Code != 0 {
				t.Fatalf("vgpuctl %s while the driver hangs: %s", command, r)
			}
			slowest = max(slowest, time.Since(asked))
		}
	}
	t.Logf("the slowest answer took %s", slowest.Round(time.Millisecond))
	if slowest > 2*time.Second {
		t.Errorf("an answer took %s", slowest)
	}
	if why := s.card(false); !strings.Contains(why, "does not answer") {
		t.Errorf("the card is out: %s", why)
	}
	// Prologs are answered, too, and so are scrapes, which show what is known.
	asked := time.Now()
	s.refused("does not answer")
	if took := time.Since(asked); took > 5*time.Second {
		t.Errorf("a job was refused after %s", took)
	}
	asked = time.Now()
	page := metrics(t)
	if took := time.Since(asked); took > 2*time.Second {
		t.Errorf("a scrape took %s", took)
	}
	if strings.Contains(page, "vgpu_card_utilization_ratio{") || strings.Contains(page, "vgpu_card_memory_used_bytes{") {
		t.Errorf("what the driver does not tell is shown:\n%s", page)
	}
	if used, ok := ofJob(t, page, "vgpu_job_memory_used_bytes", job); !ok || used < gib {
		t.Errorf("what the job told is known: %v, %v", used, ok)
	}
	s.sim("clear")
	s.eventually(hang+shortWait, "the card is well again", func() bool {
		status, err := s.Status()
		return err == nil && status.Cards[0].Healthy
	})
	s.works()
	s.cancel(alice, job)
}
