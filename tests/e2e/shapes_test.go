// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/doctor"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// everything runs each kind of job once: with its limit where it has a share, and the node takes
// more jobs afterwards. args are for sbatch and srun, such as a partition.
func (s site) everything(args string) {
	s.t.Helper()
	share := "--gres=vgpu:30 --vgpu-mem=8G " + args
	limited := func(what, out string) {
		s.t.Helper()
		if got := look(s.t, out); got.Total != 8*gib {
			s.t.Errorf("%s: saw %d bytes, want 8 GiB", what, got.Total)
		}
	}
	batch, plain := s.submit(alice, share, "srun "+cluster.LookScript), s.submit(bob, args, "echo ran")
	whole := s.submit(carol, "--gres=gpu:1 "+args, "echo ran")
	limited("sbatch", s.completed(alice, batch))
	for user, job := range map[string]int{bob: plain, carol: whole} {
		if out := s.completed(user, job); !hasWord(out, "ran") {
			s.t.Errorf("job %d: %s", job, out)
		}
	}
	for _, argv := range [][]string{
		append(append([]string{"srun"}, strings.Fields(share)...), "bash", "-c", cluster.LookScript),
		append(append([]string{"salloc"}, strings.Fields(share)...), "srun", "bash", "-c", cluster.LookScript),
	} {
		r := s.As(alice, argv...)
		if r.Code != 0 {
			s.t.Fatalf("%s: %s", argv[0], r)
		}
		limited(argv[0], r.Out)
	}
	if r := s.As(bob, append(append([]string{"srun"}, strings.Fields(args)...), "true")...); r.Code != 0 {
		s.t.Errorf("srun without a share: %s", r)
	}
	if state := s.NodeState(); strings.Contains(state, "DRAIN") {
		s.t.Errorf("the node is %s", state)
	}
}

// installedRelease is 2411 for 24.11. scontrol tells it only where there is a Slurm already.
func installedRelease(t *testing.T) int {
	t.Helper()
	out, err := exec.Command("slurmd", "-V").Output() // "slurm-wlm 24.11.5"
	words := strings.Fields(string(out))
	var year, month int
	if err == nil && len(words) > 0 {
		_, err = fmt.Sscanf(words[len(words)-1], "%d.%d", &year, &month)
	}
	if err != nil || year == 0 {
		t.Fatalf("slurmd -V: %q, %v", out, err)
	}
	return 100*year + month
}

// Settings of Slurm that sites have, and that change when or where the hooks run.
func TestSettingsOfSites(t *testing.T) {
	for _, shape := range []struct {
		name, slurm, args string
		from              int // the first release that knows it
	}{
		{name: "PrologFlags=Alloc", slurm: "PrologFlags=Alloc\n"},
		{name: "PrologFlags=Contain", slurm: "PrologFlags=Contain\n"},
		{name: "PrologFlags=Serial", slurm: "PrologFlags=Serial\n"},
		{name: "PrologFlags=DeferBatch", slurm: "PrologFlags=Alloc,DeferBatch\n", from: 2405},
		{name: "PrologFlags=RunInJob", slurm: "PrologFlags=RunInJob\n", from: 2405},
		{name: "PrologEpilogTimeout=30", slurm: "PrologEpilogTimeout=30\n"},
		{name: "JobRequeue=0", slurm: "JobRequeue=0\n"},
		{name: "PrivateData", slurm: "PrivateData=accounts,events,jobs,nodes,reservations,usage,users\n"},
		{name: "ExclusiveUser", slurm: "PartitionName=own Nodes=ALL ExclusiveUser=YES State=UP\n", args: "-p own"},
	} {
		t.Run(shape.name, func(t *testing.T) {
			if release := installedRelease(t); release < shape.from {
				t.Skipf("Slurm %d does not know it", release)
			}
			opts := cluster.Options{Cards: twoCards}
			opts.Slurm = shape.slurm
			s := up(t, opts)
			s.everything(shape.args)
			if shape.name == "JobRequeue=0" {
				s.fullCardRefuses()
			}
		})
	}
}

// fullCardRefuses: a job that cannot be requeued and finds its card out of use ends at once.
func (s site) fullCardRefuses() {
	s.t.Helper()
	for _, card := range []string{"0", "1"} {
		if r := s.As("root", "vgpuctl", "cordon", card, "noise"); r.Code != 0 {
			s.t.Fatal(r)
		}
	}
	state, out := s.ended(alice, s.submit(alice, "--gres=vgpu:30", "true"))
	if state != "FAILED" || !strings.Contains(out, "noise") {
		s.t.Errorf("%s: %s", state, out)
	}
	for _, card := range []string{"0", "1"} {
		if r := s.As("root", "vgpuctl", "uncordon", card); r.Code != 0 {
			s.t.Fatal(r)
		}
	}
}

// job_container/tmpfs gives each job a /tmp of its own, in mounts of its own. Slurm fails to start
// many jobs with it, with and without slurm-vgpu (launch_failed_requeued_held): those are put away.
func TestPrivateTmp(t *testing.T) {
	opts := cluster.Options{Cards: twoCards}
	opts.Slurm = "JobContainerType=job_container/tmpfs\nPrologFlags=Contain\n"
	opts.Files = map[string]string{"job_container.conf": "AutoBasePath=true\nBasePath=" + cluster.Dir + "/containers\n"}
	s := up(t, opts)
	for range 30 {
		job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", "echo mine >/tmp/mine; ls /tmp; "+cluster.LookScript)
		started := true
		s.eventually(60*time.Second, "the job ends, or Slurm could not start it", func() bool {
			facts, err := s.Job(job)
			started = err != nil || !strings.HasPrefix(facts["Reason"], "launch_failed")
			return err == nil && (!started || facts["JobState"] == "COMPLETED" || facts["JobState"] == "FAILED")
		})
		if !started {
			s.As("root", "scancel", strconv.Itoa(job))
			continue
		}
		out := s.completed(alice, job)
		if got := look(t, out); got.Total != 8*gib {
			t.Errorf("saw %d bytes, want 8 GiB", got.Total)
		}
		if _, err := os.Stat("/tmp/mine"); !hasWord(out, "mine") || err == nil {
			t.Errorf("its /tmp is not its own (%v): %s", err, out)
		}
		return
	}
	t.Error("Slurm started none of 30 jobs")
}

// A node that Slurm calls otherwise than its host calls itself.
func TestNodeOfAnotherName(t *testing.T) {
	opts := cluster.Options{Cards: twoCards}
	opts.NodeName = "gpu01"
	s := up(t, opts)
	s.everything("")
	job := s.submit(alice, "--gres=vgpu:30", "sleep 300")
	s.running(job)
	s.Gresd.Kill()
	s.must(s.Gresd.Start())
	if _, known := s.records()[uint32(job)]; !known {
		t.Error("the job is lost with a restart of gresd")
	}
	if r := s.As("root", "vgpuctl", "doctor"); strings.Contains(r.Out, "a NodeName= line") {
		t.Errorf("doctor: %s", r)
	}
	s.cancel(alice, job)
}

// slurmd and the commands have no slurm.conf but what slurmctld hands out.
func TestConfigless(t *testing.T) {
	opts := cluster.Options{Cards: twoCards}
	opts.Configless = true
	s := up(t, opts)
	if _, err := os.Stat("/etc/slurm/slurm.conf"); err == nil {
		t.Fatal("/etc/slurm/slurm.conf is there")
	}
	s.everything("")
	job := s.submit(alice, "--gres=vgpu:30", "sleep 300")
	s.running(job)
	s.Gresd.Kill()
	s.must(s.Gresd.Start())
	if _, known := s.records()[uint32(job)]; !known {
		t.Error("the job is lost with a restart of gresd")
	}
	s.cancel(alice, job)
}

// A node that gets another name, which is not the host's: what a job of the old name left is cleaned up, and jobs go on.
func TestNodeThatWasRenamed(t *testing.T) {
	s := up(t, cluster.Options{Cards: twoCards})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	job := s.submit(alice, "--gres=vgpu:60", "sleep 300")
	s.running(job)
	s.Gresd.Kill() // so that its Epilog is lost
	s.cancel(alice, job)

	host, err := os.Hostname()
	must(err)
	s.Slurmd.Stop()
	s.Slurmctld.Stop()
	line := regexp.MustCompile(`(?m)^NodeName=.*$`)
	back := s.edit("/etc/slurm/slurm.conf", func(text string) string {
		return line.ReplaceAllStringFunc(text, func(l string) string { return strings.ReplaceAll(l, "="+host+" ", "=other ") })
	})
	must(os.MkdirAll(cluster.Dir+"/state/other", 0o755))
	must(s.Slurmctld.Start())
	s.Slurmd.Begin = func(c *exec.Cmd) error {
		for i, arg := range c.Args {
			if arg == host {
				c.Args[i] = "other"
			}
		}
		return c.Start()
	}
	must(s.Slurmd.Spawn())
	s.eventually(shortWait, "the node is there by its other name", func() bool {
		out, err := s.Scontrol("show", "node", "-o", "other")
		return err == nil && strings.Contains(out, " State=IDLE ")
	})
	must(s.Gresd.Start())
	s.eventually(shortWait, "what the job of the old name left is released", func() bool {
		records, err := s.Records()
		return err == nil && len(records) == 0
	})
	if out := s.completed(bob, s.submit(bob, "--gres=vgpu:80 --vgpu-mem=8G", cluster.LookScript)); look(t, out).Total != 8*gib {
		t.Errorf("a job of the other name sees %s", out)
	}
	if found, _ := s.findings(); !has(found, "slurm", doctor.Pass, "node other has the shares") || has(found, "gresd", doctor.Fail, "") {
		t.Errorf("doctor: %+v", found)
	}

	s.Slurmd.Stop()
	s.Slurmctld.Stop()
	back()
	// slurmctld 24.11 dies of a job whose node is gone.
	must(os.RemoveAll(cluster.Dir + "/state/slurmctld"))
	must(os.Mkdir(cluster.Dir+"/state/slurmctld", 0o755))
	must(s.Slurmctld.Start())
	s.Slurmd.Begin = nil
	must(s.Slurmd.Start())
}

// slurmctld starts anew while the node is down: who ran goes on, who waited gets its turn.
func TestSlurmctldRestartsWhileTheNodeIsDown(t *testing.T) {
	s := up(t, oneCard)
	runs := s.submit(alice, "--gres=vgpu:60", "sleep 300")
	s.running(runs)
	waits := s.submit(bob, "--gres=vgpu:60 --vgpu-mem=8G", cluster.LookScript)
	s.Slurmd.Kill()
	s.Slurmctld.Stop()
	if err := s.Slurmctld.Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.Slurmd.Spawn(); err != nil {
		t.Fatal(err)
	}
	s.eventually(60*time.Second, "the node is there again", func() bool { return s.NodeState() == "MIXED" })
	s.running(runs)
	s.cancel(alice, runs)
	if out := s.completed(bob, waits); look(t, out).Total != 8*gib {
		t.Errorf("who waited sees %s", out)
	}
	if state := s.NodeState(); strings.Contains(state, "DRAIN") {
		t.Errorf("the node is %s", state)
	}
}

// Where Slurm keeps jobs to their users, so do we; gresd itself can ask for all.
func TestPrivateData(t *testing.T) {
	s := up(t, cluster.Options{Cards: oneCard.Cards, Slurm: "PrivateData=jobs,usage,users,accounts,nodes,reservations\n"})
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", "sleep 300")
	s.running(job)
	for _, command := range []string{"status", "jobs"} {
		if r := s.As(bob, "vgpuctl", command); r.Code != 0 || strings.Contains(r.Out, alice) {
			t.Errorf("vgpuctl %s by another user: %s", command, r)
		}
	}
	if r := s.As(alice, "vgpuctl", "jobs"); r.Code != 0 || !strings.Contains(r.Out, alice) {
		t.Errorf("vgpuctl jobs by its user: %s", r)
	}
	if out := s.completed(bob, s.submit(bob, "--gres=vgpu:30 --vgpu-mem=8G", cluster.LookScript)); look(t, out).Total != 8*gib {
		t.Errorf("another job sees %s", out)
	}
	s.cancel(alice, job)
}
