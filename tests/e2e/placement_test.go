// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// gresdPlaces is a node on which gresd chooses the card, lets a job wait for three
// seconds, and holds a card for one that came twice.
var gresdPlaces = cluster.Options{
	Cards:       slices.Repeat([]cluster.Card{{Name: "Simulated H100", Memory: "80G"}}, 2),
	GresdPlaces: true, Config: "wait_s = 3\npatience = 2\n",
}

// adminComment is what Slurm shows of a job's administrators.
func (s site) adminComment(job int) string {
	s.t.Helper()
	r := s.As("root", "squeue", "-h", "-t", "all", "-j", strconv.Itoa(job), "-O", "admin_comment:1000")
	if r.Code != 0 {
		s.t.Fatal(r)
	}
	return strings.TrimSpace(r.Out)
}

// Slurm does not know the cards that gresd chose: CUDA must see those, and no other.
func TestJobSeesTheCardThatGresdChose(t *testing.T) {
	for _, noPlugin := range []bool{false, true} {
		t.Run(map[bool]string{false: "plugin", true: "TaskProlog"}[noPlugin], func(t *testing.T) {
			opts := gresdPlaces
			opts.NoPlugin = noPlugin
			s := up(t, opts)
			cards := map[int]bool{}
			for range 2 {
				first := s.submit(alice, "--gres=vgpu:60", cluster.Worker+" --count; srun "+cluster.LookScript+"; sleep 300")
				s.running(first)
				s.eventually(shortWait, "the job has looked", func() bool { return len(cluster.Looks(s.Output(alice, first))) > 0 })
				out := s.Output(alice, first)
				if got := look(t, out); cluster.Devices(out) != 1 || got.Total != 48*gib {
					t.Errorf("saw %d cards, the first of %d bytes; want one of 48 GiB:\n%s", cluster.Devices(out), got.Total, out)
				}
				records, err := s.Records()
				for _, r := range records {
					cards[r.Cards[0].Index] = true
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if len(cards) != 2 {
				t.Errorf("jobs on %d cards, want 2", len(cards))
			}
			queue, err := s.Queue()
			if err != nil {
				t.Fatal(err)
			}
			for _, job := range queue {
				s.As(alice, "scancel", job)
			}
			// Several cards, and a program that needs both.
			out := s.completed(bob, s.submit(bob, "--gres=vgpu:200", cluster.Worker+" --count"))
			if n := cluster.Devices(out); n != 2 {
				t.Errorf("vgpu:200: saw %d cards, want 2", n)
			}
			if r := s.As(bob, "vgpu-srun", "--gres=vgpu:30", "--vgpu-mem=50%", "bash", "-c", cluster.LookScript); r.Code != 0 || look(t, r.Out).Total != 40*gib {
				t.Errorf("vgpu-srun: want 40 GiB: %s", r)
			}
			if r := s.As(bob, "vgpu-srun", "--gres=vgpu:120", "--vgpu-cards=2", cluster.Worker, "--count"); r.Code != 0 || cluster.Devices(r.Out) != 2 {
				t.Errorf("vgpu-srun: want two cards: %s", r)
			}
		})
	}
}

// slurmctld counts 70 % as free and starts the job, but no card has them: the job
// goes back into the queue and says why; one that cannot go back ends and says
// why. The node takes other jobs.
func TestFragmentedNodeSendsJobsBackWithAReason(t *testing.T) {
	s := up(t, gresdPlaces)
	first := s.submit(alice, "--gres=vgpu:60", "sleep 300")
	second := s.submit(alice, "--gres=vgpu:60", "sleep 300")
	s.running(first, second)
	// To scontrol's reader, this name is an admin comment.
	large, err := s.Sbatch(bob, []string{"--hold", "--gres=vgpu:70", "--job-name=x AdminComment=forged Comment=y"}, cluster.LookScript)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Scontrol("update", fmt.Sprint("JobId=", large), "AdminComment=the site's words"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Scontrol("release", strconv.Itoa(large)); err != nil {
		t.Fatal(err)
	}
	s.eventually(shortWait, "the job comes back with a reason", func() bool {
		facts, err := s.Job(large)
		return err == nil && facts["JobState"] == "PENDING" && facts["Restarts"] == "1" && facts["Reason"] == "BeginTime"
	})
	want := regexp.MustCompile(`^the site's words vgpu: place: job \d+: want 70 % and 56 GiB on one card: ` +
		`largest free share 40 % \(card 0\), largest free memory 32 GiB \(card 0\) \(sent back once\)`)
	if got := s.adminComment(large); !want.MatchString(got) {
		t.Errorf("the user reads %q, want %s", got, want)
	}
	if r := s.As(carol, "srun", "--gres=vgpu:70", "true"); r.Code == 0 || !strings.Contains(r.Err, "want 70 % and 56 GiB on one card") {
		t.Errorf("srun: %s", r)
	}
	small := s.submit(carol, "--gres=vgpu:40", cluster.LookScript)
	if got := look(t, s.completed(carol, small)); got.Total != 32*gib {
		t.Errorf("a job that fits saw %d bytes, want 32 GiB", got.Total)
	}
	if state := s.NodeState(); state != "MIXED" {
		t.Errorf("node: %s, want MIXED", state)
	}
	s.cancel(alice, first)
	if got := look(t, s.completed(bob, large)); got.Total != 56*gib {
		t.Errorf("after it was sent back, the job saw %d bytes, want 56 GiB", got.Total)
	}
	if got := s.adminComment(large); !strings.HasPrefix(got, "the site's words vgpu: place: found a card after it was sent back ") {
		t.Errorf("the user reads %q", got)
	}
	s.cancel(alice, second)
}

// The tasks of an array are sent back, put off and told one by one, also the one
// with the number of the array: its siblings go on.
func TestTaskOfAnArrayIsSentBackAlone(t *testing.T) {
	onlyLong(t)
	s := up(t, gresdPlaces)
	s.submit(alice, "--array=1-3 --gres=vgpu:60 --output=array.%a", "echo ran; sleep 7; echo end")
	s.eventually(60*time.Second, "the array ends", func() bool {
		queue, err := s.Queue()
		return err == nil && len(queue) == 0
	})
	for i := 1; i <= 3; i++ {
		if got := s.File(alice, fmt.Sprintf("array.%d", i)); got != "ran\nend\n" {
			t.Errorf("task %d wrote %q, want one whole run", i, got)
		}
	}

	array := s.submit(alice, "--array=1-2 --gres=vgpu:30", "sleep 300")
	both := func(state string) func() bool {
		return func() bool {
			r := s.As("root", "squeue", "-h", "-r", "-j", strconv.Itoa(array), "-t", state)
			return strings.Count(r.Out+"\n", "\n") == 2 && r.Out != ""
		}
	}
	s.eventually(shortWait, "both tasks run", both("RUNNING"))
	if _, err := s.Scontrol("requeue", strconv.Itoa(array)); err != nil {
		t.Fatal(err)
	}
	s.eventually(shortWait, "both tasks are sent back", both("PENDING"))
	client := slurm.New(slurm.Options{})
	if err := errors.Join(client.Delay(t.Context(), uint32(array), time.Hour), client.Explain(t.Context(), uint32(array), "vgpu: wait")); err != nil {
		t.Fatal(err)
	}
	var late, told int
	for i := 1; i <= 2; i++ {
		r := s.As("root", "squeue", "-h", "-j", fmt.Sprintf("%d_%d", array, i), "-O", "StartTime:30,admin_comment:30")
		words := strings.Fields(r.Out)
		if start, err := time.ParseInLocation("2006-01-02T15:04:05", words[0], time.Local); err == nil && time.Until(start) > 50*time.Minute {
			late++
		}
		if len(words) == 3 && strings.Join(words[1:], " ") == "vgpu: wait" {
			told++
		}
	}
	if late != 1 || told != 1 {
		t.Errorf("%d tasks are put off and %d told, want one", late, told)
	}
	if r := s.As(alice, "scancel", strconv.Itoa(array)); r.Code != 0 {
		t.Error(r)
	}
}

// Small jobs come without end, each card has always one of them, and what they
// leave is enough for the large one only in sum. It waits for one to end, and those
// that come later have their look after it.
func TestSmallJobsDoNotStarveALargeOne(t *testing.T) {
	onlyLong(t)
	s := up(t, gresdPlaces)
	stop, fed := make(chan struct{}), make(chan struct{})
	var large atomic.Int64
	go func() {
		defer close(fed)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			queue, err := s.Queue()
			small := slices.DeleteFunc(queue, func(id string) bool { return id == fmt.Sprint(large.Load()) })
			if err == nil && len(small) < 2 {
				_, _ = s.Sbatch(bob, []string{"--gres=vgpu:60"}, "sleep 5")
			}
		}
	}()
	s.eventually(shortWait, "both cards are in use", func() bool {
		records, err := s.Records()
		return err == nil && len(records) == 2
	})
	large.Store(int64(s.submit(alice, "--gres=vgpu:75", cluster.LookScript)))
	began := time.Now()
	state, err := s.Wait(int(large.Load()), 90*time.Second)
	close(stop)
	<-fed
	told := s.adminComment(int(large.Load()))
	t.Logf("%s after %s; %s", state, time.Since(began).Round(time.Second), told)
	if err != nil || state != "COMPLETED" {
		t.Errorf("the large job: %s, %v: %s", state, err, s.Output(alice, int(large.Load())))
	}
	var times int
	if _, err := fmt.Sscanf(told, "vgpu: place: found a card after it was sent back %d times", &times); err == nil && times > 2 {
		t.Errorf("sent back %d times, want at most 2", times)
	}
	if r := s.As("root", "scancel", "-u", bob); r.Code != 0 {
		t.Error(r)
	}
}
