// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// nodeLine is the node's line of slurm.conf; its second part is what the node has.
var nodeLine = regexp.MustCompile(`(?m)^NodeName=.* (CPUs=\S+ RealMemory=\S+) .*(Gres=\S+)$`)

// A node that registers by itself (slurmd -Z) has shares like others. When scontrol deletes it, nothing
// of ours is in the way: neither of the deletion nor of the next node on that host.
func TestDynamicNode(t *testing.T) {
	s := up(t, cluster.Options{Cards: twoCards})
	s.Slurmd.Stop()
	s.Slurmctld.Stop()
	var has string
	back := s.edit("/etc/slurm/slurm.conf", func(text string) string {
		found := nodeLine.FindStringSubmatch(text)
		if found == nil {
			t.Fatal("no line of a node in slurm.conf")
		}
		has = found[1] + " " + found[2]
		return nodeLine.ReplaceAllString(text, "MaxNodeCount=4\nTreeWidth=65533")
	})
	s.must(s.Slurmctld.Start())
	is := func(name, state string) {
		t.Helper()
		s.eventually(shortWait, "node "+name+" is "+state, func() bool {
			out, err := s.Scontrol("show", "node", "-o", name)
			return err == nil && strings.Contains(out, " State="+state)
		})
	}
	registers := func(name string) {
		t.Helper()
		s.must(os.MkdirAll(cluster.Dir+"/state/"+name, 0o755))
		s.Slurmd.Begin = func(c *exec.Cmd) error {
			c.Args = append(c.Args[:1], "-D", "-Z", "-N", name, "--conf", has, "-f", "/etc/slurm/slurm.conf")
			return c.Start()
		}
		s.must(s.Slurmd.Spawn())
		is(name, "IDLE")
	}
	deleted := func(name string) {
		t.Helper()
		is(name, "IDLE") // no Epilog is under way
		s.Slurmd.Stop()
		s.eventually(shortWait, "node "+name+" is deleted", func() bool {
			_, err := s.Scontrol("delete", "NodeName="+name)
			return err == nil
		})
	}

	registers("dyn1")
	s.everything("")
	job := s.submit(alice, "--gres=vgpu:60", "sleep 300")
	s.running(job)
	s.Gresd.Kill() // so that its Epilog is lost
	s.cancel(alice, job)
	deleted("dyn1")
	s.must(s.Gresd.Start())
	s.eventually(shortWait, "what the job of the deleted node left is released", func() bool {
		records, err := s.Records()
		return err == nil && len(records) == 0
	})

	registers("dyn2")
	for range 2 { // both cards have room
		s.running(s.submit(bob, "--gres=vgpu:80", "exec sleep 3"))
	}
	s.everything("")
	deleted("dyn2")

	s.Slurmctld.Stop()
	back()
	s.must(s.Slurmctld.Start())
	s.Slurmd.Begin = nil
	s.must(s.Slurmd.Start())
}

// Where each job has its node alone, Slurm gives it every GRES of the node, asked for or not. Who asked
// for no share has none, and no limit. Without job_submit.lua, which refuses it there, who asks for a share has the
// whole card, as Slurm counts it.
func TestJobsThatHaveTheirNodeAlone(t *testing.T) {
	for _, mode := range []string{"slurm", "gresd", "without job_submit.lua"} {
		t.Run(mode, func(t *testing.T) {
			opts := cluster.Options{Cards: twoCards, GresdPlaces: mode == "gresd", Slurm: "PartitionName=alone Nodes=ALL OverSubscribe=EXCLUSIVE\n"}
			lua := !strings.HasPrefix(mode, "without")
			if !lua { // Slurm takes all shards of a node for the job, which must be on one card
				opts.Cards, opts.Without = oneCard.Cards, []string{"JobSubmitPlugins=", "CliFilterPlugins="}
			}
			s := up(t, opts)
			cards := len(opts.Cards)
			for _, args := range []string{"-p alone", "--exclusive", "-p alone --gres=gpu:1", "--exclusive --gres=gpu:1"} {
				out := s.completed(bob, s.submit(bob, args, cluster.Worker+" --count; "+cluster.LookScript))
				if got := look(t, out); got.Total != 80*gib || cluster.Devices(out) != cards {
					t.Errorf("sbatch %s: saw %d cards, the first of %d bytes; want %d of 80 GiB", args, cluster.Devices(out), got.Total, cards)
				}
				r := s.As(bob, append(append([]string{"srun"}, strings.Fields(args)...), "bash", "-c", cluster.LookScript)...)
				if got := look(t, r.Out); r.Code != 0 || got.Total != 80*gib {
					t.Errorf("srun %s: %s", args, r)
				}
			}
			if !lua {
				if got := look(t, s.completed(alice, s.submit(alice, "-p alone --gres=shard:30", cluster.LookScript))); got.Total != 80*gib {
					t.Errorf("a share of 30 to which Slurm gave 100: saw %d bytes, want 80 GiB", got.Total)
				}
			}
			if state := s.NodeState(); strings.Contains(state, "DRAIN") {
				t.Errorf("the node is %s", state)
			}
		})
	}
}

// Two clusters, each with its slurmctld and slurmd, call this host by one name, and count their jobs from 1. Jobs
// with a share are of one cluster at a time: those of the other wait, or are told why not, and change nothing.
func TestTwoClustersOnAHost(t *testing.T) {
	s := up(t, cluster.Options{Cards: twoCards})
	_, err := s.Second()
	s.must(err)
	// of runs a command of the second cluster.
	of := func(user string, argv ...string) cluster.Result {
		return s.As(user, append([]string{"env", "SLURM_CONF=" + cluster.SecondConf}, argv...)...)
	}
	submitted := func(job int, args ...string) {
		t.Helper()
		r := of(bob, append([]string{"sbatch", "--parsable", "--output=second%j.out"}, args...)...)
		if r.Code != 0 || r.Out != fmt.Sprint(job) {
			t.Fatalf("want job %d: %s", job, r)
		}
	}
	theirs := func(job int) string {
		out, _ := s.ScontrolOf(cluster.SecondConf, "show", "job", "-o", fmt.Sprint(job))
		return out
	}
	done := func(job int) string {
		t.Helper()
		s.eventually(90*time.Second, fmt.Sprintf("job %d of the second cluster is done", job), func() bool {
			return strings.Contains(theirs(job), "JobState=COMPLETED")
		})
		return s.File(bob, fmt.Sprintf("second%d.out", job))
	}
	const reason = "jobs of cluster private have shares on this node"

	first := s.submit(alice, "--gres=vgpu:60 --vgpu-mem=8G", cluster.LookScript+"; until [ -e more ]; do sleep 0.1; done; "+cluster.LookScript+"; srun "+cluster.LookScript)
	s.running(first)
	grant := func() string {
		t.Helper()
		text, err := os.ReadFile(cluster.JobDir(first) + "/grant")
		s.must(err)
		return string(text)
	}
	before := grant()

	// The first has the number of a job with a share, and the next has not.
	submitted(first, "--wrap", "true")
	s.eventually(shortWait, "the job with the same number is refused", func() bool { return strings.Contains(theirs(first), "JobState=FAILED") })
	if out := s.File(bob, fmt.Sprintf("second%d.out", first)); !strings.Contains(out, fmt.Sprintf("made for job %d of uid", first)) {
		t.Errorf("told %q", out)
	}
	submitted(first+1, "--wrap", cluster.Worker+" --count; srun true")
	done(first + 1)
	if grant() != before || len(s.records()) != 1 {
		t.Errorf("the grant of job %d is another, or there are other records: %v", first, s.records())
	}
	submitted(first+2, "--gres=vgpu:30", "--vgpu-mem=4G", "--wrap", cluster.LookScript)
	s.eventually(shortWait, "the share of the second cluster is back in the queue", func() bool {
		return strings.Contains(theirs(first+2), " Restarts=1 ")
	})
	if r := of(bob, "srun", "--gres=vgpu:30", "true"); r.Code == 0 || !strings.Contains(r.Err, reason) {
		t.Errorf("srun of the second cluster: %s", r)
	}
	s.eventually(shortWait, "its user is told why", func() bool {
		return strings.Contains(of(bob, "squeue", "-h", "-O", "admin_comment:1000").Out, reason)
	})

	s.must(os.WriteFile(s.Home(alice)+"/more", nil, 0o644))
	looks := cluster.Looks(s.completed(alice, first))
	if len(looks) != 3 || looks[0].Total != 8*gib || looks[1] != looks[0] || looks[2].Total != 8*gib {
		t.Errorf("the first cluster's job saw %+v; want 8 GiB three times", looks)
	}
	if got := look(t, done(first+2)); got.Total != 4*gib {
		t.Errorf("the second cluster's job, when it had its turn, saw %d bytes, want 4 GiB", got.Total)
	}

	// And the other way about, through a restart of gresd.
	submitted(first+4, "--gres=vgpu:30", "--vgpu-mem=4G", "--wrap", "until [ -e more ]; do sleep 0.1; done; "+cluster.LookScript)
	s.eventually(shortWait, "the second cluster's job has a record", func() bool {
		records, err := s.Records()
		return err == nil && len(records) == 1
	})
	s.Gresd.Kill()
	s.must(s.Gresd.Start())
	waits := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", cluster.LookScript)
	s.eventually(shortWait, "the share of the first cluster is back in the queue", func() bool {
		facts, err := s.Job(waits)
		return err == nil && facts["Restarts"] == "1"
	})
	s.must(os.WriteFile(s.Home(bob)+"/more", nil, 0o644))
	if got := look(t, done(first+4)); got.Total != 4*gib {
		t.Errorf("the second cluster's job saw %d bytes, want 4 GiB", got.Total)
	}
	if got := look(t, s.completed(alice, waits)); got.Total != 8*gib {
		t.Errorf("the first cluster's job that waited saw %d bytes, want 8 GiB", got.Total)
	}
	if out, err := s.ScontrolOf(cluster.SecondConf, "show", "node", "-o", s.Name()); err != nil || strings.Contains(out+s.NodeState(), "DRAIN") {
		t.Errorf("the node: %s; in the second cluster: %s", s.NodeState(), out)
	}
}
