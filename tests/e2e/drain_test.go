// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// Whatever is the matter with gresd, jobs without a share start, a batch job with one waits in
// the queue, srun is told why, and the node takes jobs.
func TestNoJobDrainsItsNode(t *testing.T) {
	s := up(t, cluster.Options{Cards: twoCards, Slurm: "PrologEpilogTimeout=30\n"})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, trouble := range []struct {
		name         string
		begin, mend  func()
		toldToShares string
	}{
		{"away", s.Gresd.Kill, func() { must(s.Gresd.Start()) }, "no grant"},
		{
			"hangs", func() { must(syscall.Kill(s.Gresd.PID(), syscall.SIGSTOP)) },
			func() { must(syscall.Kill(s.Gresd.PID(), syscall.SIGCONT)) }, "",
		},
	} {
		t.Run(trouble.name, func(t *testing.T) {
			s := site{s.Cluster, t}
			trouble.begin()
			share := s.submit(alice, "--gres=vgpu:30", "echo ran")
			whole := s.submit(bob, "--gres=gpu:1", "echo ran")
			for _, args := range []string{"true", "--gres=gpu:1 true", "--comment=xvgpu( true"} {
				if r := s.As(alice, append([]string{"srun"}, strings.Fields(args)...)...); r.Code != 0 {
					t.Errorf("srun %s: %s", args, r)
				}
			}
			if out := s.completed(bob, whole); !hasWord(out, "ran") {
				t.Errorf("a job with a whole card: %s", out)
			}
			if trouble.toldToShares != "" {
				if r := s.As(alice, "srun", "--gres=vgpu:20", "true"); r.Code == 0 || !strings.Contains(r.Err, trouble.toldToShares) {
					t.Errorf("srun with a share: %s", r)
				}
			}
			s.eventually(60*time.Second, "the job with a share is back in the queue", func() bool {
				facts, err := s.Job(share)
				return err == nil && facts["Restarts"] != "0"
			})
			if state := s.NodeState(); strings.Contains(state, "DRAIN") {
				t.Errorf("the node is %s", state)
			}
			trouble.mend()
			if out := s.completed(alice, share); !hasWord(out, "ran") {
				t.Errorf("the job with a share: %s", out)
			}
		})
	}
	// A driver that takes long to start: who asks meanwhile waits.
	s.Gresd.Kill()
	s.sim("slow --call nvmlDeviceGetHandleByIndex_v2 --ms 4000 --count 2")
	must(s.Gresd.Spawn())
	if r := s.As(alice, "srun", "--gres=vgpu:30", "true"); r.Code != 0 {
		t.Errorf("srun while gresd starts: %s", r)
	}
	if state := s.NodeState(); strings.Contains(state, "DRAIN") {
		t.Errorf("the node is %s", state)
	}
}

// sbatch hands the environment of a job with a share on to the jobs that are submitted in it.
func TestJobsOutOfAJobWithAShare(t *testing.T) {
	s := up(t, cluster.Options{Cards: twoCards})
	out := s.completed(alice, s.submit(alice, "--gres=vgpu:30", `
		for args in "" "--gres=gpu:1" "--gres=vgpu:20"; do
			sbatch --parsable --wait -o out.%j $args --wrap "echo ran" > id || echo "$args failed"
			cat out.$(cat id)
		done`))
	if n := strings.Count(out, "ran"); n != 3 || strings.Contains(out, "failed") {
		t.Errorf("%d of 3 jobs ran:\n%s", n, out)
	}
}
