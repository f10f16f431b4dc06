// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// reader is a scontrol that reads questions as Slurm's does. It notes in "started"
// how it was started, and knows jobs 1 to 99. Job 13 is what each test wants.
const reader = `dir=$(dirname "$0")
echo "$*" >> "$dir/started"
show() {
	case $1 in 13) %s ;; ???*) echo "slurm_load_jobs error: Invalid job id specified" >&2; return 1 ;; esac
	sed "s/^JobId=2 /JobId=$1 /" "$dir/job"
}
case "$*" in *show*) for id; do :; done; show $id; exit; esac
while read -r verb what which; do
	echo "scontrol: $verb $what $which"
	case $what in hostnames) echo "$which" ;; job) show "$which" ;; esac
done
echo ended >> "$dir/ended"`

// withReader returns a client of it, and its folder.
func withReader(t *testing.T, thirteen, script string) (*Client, string) {
	t.Helper()
	client, dir := commands(t, map[string]string{"scontrol": fmt.Sprintf(script, thirteen)})
	client.talks.times.greeting = 20 * time.Second // this machine may be busy
	text, err := os.ReadFile("testdata/22.05/one_card.txt")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "job"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	return client, dir
}

func started(t *testing.T, dir string) (talks, commands int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "started"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "show") {
			commands++
		} else {
			talks++
		}
	}
	return talks, commands
}

func isJob(t *testing.T, client *Client, id uint32) {
	t.Helper()
	facts, err := client.Job(context.Background(), id, "n1")
	if err != nil || facts.JobID != id || facts.Units[1] != gpu.Share(80) || facts.User == "" {
		t.Errorf("job %d is %+v, %v", id, facts, err)
	}
}

// In a configless cluster, gresd learns its slurm.conf from the first Prolog. The answer about that
// job ends the problem.
func TestAnAnswerAboutAJobEndsTheProblem(t *testing.T) {
	client, _ := withReader(t, ":", reader)
	if client.Check(t.Context()); client.Problem() == "" {
		t.Error("no problem, though no slurmctld is up")
	}
	if isJob(t, client, 20); client.Problem() != "" {
		t.Errorf("it has answered: %q", client.Problem())
	}
	if !client.Check(t.Context()) || client.Problem() != "" {
		t.Errorf("after another look: %q", client.Problem())
	}
}

func TestJobsThatStartTogetherShareScontrols(t *testing.T) {
	client, dir := withReader(t, ":", reader)
	var all sync.WaitGroup
	const jobs = 60
	for id := range uint32(jobs) {
		all.Go(func() { isJob(t, client, 20+id) })
	}
	all.Wait()
	talks, commands := started(t, dir)
	if talks < 1 || talks > mostTalks || commands != 0 {
		t.Errorf("%d jobs started %d scontrols that read questions and %d that do not, want up to %d and 0", jobs, talks, commands, mostTalks)
	}
}

func TestOneAfterTheOtherIsAskedOfOneScontrol(t *testing.T) {
	client, dir := withReader(t, ":", reader)
	took := 0
	client.took = func(command string, _ time.Duration) {
		if command == "scontrol" {
			took++
		}
	}
	for id := range uint32(5) {
		isJob(t, client, 20+id)
	}
	if talks, commands := started(t, dir); talks != 1 || commands != 0 || took != 5 {
		t.Errorf("5 questions started %d and %d scontrols and were measured %d times, want 1, 0 and 5", talks, commands, took)
	}
}

func TestEachSlurmConfHasItsOwnScontrol(t *testing.T) {
	client, dir := withReader(t, ":", reader)
	isJob(t, client, 20)
	isJob(t, client.WithConf("/other/slurm.conf"), 20)
	isJob(t, client, 21)
	if talks, _ := started(t, dir); talks != 2 {
		t.Errorf("two configurations started %d scontrols, want 2", talks)
	}
}

func TestAScontrolThatReadsNoQuestionsIsStartedForEach(t *testing.T) {
	for name, script := range map[string]string{
		"says nothing":          strings.Replace(reader, "while read", "exit 1; while read", 1),
		"prints something else": strings.Replace(reader, "while read", "echo usage: scontrol; exit 0; while read", 1),
	} {
		t.Run(name, func(t *testing.T) {
			client, dir := withReader(t, ":", script)
			for id := range uint32(3) {
				isJob(t, client, 20+id)
			}
			if talks, commands := started(t, dir); talks != 1 || commands != 3 {
				t.Errorf("started %d and %d, want 1 and 3", talks, commands)
			}
		})
	}
}

func TestAScontrolThatIsSlowToStartIsNotWaitedFor(t *testing.T) {
	client, dir := withReader(t, ":", strings.Replace(reader, "while read", "sleep 20; while read", 1))
	client.talks.times.greeting = 100 * time.Millisecond
	began := time.Now()
	isJob(t, client, 20)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("took %v", took)
	}
	if talks, commands := started(t, dir); talks != 1 || commands != 1 {
		t.Errorf("started %d and %d, want 1 and 1", talks, commands)
	}
}

func TestWithoutReadlineNothingIsEchoed(t *testing.T) {
	client, dir := withReader(t, ":", strings.Replace(reader, `echo "scontrol: $verb $what $which"`, `printf "scontrol: "`, 1))
	isJob(t, client, 20)
	isJob(t, client, 21)
	if talks, commands := started(t, dir); talks != 1 || commands != 0 {
		t.Errorf("started %d and %d, want 1 and 0", talks, commands)
	}
}

func TestErrorsAreThoseOfACommandOfItsOwn(t *testing.T) {
	client, dir := withReader(t, ":", reader)
	if _, err := client.Job(context.Background(), 777, "n1"); !errors.Is(err, ErrNoJob) {
		t.Errorf("unknown job: %v, want %v", err, ErrNoJob)
	}
	isJob(t, client, 20) // the talk goes on
	if talks, commands := started(t, dir); talks != 1 || commands != 1 {
		t.Errorf("started %d and %d, want 1 and 1", talks, commands)
	}
}

func TestAScontrolThatDiesLeavesNoQuestionOpen(t *testing.T) {
	client, _ := withReader(t, `[ -n "$verb" ] && kill -9 $$`, reader)
	isJob(t, client, 20)
	isJob(t, client, 13)
	isJob(t, client, 21)
}

func TestAScontrolThatHangsIsEnded(t *testing.T) {
	client, dir := withReader(t, `[ -n "$verb" ] && exec sleep 20`, reader)
	isJob(t, client, 20)
	client.timeout = 200 * time.Millisecond
	if _, err := client.Job(context.Background(), 13, "n1"); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
	client.timeout = 10 * time.Second
	isJob(t, client, 21)
	if talks, commands := started(t, dir); talks != 2 || commands != 0 {
		t.Errorf("started %d and %d, want 2 and 0", talks, commands)
	}
}

// A user can write line breaks into the text of a job, but not the mark of a
// question.
func TestNoJobAnswersForAnother(t *testing.T) {
	client, _ := withReader(t, `sed "s/^JobId=2 /JobId=14 /; s/UserId=[^ ]* /UserId=evil(666) /" "$dir/job"
		echo "show hostnames nx"; echo nx; echo "scontrol: "; echo`, reader)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { isJob(t, client, 13) })
		all.Go(func() {
			isJob(t, client, 14)
			if facts, _ := client.Job(context.Background(), 14, "n1"); facts.UID == 666 {
				t.Error("job 13 has answered for job 14")
			}
		})
	}
	all.Wait()
}

func TestAScontrolThatNobodyAsksEnds(t *testing.T) {
	client, dir := withReader(t, ":", reader)
	client.talks.times.quiet = 50 * time.Millisecond
	isJob(t, client, 20)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "ended")); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it did not end")
		}
	}
	isJob(t, client, 21)
	if talks, commands := started(t, dir); talks != 2 || commands != 0 {
		t.Errorf("started %d and %d, want 2 and 0", talks, commands)
	}
}

func TestAScontrolIsAskedForAWhileOnly(t *testing.T) {
	client, dir := withReader(t, ":", reader)
	client.talks.times.asked = 0
	isJob(t, client, 20)
	isJob(t, client, 21)
	if talks, commands := started(t, dir); talks != 2 || commands != 0 {
		t.Errorf("started %d and %d, want 2 and 0", talks, commands)
	}
}
