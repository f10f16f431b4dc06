// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// Processes that were killed leave the job's accounts within seconds, also when
// no other process of the job is there to see to it.
func TestSlotsOfKilledProcessesAreCleared(t *testing.T) {
	s := up(t, oneCard)
	const processes = 3
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=16G", fmt.Sprintf(
		`for i in $(seq %d); do %s --alloc 2G --hold 300 & all="$all $!"; done
		until [ -e kill ]; do sleep 0.1; done
		kill -KILL $all; wait; date +%%s.%%N >killed; sleep 300`, processes, cluster.Worker))
	s.running(job)
	s.eventually(shortWait, "the processes have their memory", func() bool {
		v := s.inspect(job, "cache")
		return len(v.Processes) == processes && v.Cards[0].Used >= processes*2*gib
	})
	// As long as they live, nobody takes their slots.
	time.Sleep(3 * time.Second)
	if v := s.inspect(job, "cache"); len(v.Processes) != processes {
		t.Errorf("%d living processes have %d slots", processes, len(v.Processes))
	}
	if r := s.As(alice, "touch", "kill"); r.Code != 0 {
		t.Fatal(r)
	}
	s.eventually(shortWait, "the processes are killed", func() bool { return s.File(alice, "killed") != "" })
	began := time.Now()
	s.eventually(5*time.Second, "their slots are cleared", func() bool { return len(s.inspect(job, "cache").Processes) == 0 })
	t.Logf("cleared %s after their end", time.Since(began).Round(100*time.Millisecond))
	if v := s.inspect(job, "cache"); v.Cards[0].Used != 0 {
		t.Errorf("%d bytes are still in use", v.Cards[0].Used)
	}
	s.cancel(alice, job)
}

// Tasks of a job that do not see each other, as in containers, share its limit
// all the same, while they live and when one of them is killed.
func TestTasksInPIDNamespacesShareTheLimit(t *testing.T) {
	s := up(t, oneCard)
	for _, run := range []struct{ name, user, unshare string }{
		{"by root", "root", "unshare --pid --fork --kill-child --mount-proc"},
		{"in user namespaces", alice, "unshare --user --map-root-user --pid --fork --kill-child --mount-proc"},
	} {
		t.Run(run.name, func(t *testing.T) {
			s := site{s.Cluster, t}
			if r := s.As(run.user, strings.Fields(run.unshare+" true")...); r.Code != 0 {
				t.Skipf("this machine does not allow it: %s", r)
			}
			// Each is process 1 of its namespace. They start a moment apart, because
			// the simulated card takes the same pid and start time for the same process.
			task := run.unshare + " " + cluster.Worker + " --hold 1" + strings.Repeat(" --alloc 512M", 16) + " --hold 300 >part."
			job := s.submit(run.user, "--gres=vgpu:30 --vgpu-mem=10G", fmt.Sprintf(
				`upon() { until [ -e $1 ]; do sleep 0.1; done; }
				rm -f kill third end part.*; %[1]s1 & first=$!; sleep 0.2; %[1]s2 & second=$!
				upon kill; kill -KILL $first; upon third; %[1]s3 &
				upon end; kill -KILL $second $!`, task))
			defer func() {
				for _, part := range []string{"1", "2", "3"} {
					if t.Failed() {
						t.Logf("task %s:\n%s", part, s.File(run.user, "part."+part))
					}
				}
			}()
			s.running(job)
			taken := func(parts ...string) (sum uint64, refused int) {
				for _, part := range parts {
					bytes, no := cluster.Taken(s.File(run.user, "part."+part))
					sum, refused = sum+bytes, refused+no
				}
				return sum, refused
			}
			finished := func(part string) bool {
				return strings.Count(s.File(run.user, "part."+part), `"cmd":"hold"`) == 2
			}
			s.eventually(shortWait, "both have taken what they could", func() bool { return finished("1") && finished("2") })
			both, refused := taken("1", "2")
			first, _ := taken("1")
			if both > 10*gib || both < 8*gib || refused == 0 {
				t.Errorf("two tasks that want 8 GiB each got %d bytes, %d pieces refused; want 8 to 10 GiB", both, refused)
			}
			v := s.inspect(job, "cache")
			if len(v.Processes) != 2 || v.Cards[0].Used > 10*gib || v.Cards[0].Used < both {
				t.Errorf("%d processes with %d bytes, want 2 with at least %d", len(v.Processes), v.Cards[0].Used, both)
			}
			// Nobody mistakes them for dead: not each other, not gresd.
			time.Sleep(3 * time.Second)
			if v := s.inspect(job, "cache"); len(v.Processes) != 2 || v.Cards[0].Used < both {
				t.Errorf("a moment later %d processes with %d bytes, want 2 with at least %d", len(v.Processes), v.Cards[0].Used, both)
			}
			say := func(word string) {
				t.Helper()
				if r := s.As(run.user, "touch", word); r.Code != 0 {
					t.Fatal(r)
				}
			}
			say("kill")
			s.eventually(5*time.Second, "the slot of the first is cleared", func() bool { return len(s.inspect(job, "cache").Processes) == 1 })
			say("third")
			s.eventually(shortWait, "the third has taken what it could", func() bool { return finished("3") })
			third, _ := taken("3")
			if third+both-first > 10*gib || third+gib < first {
				t.Errorf("the second and third have %d bytes of 10 GiB; the third got %d of the first's %d", third+both-first, third, first)
			}
			// A signal of Slurm's would not reach process 1 of a namespace.
			say("end")
			s.completed(run.user, job)
		})
	}
}
