// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/doctor"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

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
