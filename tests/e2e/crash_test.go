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

func TestJobsOutliveGresd(t *testing.T) {
	s := up(t, oneCard)
	// Each job asks for its limit again and again, and says what it saw.
	watch := "while [ ! -e stop ]; do " + cluster.LookScript + " || exit 1; sleep 0.5; done"
	type running struct {
		user  string
		share int
		mem   int
		job   int
	}
	jobs := []*running{{alice, 30, 8, 0}, {bob, 50, 20, 0}, {carol, 20, 4, 0}}
	for _, j := range jobs {
		j.job = s.submit(j.user, fmt.Sprintf("--gres=vgpu:%d --vgpu-mem=%dG", j.share, j.mem), watch)
	}
	for _, j := range jobs {
		s.running(j.job)
		s.eventually(shortWait, "the job has looked", func() bool { return len(cluster.Looks(s.Output(j.user, j.job))) > 0 })
	}
	before := s.records()

	s.Gresd.Kill()
	seen := map[int]int{}
	for _, j := range jobs {
		seen[j.job] = len(cluster.Looks(s.Output(j.user, j.job)))
	}
	for _, j := range jobs {
		s.eventually(shortWait, "the job goes on without gresd", func() bool {
			return len(cluster.Looks(s.Output(j.user, j.job))) > seen[j.job]+1
		})
	}
	if err := s.Gresd.Start(); err != nil {
		t.Fatal(err)
	}
	after := s.records()
	if len(after) != len(jobs) {
		t.Fatalf("after the restart %d records, want %d: %+v", len(after), len(jobs), after)
	}
	for _, j := range jobs {
		b, a := before[uint32(j.job)], after[uint32(j.job)]
		if a.UID != b.UID || a.State != b.State || len(a.Cards) != 1 || len(b.Cards) != 1 ||
			a.Cards[0].UUID != b.Cards[0].UUID || a.Cards[0].LimitBytes != b.Cards[0].LimitBytes ||
			a.Cards[0].Cores != b.Cards[0].Cores {
			t.Errorf("record of job %d changed:\nbefore %+v\nafter  %+v", j.job, b, a)
		}
		r := s.As("root", "vgpuctl", "jobs")
		if r.Code != 0 || !hasWord(r.Out, fmt.Sprint(j.job)) {
			t.Errorf("vgpuctl jobs lacks job %d: %s", j.job, r)
		}
	}
	time.Sleep(time.Second)
	for _, j := range jobs {
		s.stop(j.user)
		for i, w := range cluster.Looks(s.completed(j.user, j.job)) {
			if w.Total != uint64(j.mem)*gib || w.Granted > w.Total {
				t.Errorf("job %d, look %d: saw %d and got %d bytes, want a limit of %d GiB", j.job, i, w.Total, w.Granted, j.mem)
			}
		}
	}
}

// A job that ends while gresd is down is cleaned up by the next gresd.
func TestJobThatEndsWithoutGresdIsCleanedUp(t *testing.T) {
	s := up(t, oneCard)
	job := s.submit(alice, "--gres=vgpu:30", "echo started; sleep 300")
	s.started(alice, job)
	s.Gresd.Kill()
	s.cancel(alice, job) // its Epilog finds no gresd, and must not drain the node
	if state := s.NodeState(); state != "IDLE" {
		t.Errorf("node: %s, want IDLE", state)
	}
	if err := s.Gresd.Start(); err != nil {
		t.Fatal(err)
	}
	s.eventually(45*time.Second, "the record goes", func() bool {
		records, err := s.Records()
		return err == nil && len(records) == 0
	})
}

// waitThenLook is a job that runs until the test calls [site.stop], and then looks at its limit.
const waitThenLook = "echo started; until [ -e stop ]; do sleep 0.1; done; " + cluster.LookScript

// stop ends the wait of a user's jobs.
func (s site) stop(user string) {
	s.t.Helper()
	if r := s.As(user, "touch", "stop"); r.Code != 0 {
		s.t.Fatal(r)
	}
}

// A ledger that was lost is rebuilt from the jobs that run.
func TestLostLedgerIsRebuilt(t *testing.T) {
	s := up(t, oneCard)
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", waitThenLook)
	s.started(alice, job)
	before := s.records()
	s.Gresd.Kill()
	if err := s.DropLedger(); err != nil {
		t.Fatal(err)
	}
	if err := s.Gresd.Start(); err != nil {
		t.Fatal(err)
	}
	after := s.records()
	a, b := after[uint32(job)], before[uint32(job)]
	if len(a.Cards) != 1 || len(b.Cards) != 1 || a.Cards[0].LimitBytes != b.Cards[0].LimitBytes || a.UID != b.UID {
		t.Errorf("rebuilt record:\nbefore %+v\nafter  %+v", b, a)
	}
	s.stop(alice)
	if got := look(t, s.completed(alice, job)); got.Total != 8*gib {
		t.Errorf("limit after: %d bytes, want 8 GiB", got.Total)
	}
}

func TestSlurmdRestartKeepsJobs(t *testing.T) {
	s := up(t, oneCard)
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", waitThenLook)
	s.started(alice, job)
	s.Slurmd.Kill()
	size := s.Slurmd.LogSize()
	if err := s.Slurmd.Spawn(); err != nil { // Start would wait for the end of the job
		t.Fatal(err)
	}
	s.eventually(shortWait, "slurmd has started", func() bool { return strings.Contains(s.Slurmd.LogFrom(size), "slurmd started") })
	s.stop(alice)
	if got := look(t, s.completed(alice, job)); got.Total != 8*gib {
		t.Errorf("limit after: %d bytes, want 8 GiB", got.Total)
	}
}

// started waits until a job has said something: Slurm says RUNNING before its
// Prolog has run, which needs gresd and slurmd.
func (s site) started(user string, job int) {
	s.t.Helper()
	s.eventually(shortWait, fmt.Sprintf("job %d starts", job), func() bool { return s.Output(user, job) != "" })
}

// records returns gresd's records by job, once there is one for each job that
// runs.
func (s site) records() map[uint32]wire.Job {
	s.t.Helper()
	out := map[uint32]wire.Job{}
	s.eventually(shortWait, "each running job has a record", func() bool {
		records, err := s.Records()
		queue, qerr := s.Queue()
		if err != nil || qerr != nil || len(records) != len(queue) {
			return false
		}
		for _, r := range records {
			out[r.JobID] = r
		}
		return true
	})
	return out
}
