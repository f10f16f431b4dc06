// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// slurmsDelay is the requeue delay that Slurm has where the site says nothing.
const slurmsDelay = "AuthInfo=cred_expire=120\n"

// slurmCommands is how often gresd has asked slurmctld, or told it something.
func slurmCommands(t *testing.T) (all int) {
	t.Helper()
	for line := range strings.Lines(metrics(t)) {
		var n int
		_, count, found := strings.Cut(line, "} ")
		if !found || !strings.HasPrefix(line, "vgpu_slurm_command_duration_seconds_count{") {
			continue
		}
		if _, err := fmt.Sscan(count, &n); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all += n
	}
	return all
}

// Slurm starts three tasks of 60 % on two cards, as their shares add up to less than both have.
// The third waits on the node for one to end, and not in the queue for Slurm's requeue delay,
// in which the cards would be idle. Long: 100 tasks, and the same where slurmctld places.
func TestArraysFlowWhereGresdPlaces(t *testing.T) {
	tasks, modes := 24, []bool{true}
	if isLong() {
		tasks, modes = 100, []bool{false, true}
	}
	for _, gresd := range modes {
		t.Run(map[bool]string{false: "slurmctld", true: "gresd"}[gresd], func(t *testing.T) {
			s := up(t, cluster.Options{Cards: twoCards, GresdPlaces: gresd, Slurm: slurmsDelay})
			began := time.Now()
			s.submit(alice, fmt.Sprintf("--array=1-%d --gres=vgpu:60 --output=task.%%a", tasks), "echo start $SLURM_RESTART_COUNT; sleep 1; echo end")
			s.eventually(10*time.Minute, "the array ends", func() bool {
				queue, err := s.Queue()
				return err == nil && len(queue) == 0
			})
			commands := slurmCommands(t)
			t.Logf("%d tasks in %.0f s, %d commands of Slurm", tasks, time.Since(began).Seconds(), commands)
			for i := 1; i <= tasks; i++ {
				if got := s.File(alice, fmt.Sprintf("task.%d", i)); got != "start\nend\n" {
					t.Errorf("task %d wrote %q, want one run, which was never sent back", i, got)
				}
			}
			if commands > 8*tasks {
				t.Errorf("%d commands of Slurm for %d tasks, want at most 8 for each", commands, tasks)
			}
		})
	}
}

// An array as large as sites have them: each task runs once, and the node stays.
func TestArrayOfTenThousand(t *testing.T) {
	onlyLong(t)
	const tasks = 10000
	s := up(t, cluster.Options{Cards: twoCards, Slurm: slurmsDelay + "MaxArraySize=10001\nMaxJobCount=20000\n"})
	began := time.Now()
	s.submit(alice, fmt.Sprintf("--array=1-%d --gres=vgpu:5 --output=/dev/null", tasks), "echo $SLURM_ARRAY_TASK_ID >>ran")
	s.eventually(time.Hour, "the array ends", func() bool {
		queue, err := s.Queue()
		return err == nil && len(queue) == 0
	})
	t.Logf("%d tasks in %.0f s, %d commands of Slurm", tasks, time.Since(began).Seconds(), slurmCommands(t))
	ran := map[string]int{}
	for _, task := range strings.Fields(s.File(alice, "ran")) {
		ran[task]++
	}
	for i := 1; i <= tasks; i++ {
		if n := ran[strconv.Itoa(i)]; n != 1 {
			t.Errorf("task %d ran %d times", i, n)
		}
	}
	if state := s.NodeState(); state != "IDLE" {
		t.Errorf("the node is %q", state)
	}
}

// While a task waits for room, gresd is killed, or stopped: the next one lets it wait on. The other tasks
// keep their cards until then, however long gresd takes to start.
func TestTasksThatWaitOutliveGresd(t *testing.T) {
	s := up(t, cluster.Options{Cards: twoCards, GresdPlaces: true, Slurm: slurmsDelay})
	waits := func(from int64) func() bool {
		return func() bool { return strings.Contains(s.Gresd.LogFrom(from), "waits for room") }
	}
	for name, end := range map[string]func(){"killed": s.Gresd.Kill, "stopped": s.Gresd.Stop} {
		size := s.Gresd.LogSize()
		s.submit(alice, "--array=1-4 --gres=vgpu:60 --output="+name+".%a",
			"echo start $SLURM_RESTART_COUNT; until [ -e stop."+name+" ]; do sleep 0.1; done; echo end")
		s.eventually(shortWait, "a task waits for room", waits(size))
		end()
		size = s.Gresd.LogSize()
		if err := s.Gresd.Start(); err != nil {
			t.Fatal(err)
		}
		s.eventually(shortWait, "the task waits at the next gresd", waits(size))
		if r := s.As(alice, "touch", "stop."+name); r.Code != 0 {
			t.Fatal(r)
		}
		s.eventually(2*time.Minute, "the array ends", func() bool {
			queue, err := s.Queue()
			return err == nil && len(queue) == 0
		})
		for i := 1; i <= 4; i++ {
			if got := s.File(alice, fmt.Sprintf("%s.%d", name, i)); got != "start\nend\n" {
				t.Errorf("gresd was %s: task %d wrote %q, want one run, which was never sent back", name, i, got)
			}
		}
	}
}

// The time that a job waits for room is not its own.
func TestWaitIsNotOfTheTimeLimit(t *testing.T) {
	onlyLong(t)
	s := up(t, cluster.Options{Cards: twoCards, GresdPlaces: true, Slurm: slurmsDelay})
	for range 2 {
		s.submit(bob, "--gres=vgpu:60", "sleep 45")
	}
	s.eventually(shortWait, "both have a card", func() bool {
		records, err := s.Records()
		return err == nil && len(records) == 2
	})
	job := s.submit(alice, "--gres=vgpu:60 --time=2", "sleep 100; echo end")
	state, err := s.Wait(job, 3*time.Minute)
	if out := s.Output(alice, job); err != nil || state != "COMPLETED" || out != "end\n" {
		t.Errorf("%s, %v: %q", state, err, out)
	}
}
