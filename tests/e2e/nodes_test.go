// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// clusterJSON is what vgpuctl nodes --json says, as far as the tests look.
type clusterJSON struct {
	Usable int    `json:"cards_usable"`
	Given  uint64 `json:"share_given"`
	Unread int    `json:"jobs_unread"`
	Places []struct{ Share, Fit int }
	Nodes  []struct {
		Node, State, Reason string
		Jobs                int
		Cards               []struct {
			Out   bool
			Given uint64 `json:"share_given"`
		}
	}
	Waiting []struct {
		User, Reason string
		Jobs         int
	}
}

func (l loginHost) cluster(user string) (v clusterJSON) {
	l.t.Helper()
	if err := json.Unmarshal([]byte(l.as(0, user, "vgpuctl", "nodes", "--json")), &v); err != nil {
		l.t.Fatal(err)
	}
	return v
}

// slurmctld alone tells what is given on which node, who waits, and which cards gresd took out.
func TestNodesFromALoginHost(t *testing.T) {
	s := up(t, twoNodes)
	l := s.login()
	one := s.submit(alice, "--gres=vgpu:30 --nodelist=vgpu-node", "sleep 300")
	two := s.submit(bob, "--gres=vgpu:60 --nodelist=vgpu-node2", "sleep 300")
	wide := s.submit(bob, "--gres=vgpu:15 --nodes=2", "sleep 300")
	s.running(one, wide)
	forger := s.submit(carol, "--nodelist=vgpu-node2", "sleep 300")
	// The words of a job are not another's.
	if _, err := s.Scontrol("update", fmt.Sprintf("JobId=%d", forger),
		fmt.Sprintf("Comment=x\nJobId=%d JobName=x UserId=root(0)", two)); err != nil {
		t.Fatal(err)
	}
	waits := s.submit(carol, "--gres=vgpu:80", "sleep 300")
	var v clusterJSON
	s.eventually(shortWait, "all jobs are seen", func() bool {
		v = l.cluster("root")
		return v.Given == 60 && len(v.Waiting) == 1 && v.Waiting[0].Reason == "Resources" && v.Unread == 1
	})
	if err := exec.Command("scontrol", "update", fmt.Sprintf("JobId=%d", forger), "Comment=x").Run(); err != nil {
		t.Fatal(err)
	}
	s.eventually(shortWait, "no job is hidden", func() bool { v = l.cluster("root"); return v.Given == 120 })
	if v.Usable != 2 || v.Unread != 0 || v.Nodes[0].Cards[0].Given != 45 || v.Nodes[1].Cards[0].Given != 75 || v.Nodes[0].Jobs != 2 ||
		v.Places[0].Fit != 3 || v.Places[1].Fit != 1 || v.Places[2].Fit != 0 || v.Waiting[0].User != carol || v.Waiting[0].Jobs != 1 {
		t.Errorf("got %+v", v)
	}
	if v := l.cluster(alice); len(v.Waiting) != 0 {
		t.Errorf("%s is told of jobs of others that wait: %+v", alice, v.Waiting)
	}
	if v := l.cluster(carol); len(v.Waiting) != 1 {
		t.Errorf("%s is not told of her own job: %+v", carol, v.Waiting)
	}
	if r := s.As("root", "vgpuctl", "cordon", "0", "the", "fan"); r.Code != 0 {
		t.Fatal(r)
	}
	s.eventually(shortWait, "slurmctld knows of the cordon", func() bool { v = l.cluster("root"); return v.Nodes[0].Cards[0].Out })
	if v.Usable != 1 || v.Nodes[1].Cards[0].Out || !strings.Contains(v.Nodes[0].Reason, "the fan") {
		t.Errorf("got %+v", v)
	}
	if out := l.as(0, "root", "vgpuctl", "nodes"); !strings.Contains(out, "45!") || !strings.Contains(out, "the fan") || !strings.Contains(out, "jobs that wait for a share: 1") {
		t.Errorf("got %s", out)
	}
	if r := s.As("root", "vgpuctl", "uncordon", "0"); r.Code != 0 {
		t.Fatal(r)
	}
	s.cancel(carol, waits, forger)
	s.cancel(bob, two, wide)
	s.cancel(alice, one)
}

const (
	manyNodes = 1000
	manyJobs  = 10000
	// runningJobs have 20 nodes each.
	runningJobs = 100
)

// A large cluster whose nodes are in the cloud and never come: jobs get cards and configure.
func TestNodesOfALargeCluster(t *testing.T) {
	onlyLong(t)
	opts := oneCard
	opts.Slurm = fmt.Sprintf("PrivateData=cloud\nSchedulerParameters=defer,sched_interval=5,bf_interval=600\nMaxArraySize=%d\nMaxJobCount=50000\nSuspendProgram=/bin/true\nResumeProgram=/bin/true\nResumeTimeout=36000\nSuspendTime=36000\n"+
		"ResumeRate=0\nNodeName=c[1-%d] NodeAddr=127.0.0.1 Port=9 CPUs=64 RealMemory=8000 State=CLOUD Gres=gpu:sim:8,shard:sim:800\n"+
		"PartitionName=cloud Nodes=c[1-%d] MaxTime=INFINITE State=UP\n", manyJobs+1, manyNodes, manyNodes)
	for i := range 8 { // any files do
		opts.GRES += fmt.Sprintf("NodeName=c[1-%[1]d] Name=gpu Type=sim File=/dev/tty%[2]d\nNodeName=c[1-%[1]d] Name=shard Type=sim File=/dev/tty%[2]d Count=100\n", manyNodes, i)
	}
	s := up(t, opts)
	l := s.login()
	// Jobs that wait, each with a record of its own, which a task of an array has once it is changed.
	var changes strings.Builder
	for range 10 {
		job := s.submit(bob, fmt.Sprintf("--hold --partition=cloud --array=1-%d --gres=vgpu:30", manyJobs/10), "true")
		defer s.As("root", "scancel", fmt.Sprint(job))
		for i := range manyJobs / 10 {
			fmt.Fprintf(&changes, "update JobId=%d_%d Comment=x\n", job, i+1)
		}
	}
	change := exec.Command("scontrol")
	change.Stdin = strings.NewReader(changes.String())
	if out, err := change.CombinedOutput(); err != nil {
		t.Fatalf("%v: %.1000s", err, out)
	}
	wide := s.submit(alice, fmt.Sprintf("--partition=cloud --array=1-%d --nodes=20 --gres=vgpu:30", runningJobs), "true")
	defer s.As("root", "scancel", fmt.Sprint(wide))
	var v clusterJSON
	s.eventually(8*time.Minute, "many jobs have cards", func() bool {
		time.Sleep(5 * time.Second)
		v = l.cluster("root")
		return v.Given >= 30*20*runningJobs
	})
	if len(v.Nodes) != manyNodes+1 {
		t.Errorf("%d nodes, want %d", len(v.Nodes), manyNodes+1)
	}
	before, began := requests(t), time.Now()
	cmd := exec.Command(l.program, "root", "vgpuctl", "nodes", "--json")
	out, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	took, after := time.Since(began), requests(t)
	for name, now := range after {
		if n := now.count - before[name].count; n > 0 {
			t.Logf("slurmctld: %s: %d in %s", name, n, now.took-before[name].took)
		}
	}
	t.Logf("%d nodes, share given %d, jobs that wait in %d groups: %s in all, %s of processor time with Slurm's commands",
		len(v.Nodes), v.Given, len(v.Waiting), took, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	began = time.Now()
	for _, command := range []string{"scontrol --local show node", "squeue --local -a -r -h -t PENDING,RUNNING,CONFIGURING -o %A|%T|%u|%r|%b", "scontrol --local --all show job -d -o"} {
		argv := strings.Fields(command)
		if err := exec.Command(argv[0], argv[1:]...).Run(); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
	t.Logf("Slurm's commands alone: %s", time.Since(began))
	if n := after["REQUEST_JOB_INFO"].count - before["REQUEST_JOB_INFO"].count; n != 2 {
		t.Errorf("slurmctld was asked %d times for all jobs, want 2", n)
	}
	if n := after["REQUEST_NODE_INFO"].count - before["REQUEST_NODE_INFO"].count; n != 2 { // scontrol show job asks, too
		t.Errorf("slurmctld was asked %d times for all nodes, want 2", n)
	}
}

var request = regexp.MustCompile(`(?m)^\s*(REQUEST_\w+)\s*\(\s*\d+\)\s*count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)`)

// load is how often slurmctld was asked a thing, and how long it took to answer.
type load struct {
	count int
	took  time.Duration
}

// requests are what slurmctld was asked since it started, by sdiag.
func requests(t *testing.T) map[string]load {
	t.Helper()
	out, err := exec.Command("sdiag").Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]load{}
	for _, found := range request.FindAllStringSubmatch(string(out), -1) {
		n, _ := strconv.Atoi(found[2])
		us, _ := strconv.Atoi(found[3])
		all[found[1]] = load{n, time.Duration(us) * time.Microsecond}
	}
	return all
}
