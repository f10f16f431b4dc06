// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// trouble is something that is the matter with gresd.
type trouble struct {
	name        string
	begin, mend func(s site)
	// refuses: a batch job with a share may end with a reason, because nobody can put it back.
	refuses bool
}

// must ends the test on an error.
func (s site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// notHere are what only nodes that share cards have.
var notHere = []string{"/etc/vgpu", "/run/vgpu"}

// scontrolThatFails works for gresd. While a file exists, it fails for vgpu-prolog.
const scontrolThatFails = cluster.Dir + "/scontrol"

var troubles = []trouble{
	{"no gresd", func(s site) {
		s.Gresd.Stop()
		for _, dir := range notHere {
			s.must(os.Rename(dir, dir+".away"))
		}
	}, func(s site) {
		for _, dir := range notHere {
			_ = os.RemoveAll(dir)
			s.must(os.Rename(dir+".away", dir))
		}
		s.must(s.Gresd.Start())
	}, true},
	{"dead", func(s site) { s.Gresd.Kill() }, func(s site) { s.must(s.Gresd.Start()) }, false},
	{
		"hanging", func(s site) { s.must(syscall.Kill(s.Gresd.PID(), syscall.SIGSTOP)) },
		func(s site) { s.must(syscall.Kill(s.Gresd.PID(), syscall.SIGCONT)) }, false,
	},
	{"late", func(s site) {
		s.Gresd.Kill()
		s.sim("slow --call nvmlDeviceGetHandleByIndex_v2 --ms 4000 --count 2")
		s.must(s.Gresd.Spawn())
	}, func(site) {}, false},
	{
		"no scontrol", func(s site) { s.must(os.WriteFile(scontrolThatFails+".fails", nil, 0o644)) },
		func(s site) { s.must(os.Remove(scontrolThatFails + ".fails")) }, true,
	},
}

// kinds of jobs, what they ask for, and whether gresd has a say in them.
var drainKinds = []struct {
	name, asks string
	shares     bool
}{
	{"CPU job", "", false},
	{"whole GPU", "--gres=gpu:1", false},
	{"share", "--gres=vgpu:20", true},
	{"array", "--array=1-2 --gres=vgpu:10", true},
}

// Whatever is the matter with gresd, and whatever starts meanwhile, the node is not drained; jobs
// without a share run at once, batch jobs with one wait.
func TestNoCellDrainsItsNode(t *testing.T) {
	s := up(t, cluster.Options{
		Cards: twoCards, Slurm: "PrologEpilogTimeout=30\n", Config: "[slurm]\nscontrol = \"" + scontrolThatFails + "\"\n",
	})
	s.makeScontrolThatFails()
	s.completed(alice, s.submit(alice, "--gres=vgpu:20", "true"))

	cells := map[string]string{}
	for _, trouble := range troubles {
		t.Run(trouble.name, func(t *testing.T) {
			s := site{s.Cluster, t}
			trouble.begin(s)
			s.cellsOf(trouble, cells)
			if state := s.NodeState(); strings.Contains(state, "DRAIN") {
				t.Errorf("the node is %s", state)
			}
		})
	}
	if want := len(troubles) * len(drainKinds) * 2; len(cells) != want {
		t.Errorf("%d cells were run, want %d: %v", len(cells), want, cells)
	}
	for _, trouble := range troubles {
		for _, kind := range drainKinds {
			t.Logf("%-10s %-10s batch: %-42s srun: %s", trouble.name, kind.name, cells[trouble.name+kind.name+"batch"], cells[trouble.name+kind.name+"srun"])
		}
	}
}

// makeScontrolThatFails makes it, with Slurm's other commands beside it.
func (s site) makeScontrolThatFails() {
	s.t.Helper()
	text := fmt.Sprintf("#!/bin/sh\nif [ -e %s.fails ] && [ \"$(cat /proc/$PPID/comm)\" = vgpu-prolog ]; then echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1; fi\nexec scontrol \"$@\"\n", scontrolThatFails)
	s.must(os.WriteFile(scontrolThatFails, []byte(text), 0o755))
	for _, command := range []string{"squeue", "sacct", "sacctmgr"} {
		s.must(os.Symlink("/usr/bin/"+command, cluster.Dir+"/"+command))
	}
}

// cellsOf runs all kinds of jobs under one trouble, each as a batch job and by srun, and says what
// became of each.
func (s site) cellsOf(trouble trouble, cells map[string]string) {
	s.t.Helper()
	batch := map[string]int{}
	for _, kind := range drainKinds {
		batch[kind.name] = s.submit(bob, kind.asks, "echo ran")
	}
	// An array is for sbatch alone: there srun is its tasks' step.
	stepped := s.submit(carol, drainKinds[3].asks, "srun echo ran")

	// A task with a share may wait as long as gresd hangs.
	var work, waits sync.WaitGroup
	var mu sync.Mutex
	for _, kind := range drainKinds[:3] {
		group := &work
		if kind.shares {
			group = &waits
		}
		group.Go(func() {
			r := s.As(alice, append(append([]string{"srun"}, strings.Fields(kind.asks)...), "echo", "ran")...)
			mu.Lock()
			defer mu.Unlock()
			cells[trouble.name+kind.name+"srun"] = "ran"
			if r.Code != 0 {
				cells[trouble.name+kind.name+"srun"] = "refused"
				if !kind.shares || !strings.Contains(r.Err, "vgpu") && !strings.Contains(r.Err, "Socket timed out") {
					s.t.Errorf("srun of a %s: %s", kind.name, r)
				}
			}
		})
	}
	for _, kind := range drainKinds {
		if !kind.shares {
			if out := s.completed(bob, batch[kind.name]); !hasWord(out, "ran") {
				s.t.Errorf("a %s: %s", kind.name, out)
			}
			cells[trouble.name+kind.name+"batch"] = "ran"
		}
	}
	work.Wait()
	state := s.NodeState()
	trouble.mend(s)
	waits.Wait()
	if strings.Contains(state, "DRAIN") {
		s.t.Fatalf("the node is %s", state)
	}
	cells[trouble.name+"sharebatch"] = s.shareCell(trouble, bob, batch["share"])
	cells[trouble.name+"arraybatch"] = s.shareCell(trouble, bob, batch["array"])
	cells[trouble.name+"arraysrun"] = s.shareCell(trouble, carol, stepped)
}

// shareCell says what became of a batch job with a share: it runs in the end, or, where that
// may be, is refused with a reason of ours.
func (s site) shareCell(trouble trouble, user string, job int) string {
	s.t.Helper()
	restarts := "0"
	if facts, err := s.Job(job); err == nil {
		restarts = facts["Restarts"]
	}
	state, out := s.ended(user, job)
	switch {
	case state == "COMPLETED" && hasWord(out, "ran"):
		return "ran after " + restarts + " restarts"
	case trouble.refuses && strings.Contains(out, "vgpu"):
		return "refused"
	}
	s.t.Errorf("%s: job %d: %s: %s", trouble.name, job, state, out)
	return state
}
