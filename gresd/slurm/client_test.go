// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// commands writes scripts in place of Slurm's and returns a client of them.
func commands(t *testing.T, scripts map[string]string) (*Client, string) {
	t.Helper()
	dir := t.TempDir()
	if scripts["scontrol"] == "" {
		scripts["scontrol"] = "exit 1" // the others are beside it
	}
	for name, body := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return New(Options{
		Scontrol: filepath.Join(dir, "scontrol"), Conf: "/etc/site/slurm.conf", Timeout: 10 * time.Second,
	}), dir
}

func TestJobAsksScontrolForOneJob(t *testing.T) {
	file, err := filepath.Abs("testdata/22.05/one_card.txt")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLURM_TIME_FORMAT", "%s")
	client, _ := commands(t, map[string]string{
		"scontrol": `[ "$*" = "--local show job -d -o 2" ] && [ "$SLURM_CONF" = /etc/site/slurm.conf ] && [ -z "$SLURM_TIME_FORMAT" ] && cat ` + file,
	})
	got, err := client.Job(context.Background(), 2, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if want := map[int]gpu.Share{1: 80}; !reflect.DeepEqual(got.Units, want) {
		t.Errorf("units are %v, want %v", got.Units, want)
	}
}

func TestTheConfOfThePrologWins(t *testing.T) {
	client, dir := commands(t, map[string]string{"scontrol": `echo "$SLURM_CONF" > "$(dirname "$0")/seen"`})
	if client.WithConf("") != client {
		t.Error("an empty conf made another client")
	}
	if err := client.WithConf("/other/slurm.conf").Requeue(context.Background(), 1); err != nil {
		t.Fatal(err)
	}
	seen, err := os.ReadFile(filepath.Join(dir, "seen"))
	if err != nil || string(seen) != "/other/slurm.conf\n" {
		t.Errorf("the command saw %q, %v", seen, err)
	}
}

func TestWithoutAConfTheDaemonsOwnIsKept(t *testing.T) {
	got := environment([]string{"PATH=/bin", "SLURM_CONF=/own", "SQUEUE_FORMAT=x", "LANG=de_DE", "SLURM_CLUSTERS=other"}, "")
	if want := []string{"PATH=/bin", "SLURM_CONF=/own", "LC_ALL=C"}; !reflect.DeepEqual(got, want) {
		t.Errorf("environment is %q, want %q", got, want)
	}
}

func TestAnswersOfScontrolAreToldApart(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		want   error
	}{
		"an unknown job":          {`echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1`, ErrNoJob},
		"no batch job":            {`echo "Only batch jobs are accepted or processed for job 7" >&2; exit 1`, ErrNotBatch},
		"a job that has ended":    {`echo "Job/step already completing or completed for job 7" >&2; exit 1`, ErrNoJob},
		"no controller":           {`echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1`, ErrSilent},
		"a controller that hangs": {`echo "slurm_load_jobs error: Socket timed out on send/recv operation" >&2; exit 1`, ErrSilent},
		"something never seen":    {`echo oops >&2; exit 3`, ErrUnavailable},
		"a command that crashed":  {`kill -9 $$`, ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := commands(t, map[string]string{"scontrol": test.script})
			if _, err := client.Job(context.Background(), 7, "n1"); !errors.Is(err, test.want) {
				t.Errorf("Job: %v, want %v", err, test.want)
			}
			if err := client.Requeue(context.Background(), 7); !errors.Is(err, test.want) {
				t.Errorf("Requeue: %v, want %v", err, test.want)
			}
		})
	}
}

func TestSlurmThatIsNotInstalledIsUnavailable(t *testing.T) {
	client := New(Options{Scontrol: filepath.Join(t.TempDir(), "scontrol")})
	_, err := client.Job(context.Background(), 7, "n1")
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "scontrol --local show job -d -o 7") {
		t.Errorf("Job: %v", err)
	}
	if err := client.Requeue(context.Background(), 7); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Requeue: %v", err)
	}
}

func TestACommandThatHangsIsGivenUp(t *testing.T) {
	client, _ := commands(t, map[string]string{"scontrol": `sleep 30`})
	client.timeout = 100 * time.Millisecond
	start := time.Now()
	_, err := client.Job(context.Background(), 7, "n1")
	if !errors.Is(err, ErrUnavailable) || !errors.Is(err, ErrSilent) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("gave up after %v", d)
	}
}

func TestSettings(t *testing.T) {
	const usual = 120 * time.Second
	for text, want := range map[string]Settings{
		"AuthInfo                = cred_expire=5,socket=/x\nAuthType = auth/munge\n":  {5 * time.Second, false},
		"AuthInfo                = socket=/x,cred_expire=300\n":                       {300 * time.Second, false},
		"AuthInfo                = (null)\nPrologFlags             = Alloc,Contain\n": {usual, false},
		"PrologFlags             = Alloc,Serial,Contain\nPropagate = x\n":             {usual, true},
		"PrologFlags             = Alloc\nPrologX = Serial\n":                         {usual, false},
		"Comment = cred_expire=7\n":                                                   {usual, false},
		"":                                                                            {usual, false},
	} {
		if got := settingsOf(ParseShown(text)); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

// What a job is called is known from its record: a command about it is one command.
func TestTheNameOfAJobIsAskedOnce(t *testing.T) {
	file, err := filepath.Abs("testdata/22.05/array_task.txt")
	if err != nil {
		t.Fatal(err)
	}
	client, dir := commands(t, map[string]string{
		"scontrol": `echo "$@" >>"$(dirname "$0")/seen"; case "$*" in *"show job"*) cat ` + file + ` ;; esac`,
	})
	facts, err := client.Job(t.Context(), 11, "n1")
	if err != nil || !facts.OnNode {
		t.Fatalf("%+v, %v", facts, err)
	}
	if err := client.Requeue(t.Context(), 11); err != nil {
		t.Fatal(err)
	}
	seen, _ := os.ReadFile(filepath.Join(dir, "seen"))
	if lines := strings.Split(strings.TrimSpace(string(seen)), "\n"); strings.Contains(string(seen), "show job -o 11") || lines[len(lines)-1] != "requeue 5_0" {
		t.Errorf("commands were:\n%s", seen)
	}
	// Of another cluster nothing is known.
	if err := client.WithConf("/other").Requeue(t.Context(), 11); err != nil {
		t.Fatal(err)
	}
	if seen, _ := os.ReadFile(filepath.Join(dir, "seen")); !strings.Contains(string(seen), "show job -o 11\n") {
		t.Errorf("commands were:\n%s", seen)
	}
}

// To Slurm's commands the number of an array is all of its tasks, and the last
// task to start has that number.
func TestATaskOfAnArrayIsMeantAlone(t *testing.T) {
	client, dir := commands(t, map[string]string{
		"scontrol": `case "$*" in "--local show job -o 7") echo "JobId=7 JobName=ArrayTaskId=4 x" ;;
			--local*) printf 'JobId=16 ArrayJobId=15 ArrayTaskId=3 JobName=a\nJobId=15 ArrayJobId=15 ArrayTaskId=4 JobName=a\n' ;;
			*) echo "$@" >>"$(dirname "$0")/seen" ;; esac`,
		"squeue": `echo "(null)"`,
	})
	for _, id := range []uint32{15, 16, 7} {
		for what, err := range map[string]error{
			"requeue": client.Requeue(t.Context(), id),
			"notify":  client.Notify(t.Context(), id, "hello"), "delay": client.Delay(t.Context(), id, time.Minute),
			"explain": client.Explain(t.Context(), id, "vgpu: full"), "extend": client.Extend(t.Context(), id, 90*time.Second),
		} {
			if err != nil {
				t.Errorf("%s %d: %v", what, id, err)
			}
		}
	}
	seen, _ := os.ReadFile(filepath.Join(dir, "seen"))
	var want strings.Builder
	for _, task := range []string{"15_4", "15_3", "7"} {
		fmt.Fprintf(&want, "requeue %[1]s\nnotify %[1]s hello\n"+
			"update JobId=%[1]s StartTime=now+60\nupdate JobId=%[1]s AdminComment=vgpu: full\nupdate JobId=%[1]s TimeLimit=2\n", task)
	}
	if string(seen) != want.String() {
		t.Errorf("commands were:\n%s\nwant:\n%s", seen, want.String())
	}
}

// The line of an earlier time is replaced, the words of the site stay, and none
// come from what the user writes.
func TestExplainKeepsTheWordsOfTheSite(t *testing.T) {
	const record = "JobId=7 JobName=a ReqSwitch=0 Network=(null) Command=x"
	for name, test := range map[string]struct{ record, words, want string }{
		"none":             {record, "", "JobId=7 AdminComment=vgpu: full"},
		"null":             {record, "(null)", "JobId=7 AdminComment=vgpu: full"},
		"ours":             {record, "vgpu: place: none", "JobId=7 AdminComment=vgpu: full"},
		"the site's":       {record, "ask Ann", "JobId=7 AdminComment=ask Ann vgpu: full"},
		"both":             {record, "ask Ann vgpu: none", "JobId=7 AdminComment=ask Ann vgpu: full"},
		"two lines":        {record, "ask Ann\nor Bob vgpu: none", "JobId=7 AdminComment=ask Ann\nor Bob vgpu: full"},
		"of array task":    {"JobId=7 ArrayJobId=7 ArrayTaskId=2 JobName=a WorkDir=/", "", "JobId=7_2 AdminComment=vgpu: full"},
		"in a job name":    {"JobId=7 JobName=a AdminComment=forged Comment= Network=(null)", "ask Ann", "JobId=7 AdminComment=ask Ann vgpu: full"},
		"in its --network": {"JobId=7 JobName=a Network=q AdminComment=forged Comment=x", "", "JobId=7 AdminComment=vgpu: full"},
	} {
		t.Run(name, func(t *testing.T) {
			task := strings.TrimPrefix(strings.Fields(test.want)[0], "JobId=")
			client, dir := commands(t, map[string]string{
				"scontrol": `case "$1" in --local) echo "` + test.record + `" ;; update) shift; echo "$@" >>"$(dirname "$0")/seen" ;; esac`,
				"squeue":   `[ "$*" = "--local -a -t all -h -j ` + task + ` -O admin_comment:65536" ] && printf '%-100s\n' "` + test.words + `"`,
			})
			if err := client.Explain(t.Context(), 7, "vgpu: full"); err != nil {
				t.Fatal(err)
			}
			if seen, _ := os.ReadFile(filepath.Join(dir, "seen")); string(seen) != test.want+"\n" {
				t.Errorf("updated %q, want %q", seen, test.want)
			}
			if err := client.Explain(t.Context(), 7, ""); err != nil {
				t.Fatal(err)
			}
			without := strings.TrimSuffix(strings.TrimSuffix(test.want, "vgpu: full"), " ")
			if seen, _ := os.ReadFile(filepath.Join(dir, "seen")); string(seen) != test.want+"\n"+without+"\n" {
				t.Errorf("taken away: %q, want %q", seen, without)
			}
		})
	}
}

func TestLosesShards(t *testing.T) {
	for version, want := range map[string]bool{"slurm-wlm 22.05.8": true, "slurm 23.11.4": true, "slurm-wlm 24.11.5": false, "slurm 26.05.5": false} {
		client, _ := commands(t, map[string]string{"scontrol": `[ "$*" = --version ] && echo "` + version + `"`})
		if got, err := client.LosesShards(t.Context()); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", version, got, err, want)
		}
	}
	client, _ := commands(t, map[string]string{"scontrol": `echo slurm`})
	if _, err := client.LosesShards(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without a version: %v", err)
	}
}
