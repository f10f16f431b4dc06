// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// While a job is suspended its neighbours have its time, and it has it back
// when it goes on.
func TestSuspendedJobGivesItsTimeAway(t *testing.T) {
	onlyLong(t)
	for _, engine := range []string{"slices", "turns"} {
		t.Run(engine, func(t *testing.T) { testSuspendedTime(t, engine) })
	}
}

func testSuspendedTime(t *testing.T, engine string) {
	opts := oneCard
	opts.Config = "[arbiter]\nslice_test = false\n"
	s := up(t, opts)
	if engine == "turns" {
		s.sim("refuse-slices")
	}
	repeat := cluster.Worker + strings.Repeat(" --saturate 1", 60)
	first := s.submit(alice, "--gres=vgpu:80", repeat)
	second := s.submit(bob, "--gres=vgpu:20 --vgpu-mode=soft", repeat)
	s.running(first, second)
	runs := func(user string, job int) (rates, late []float64) { return cluster.Rates(s.Output(user, job)) }
	count := func(user string, job int) int { rates, _ := runs(user, job); return len(rates) }
	// rate returns the mean of two whole runs of the second job from now on. onTime is 1 minus its lateness.
	rate := func() (mean, onTime float64) {
		t.Helper()
		from := count(bob, second) + 1 // the current run began before
		s.eventually(shortWait, "the second job works", func() bool { return count(bob, second) >= from+2 })
		rates, late := runs(bob, second)
		return (rates[from] + rates[from+1]) / 2, 1 - (late[from]+late[from+1])/2
	}
	s.eventually(shortWait, "the first job works", func() bool { return count(alice, first) > 0 })
	before, _ := rate()
	if _, err := s.Scontrol("suspend", fmt.Sprint(first)); err != nil {
		t.Fatal(err)
	}
	alone, onTime := rate()
	if _, err := s.Scontrol("resume", fmt.Sprint(first)); err != nil {
		t.Fatal(err)
	}
	after, _ := rate()
	t.Logf("beside the first job %.3g, while that is suspended %.3g, after it %.3g", before, alone, after)
	// A little more than 20 % of the card, as the first job has pauses; all of it;
	// and as before.
	if alone < 1.5*before*onTime {
		t.Errorf("while its neighbour is suspended it does %.2f times as much, want about 5", alone/before)
	}
	if after*onTime > 0.75*alone {
		t.Errorf("after its neighbour goes on it does %.2f of what it did alone, want about 0.2", after/alone)
	}
	s.cancel(alice, first)
	s.cancel(bob, second)
}

// partitions of which the second takes from the first what it needs.
const preempting = `PreemptType=preempt/partition_prio
PreemptMode=%[1]s
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=%[2]s MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=100 PreemptMode=OFF MaxTime=INFINITE State=UP
`

// A job that must go for another gives its share to it.
func TestPreemptedJobGivesItsShareAway(t *testing.T) {
	onlyLong(t)
	opts := oneCard
	opts.Slurm = fmt.Sprintf(preempting, "REQUEUE", "REQUEUE") +
		"PartitionName=lowest Nodes=ALL PriorityTier=0 PreemptMode=CANCEL MaxTime=INFINITE State=UP\n"
	s := up(t, opts)
	again := s.submit(alice, "-p low --requeue --gres=vgpu:60 --vgpu-mem=8G",
		cluster.LookScript+"; test ${SLURM_RESTART_COUNT:-0} = 1 || sleep 300")
	gone := s.submit(carol, "-p lowest --gres=vgpu:40", "sleep 300")
	s.running(again, gone)
	high := s.submit(bob, "-p high --gres=vgpu:80 --vgpu-mem=32G", cluster.LookScript+"; sleep 2")
	s.running(high)
	if records, err := s.Records(); err != nil || len(records) != 1 {
		t.Errorf("want a record of the job that has the card alone: %+v, %v", records, err)
	}
	if _, err := s.WaitState(again, shortWait, "PENDING"); err != nil {
		t.Error(err)
	}
	if state, _ := s.ended(carol, gone); state != "PREEMPTED" {
		t.Errorf("the job that is not requeued: %s, want PREEMPTED", state)
	}
	if got := look(t, s.completed(bob, high)); got.Total != 32*gib {
		t.Errorf("the job that came saw %d bytes, want 32 GiB", got.Total)
	}
	if got := look(t, s.completed(alice, again)); got.Total != 8*gib {
		t.Errorf("the second run saw %d bytes, want 8 GiB", got.Total)
	}
}

// Slurm never gives the GRES of a suspended job to another: one that needs them
// waits, one that fits beside them runs.
func TestPreemptionBySuspensionKeepsShares(t *testing.T) {
	onlyLong(t)
	opts := oneCard
	opts.Slurm = "SchedulerTimeSlice=5\n" + fmt.Sprintf(preempting, "SUSPEND,GANG", "SUSPEND")
	s := up(t, opts)
	low := s.submit(alice, "-p low --ntasks=16 --gres=vgpu:60 --vgpu-mem=8G", "until [ -e go ]; do sleep 0.1; done; "+cluster.LookScript)
	s.running(low)
	large := s.submit(bob, "-p high --gres=vgpu:60", "true")
	small := s.submit(bob, "-p high --gres=vgpu:40", cluster.LookScript+"; sleep 300")
	s.running(small)
	if _, err := s.WaitState(low, shortWait, "SUSPENDED"); err != nil {
		t.Error(err)
	}
	if got := look(t, s.lookOf(bob, small)); got.Total != 32*gib {
		t.Errorf("beside the suspended job: saw %d bytes, want 32 GiB", got.Total)
	}
	if facts, err := s.Job(large); err != nil || facts["JobState"] != "PENDING" {
		t.Errorf("a job of 60 beside a suspended one of 60: %s, %v; want PENDING", facts["JobState"], err)
	}
	s.cancel(bob, small)
	if r := s.As(alice, "touch", "go"); r.Code != 0 {
		t.Fatal(r)
	}
	if got := look(t, s.completed(alice, low)); got.Total != 8*gib {
		t.Errorf("after its suspension: saw %d bytes, want 8 GiB", got.Total)
	}
	s.completed(bob, large)
}

// lookOf waits until a job has told what it saw.
func (s site) lookOf(user string, job int) string {
	s.t.Helper()
	s.eventually(shortWait, fmt.Sprintf("job %d looks", job), func() bool { return len(cluster.Looks(s.Output(user, job))) > 0 })
	return s.Output(user, job)
}
