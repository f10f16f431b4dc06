// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// accounted is a node of two cards with slurmdbd.
var accounted = cluster.Options{
	Accounting: true,
	Cards:      []cluster.Card{{Name: "Simulated H100", Memory: "80G"}, {Name: "Simulated H100", Memory: "80G"}},
	Config:     "[accounting]\nusage = \"admin_comment\"\n",
}

// sacctmgr changes limits; slurmctld has them when it returns.
func (s site) sacctmgr(words ...string) {
	s.t.Helper()
	if _, err := s.Sacctmgr(words...); err != nil {
		s.t.Fatal(err)
	}
}

// waitsFor fails the test unless the job waits for that reason.
func (s site) waitsFor(job int, reason string) {
	s.t.Helper()
	var facts map[string]string
	s.eventually(shortWait, fmt.Sprintf("job %d waits for %s", job, reason), func() bool {
		var err error
		facts, err = s.Job(job)
		return err == nil && facts["JobState"] == "PENDING" && facts["Reason"] == reason
	})
}

// One Slurm with accounting serves both.
func TestQuotasAndAccounting(t *testing.T) {
	s := up(t, accounted)
	t.Run("accounting", func(t *testing.T) { testAccounting(t, site{s.Cluster, t}) })
	t.Run("quotas", func(t *testing.T) { testQuotas(t, site{s.Cluster, t}) })
	t.Run("billing", func(t *testing.T) { testBilling(t, site{s.Cluster, t}) })
}

// Limits on gres/vgpu hold jobs back, and let them go when there is room.
func testQuotas(t *testing.T, s site) {
	for _, c := range []struct {
		name, reason string
		limit, none  string   // sacctmgr's words
		other        string   // a user whom the limit does not concern; "": nobody
		args         []string // of each of the two jobs
	}{
		{
			"of each user, by the QOS", "QOSMaxGRESPerUser",
			"modify qos normal set MaxTRESPerUser=gres/vgpu=100", "modify qos normal set MaxTRESPerUser=gres/vgpu=-1",
			bob,
			[]string{"--gres=vgpu:60", "--gres=vgpu:50"},
		},
		{
			"of all, by the QOS, and by memory", "QOSGrpGRES",
			"modify qos normal set GrpTRES=gres/vgpu=100", "modify qos normal set GrpTRES=gres/vgpu=-1",
			"",
			[]string{"--gres=vgpu:10 --vgpu-mem=60%", "--gres=vgpu:50"},
		},
		{
			"of the account, with whole cards", "AssocGrpGRES",
			"modify account research set GrpTRES=gres/vgpu=100", "modify account research set GrpTRES=gres/vgpu=-1",
			"",
			[]string{"--gres=vgpu:50", "--gres=vgpu:100"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := site{s.Cluster, t}
			s.sacctmgr(strings.Fields(c.limit)...)
			first := s.submit(alice, c.args[0], "sleep 300")
			s.running(first)
			second := s.submit(alice, c.args[1], "sleep 300")
			s.waitsFor(second, c.reason)
			if c.other != "" {
				beside := s.submit(c.other, c.args[0], "sleep 300")
				s.running(beside)
				s.cancel(c.other, beside)
			}
			s.cancel(alice, first)
			s.running(second)
			s.cancel(alice, second)
			s.sacctmgr(strings.Fields(c.none)...)
		})
	}
	// A job that no room would ever suit waits too, or is refused where the QOS
	// says so.
	s.sacctmgr("modify", "qos", "normal", "set", "MaxTRESPerJob=gres/vgpu=50", "Flags=DenyOnLimit")
	r := s.TrySbatch(alice, []string{"--gres=vgpu:60"}, "true")
	if r.Code == 0 || !strings.Contains(r.Err, "QOSMaxGRESPerJob") {
		t.Errorf("a job above the limit of each: want a refusal for QOSMaxGRESPerJob: %s", r)
	}
	s.completed(alice, s.submit(alice, "--gres=vgpu:50", "true"))
}

var usedWord = regexp.MustCompile(`^night run, 2 vgpu_used\(node=vgpu-node,mem_mib=(\d+),gpu_s=(\d+\.\d)\)$`)

// fraction is what the program did of what a card does in the same time.
var fraction = regexp.MustCompile(`"fraction":(-?[0-9.]+)`)

// What a job held and what it used of it is in Slurm's records after its end.
func testAccounting(t *testing.T, s site) {
	ask := func(job any, done func(map[string]string) bool) map[string]string {
		t.Helper()
		facts, err := s.Sacct(fmt.Sprint(job), shortWait, done, "State", "AllocTRES", "ReqTRES", "AdminComment", "Comment")
		if err != nil {
			t.Fatal(err)
		}
		return facts
	}
	used := func(facts map[string]string) bool { return strings.Contains(facts["AdminComment"], "vgpu_used(") }

	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G --comment=mine", "until [ -e go ]; do sleep 0.1; done; "+
		cluster.Worker+" --alloc 3G; "+cluster.Worker+" --alloc 1G --saturate 1")
	s.running(job)
	// What a site writes there stays.
	if _, err := s.Scontrol("update", fmt.Sprintf("JobId=%d", job), "AdminComment=night run, 2"); err != nil {
		t.Fatal(err)
	}
	if r := s.As(alice, "touch", "go"); r.Code != 0 {
		t.Fatal(r)
	}
	s.completed(alice, job)
	facts := ask(job, used)
	if !strings.Contains(facts["AllocTRES"], "gres/vgpu=30") || !strings.Contains(facts["AllocTRES"], "gres/shard=30") {
		t.Errorf("AllocTRES=%s, want gres/vgpu=30 and gres/shard=30", facts["AllocTRES"])
	}
	if facts["Comment"] != "mine" {
		t.Errorf("Comment=%q, want mine", facts["Comment"])
	}
	word := usedWord.FindStringSubmatch(facts["AdminComment"])
	if word == nil {
		t.Fatalf("AdminComment=%q, want %s", facts["AdminComment"], usedWord)
	}
	mem, _ := strconv.Atoi(word[1])
	gpu, _ := strconv.ParseFloat(word[2], 64)
	// 3 GiB, and what a context takes.
	if mem < 3*1024 || mem > 4*1024 {
		t.Errorf("%d MiB at the most, want a little more than 3072", mem)
	}
	// The program worked for 1 s at 30 %. It had less of the card if it waited for a processor, and at its start
	// the limit does not hold it.
	did, _ := strconv.ParseFloat(fraction.FindStringSubmatch(s.Output(alice, job) + `"fraction":-1`)[1], 64)
	if did <= 0 || gpu < 0.67*min(0.3, did)-0.05 || gpu > 1.5 {
		t.Errorf("%.1f s of the card, want about 0.3; the program says that it had %.3f s", gpu, did)
	}

	// Two whole cards of a job that is killed, and the tasks of an array.
	whole := s.submit(alice, "--gres=vgpu:200", cluster.BusyScript(300))
	s.running(whole)
	time.Sleep(500 * time.Millisecond)
	s.cancel(alice, whole)
	facts = ask(whole, used)
	if !strings.Contains(facts["AllocTRES"], "gres/vgpu=200") || !strings.Contains(facts["AllocTRES"], "gres/gpu=2") {
		t.Errorf("AllocTRES=%s, want gres/vgpu=200 and gres/gpu=2", facts["AllocTRES"])
	}
	array := s.submit(alice, "--array=1-2 --gres=vgpu:25 --output=/dev/null", cluster.Worker+" --alloc ${SLURM_ARRAY_TASK_ID}G")
	for i := range 2 {
		facts = ask(fmt.Sprintf("%d_%d", array, i+1), used)
		// A context, and as many GiB as the number of the task.
		var mem int
		if _, err := fmt.Sscanf(facts["AdminComment"], "vgpu_used(node=vgpu-node,mem_mib=%d,", &mem); err != nil || mem/1024 != i+1 {
			t.Errorf("task %d: AdminComment=%q, %v; want %d GiB and a context", i+1, facts["AdminComment"], err, i+1)
		}
	}
}
