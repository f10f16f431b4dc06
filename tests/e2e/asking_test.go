// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// Ways to ask that are ordinary elsewhere.

// oneLine wants a job refused at submit with a line of ours.
func (s site) oneLine(r cluster.Result, parts ...string) {
	s.t.Helper()
	if r.Code == 0 {
		s.t.Errorf("accepted: %s", r)
	}
	checkLine(s.t, r.Err, "vgpu: ", parts...)
}

// Where gresd places, a share may be more than half of each of two cards.
func TestMoreThanHalfOfEachOfTwoCards(t *testing.T) {
	s := up(t, gresdPlaces)
	out := s.completed(alice, s.submit(alice, "--gres=vgpu:120 --vgpu-cards=2", cluster.Worker+" --count; srun "+cluster.LookScript))
	if got := look(t, out); cluster.Devices(out) != 2 || got.Total != 48*gib {
		t.Errorf("saw %d cards, the first of %d bytes; want two of 48 GiB:\n%s", cluster.Devices(out), got.Total, out)
	}
	out = s.completed(bob, s.submit(bob, "--gres=vgpu:120 --comment=vgpu(cards=2)", cluster.Worker+" --count"))
	if cluster.Devices(out) != 2 {
		t.Errorf("by the comment: want two cards:\n%s", out)
	}
	s.oneLine(s.TrySbatch(bob, []string{"--gres=vgpu:120"}, "true"), `--gres=vgpu: "120"`, "with --vgpu-cards a share of several cards")
	s.oneLine(s.TrySbatch(bob, []string{"--gres=vgpu:150", "--vgpu-cards=4"}, "true"), "divides the share 150", "--vgpu-cards=2")
}

// What slurmctld cannot do with a share is refused at submit, with what to write.
func TestWaysToAskThatDoNotGoWithAShare(t *testing.T) {
	s := up(t, cluster.Options{Slurm: "PartitionName=excl Nodes=ALL OverSubscribe=EXCLUSIVE\nPartitionName=own Nodes=ALL ExclusiveUser=YES"})
	for _, c := range []struct {
		args  string
		parts []string
	}{
		{"--gres=vgpu:120 --vgpu-cards=2", []string{`--vgpu-cards: "2"`, "want whole cards", "--gres=vgpu:200"}},
		{"--gres=vgpu:30 -p excl", []string{`--partition: "excl"`, "OverSubscribe=EXCLUSIVE", "--gres=gpu:1"}},
		{"--gres=vgpu:30 -p main,excl", []string{`--partition: "excl"`}},
		{"--gres=vgpu:30 --cpus-per-gpu=4", []string{`--cpus-per-gpu: "4"`, "--cpus-per-task=4"}},
		{"--gres=vgpu:30 --mem-per-gpu=1G", []string{`--mem-per-gpu: "1G"`, "--mem=1G"}},
		{"--gres=vgpu:30 --gpu-freq=high", []string{`--gpu-freq: "high"`, "--gres=gpu:1"}},
	} {
		args := strings.Fields(c.args)
		s.oneLine(s.TrySbatch(bob, args, "true"), c.parts...)
		s.oneLine(s.As(bob, slices.Concat([]string{"srun", "--immediate=30"}, args, []string{"true"})...), c.parts...)
	}
	// A pending job cannot move there either.
	held := s.submit(alice, "--gres=vgpu:30 --hold", "true")
	if r := s.As(alice, "scontrol", "update", fmt.Sprint("JobId=", held), "Partition=excl"); r.Code == 0 {
		t.Errorf("a share moved into an exclusive partition: %s", r)
	}
	s.cancel(alice, held)
	// ExclusiveUser gives the node to a user, whose jobs share it.
	one := s.submit(alice, "--gres=vgpu:30 -p own", "exec sleep 300")
	s.running(one)
	if got := look(t, s.completed(alice, s.submit(alice, "--gres=vgpu:30 -p own", cluster.LookScript))); got.Total != 24*gib {
		t.Errorf("beside another of its user a job saw %d bytes, want 24 GiB", got.Total)
	}
	s.cancel(alice, one)
}

// A step has the limits of its job, and says so where something else was typed for it.
func TestOptionsOfAStepAreToldToHaveNoEffect(t *testing.T) {
	s := up(t, oneCard)
	const line = "vgpu: --vgpu-mem: no effect: a step has the limits of its job"
	r := s.As(alice, "salloc", "--immediate=30", "--gres=vgpu:30", "--vgpu-mem=8G", "bash", "-c",
		"srun true; srun --vgpu-mem=8G true; srun --vgpu-mem=none true; echo next >&2; srun --vgpu-mem=4G "+cluster.LookScript)
	before, after, found := strings.Cut(r.Err, "next")
	if r.Code != 0 || !found || strings.Contains(before, "no effect") || strings.Count(after, line) != 1 {
		t.Errorf("want one line, at the last step: %s", r)
	}
	if got := look(t, r.Out); got.Total != 8*gib {
		t.Errorf("the step saw %d bytes, want its job's 8 GiB", got.Total)
	}
	job := s.submit(alice, "--gres=vgpu:30", "sleep 300")
	s.running(job)
	r = s.As(alice, "srun", fmt.Sprint("--jobid=", job), "--overlap", "--vgpu-mem=4G", "true")
	if r.Code != 0 || strings.Count(r.Err, line) != 1 {
		t.Errorf("a step from outside: %s", r)
	}
	s.cancel(alice, job)
}

// Without PrologFlags=Alloc, slurmd gives Prolog the options of the step that comes to the node first.
// A job has its own all the same.
func TestFirstStepDoesNotChangeTheOptionsOfItsJob(t *testing.T) {
	s := up(t, twoNodes)
	const asks = "--gres=vgpu:30 --vgpu-mem=40G"
	want := func(what, out string, nodes int) {
		t.Helper()
		looks := cluster.Looks(out)
		if len(looks) != nodes {
			t.Errorf("%s: %d tasks told something, want %d:\n%s", what, len(looks), nodes, out)
		}
		for _, got := range looks {
			if got.Total != 40*gib {
				t.Errorf("%s: saw %d bytes, want 40 GiB", what, got.Total)
			}
		}
	}
	const look = cluster.LookScript
	r := s.As(alice, append(append([]string{"salloc", "--no-shell"}, strings.Fields(asks)...), "--immediate=30")...)
	_, job, found := strings.Cut(strings.TrimSpace(r.Err), "Granted job allocation ")
	if r.Code != 0 || !found {
		t.Fatal(r)
	}
	job, _, _ = strings.Cut(job, "\n")
	want("a step of salloc --no-shell", s.As(alice, "bash", "-c", "srun --jobid="+job+" --vgpu-mem=4G "+look).Out, 1)
	want("a step that asks for less", s.As(alice, "bash", "-c", "salloc -N1 "+asks+" srun --vgpu-mem=4G "+look).Out, 1)
	const clean = "env -i SLURM_JOB_ID=$SLURM_JOB_ID PATH=$PATH SLURM_CONF=$SLURM_CONF srun -N2 -n2 "
	want("a step on two nodes that has lost its environment", s.completed(alice, s.submit(alice, "-N2 "+asks, clean+look)), 2)
	s.As(alice, "scancel", job)
}

// An option of the script can be taken back where the job is to have no share.
func TestOptionOfTheScriptIsTakenBack(t *testing.T) {
	s := up(t, oneCard)
	script := s.Home(alice) + "/job.sh"
	if r := s.As(alice, "bash", "-c", "printf '#!/bin/bash\\n#SBATCH --gres=vgpu:30 --vgpu-mem=8G\\necho ran\\n' >"+script); r.Code != 0 {
		t.Fatal(r)
	}
	s.oneLine(s.As(alice, "sbatch", "--gres=none", script), `--vgpu-mem: "8G"`, "want also a share", "or --vgpu-mem=none")
	if r := s.As(alice, "sbatch", "--wait", "--gres=none", "--vgpu-mem=none", "--output=out", script); r.Code != 0 || s.File(alice, "out") != "ran\n" {
		t.Errorf("with both taken back: %s, %q", r, s.File(alice, "out"))
	}
	if r := s.As(alice, "vgpu-srun", "--vgpu-mem=8G", "--vgpu-mem=none", "true"); r.Code != 0 {
		t.Errorf("vgpu-srun: %s", r)
	}
}

// On Slurm 22.05 a comment can look like a request for shards in what scontrol prints.
func TestForgedRequestForShardsMeansNothing(t *testing.T) {
	s := up(t, oneCard)
	var jobs []int
	for _, args := range [][]string{
		{"--comment=x TresPerNode=gres:shard:1"},
		{"--no-requeue", "--comment=xvgpu( TresPerNode=gres:shard:1"},
		{"--job-name=x TresPerNode=gres:shard:1"},
	} {
		job, err := s.Sbatch(bob, args, "echo ran")
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, job)
	}
	for _, job := range jobs {
		facts, err := s.WaitState(job, 2*shortWait, "COMPLETED", "FAILED")
		if err != nil {
			t.Fatal(err)
		}
		if facts["JobState"] != "COMPLETED" || facts["Restarts"] != "0" {
			t.Errorf("job %d: %s after %s restarts, want COMPLETED after none", job, facts["JobState"], facts["Restarts"])
		}
	}
	if state := s.NodeState(); strings.Contains(state, "DRAIN") {
		t.Errorf("node: %s", state)
	}
}

// Where Slurm may split shards over cards, a share is never split unasked, and the tasks
// of a job can each have a share on a card of their own.
func TestSharesThatSlurmSplits(t *testing.T) {
	out, err := exec.Command("slurmd", "-V").Output() // "slurm-wlm 24.11.5"
	if err != nil {
		t.Fatal(err)
	}
	if words := strings.Fields(string(out)); len(words) == 0 || words[len(words)-1] < "24.11" {
		t.Skipf("MULTIPLE_SHARING_GRES_PJ: want Slurm 24.11, here is %s", out)
	}
	s := up(t, cluster.Options{Cards: gresdPlaces.Cards, Slurm: "SelectTypeParameters=CR_CPU,MULTIPLE_SHARING_GRES_PJ"})
	r := s.As(alice, "srun", "-n2", "--tres-per-task=gres/vgpu:60", "--gres-flags=one-task-per-sharing", cluster.Worker, "--count")
	if r.Code != 0 {
		t.Errorf("a share for each of two tasks: %s", r)
	}
	first, second := s.submit(alice, "--gres=vgpu:70", "sleep 300"), s.submit(alice, "--gres=vgpu:80", "sleep 300")
	s.running(first, second)
	split := s.submit(bob, "--gres=vgpu:50", cluster.LookScript)
	want := "want 50 % of one card: slurmctld has split it into "
	s.eventually(shortWait, "the job comes back with a reason", func() bool {
		facts, err := s.Job(split)
		return err == nil && facts["Restarts"] != "0" && strings.Contains(s.adminComment(split), want)
	})
	if r := s.As(bob, "srun", "--gres=vgpu:50", "true"); r.Code == 0 || !strings.Contains(r.Err, want) {
		t.Errorf("srun: %s", r)
	}
	if state := s.NodeState(); strings.Contains(state, "DRAIN") {
		t.Errorf("node: %s", state)
	}
	s.cancel(alice, first, second)
	if got := look(t, s.completed(bob, split)); got.Total != 40*gib {
		t.Errorf("with room on one card the job saw %d bytes, want 40 GiB", got.Total)
	}
}
