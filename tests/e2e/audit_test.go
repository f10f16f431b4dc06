// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// audited is the count of a kind in gresd's metrics.
func audited(t *testing.T, kind string) string {
	t.Helper()
	for line := range strings.Lines(metrics(t)) {
		if rest, is := strings.CutPrefix(line, fmt.Sprintf("vgpu_audit_events_total{kind=%q} ", kind)); is {
			return strings.TrimSpace(rest)
		}
	}
	return "absent"
}

func (s site) shows(command string, words ...string) bool {
	r := s.As("root", "vgpuctl", command)
	for _, word := range words {
		if r.Code != 0 || !strings.Contains(r.Out, word) {
			return false
		}
	}
	return true
}

// Without the SPANK plugin a program can leave the library behind. It is found,
// by name, and left alone; so is a program of nobody's. Those that follow the
// rules are not found.
func TestProgramsWithoutTheLibraryAreReported(t *testing.T) {
	opts := oneCard
	opts.NoPlugin = true
	opts.Config = "[audit]\nescaped = \"report\"\n"
	s := up(t, opts)
	good := s.submit(bob, "--gres=vgpu:30", cluster.Worker+" --alloc 1G --hold 300")
	s.running(good)
	job := s.submit(alice, "--gres=vgpu:10",
		"env -u LD_PRELOAD "+cluster.Worker+" --alloc 10G --hold 300 & echo $! >pid; wait")
	s.running(job)
	s.eventually(shortWait, "it is found", func() bool {
		return s.shows("status", "audit: process "+strings.TrimSpace(s.File(alice, "pid"))+" (vgpu-worker) of job "+fmt.Sprint(job)+" uses ", "without libvgpu, which",
			"without libvgpu, and so", fmt.Sprintf("audit: job %d holds 10740 MiB", job), "its limit is 8 GiB")
	})
	if got := audited(t, "unregistered") + audited(t, "escaped") + audited(t, "exceeded") + audited(t, "stranger"); got != "1110" {
		t.Errorf("counted %s, want one of the job, of both and of its limit, no stranger", got)
	}
	if !s.shows("jobs", fmt.Sprintf("job %d: ", job), "vgpu: audit: process ") || s.shows("jobs", fmt.Sprintf("job %d: 2", good)) {
		t.Error(s.As("root", "vgpuctl", "jobs"))
	}
	stranger, err := s.Command(carol, cluster.Worker, "--alloc", "1G", "--hold", "300")
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
	s.eventually(shortWait, "the stranger is found", func() bool {
		return s.shows("status", fmt.Sprintf("audit: process %d (vgpu-worker) of user ", stranger.Process.Pid), "belongs to no job of Slurm")
	})
	time.Sleep(6 * time.Second) // nothing is said twice
	if got := audited(t, "unregistered") + audited(t, "escaped") + audited(t, "exceeded") + audited(t, "stranger"); got != "1111" {
		t.Errorf("counted %s, want each once", got)
	}
	for _, j := range []int{job, good} {
		if facts, err := s.Job(j); err != nil || facts["JobState"] != "RUNNING" {
			t.Errorf("job %d: %s, %v", j, facts["JobState"], err)
		}
	}
	if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the stranger: %v", err)
	}
	_ = stranger.Process.Kill()
	s.cancel(alice, job)
	s.cancel(bob, good)
}

// A loader of one's own does not read /etc/ld.so.preload, which no namespace can
// prevent. Such a process is killed when it takes more than the job's limit leaves, and no other:
// within the limit it is only reported.
func TestProgramsWithTheirOwnLoaderAreKilled(t *testing.T) {
	s := up(t, oneCard)
	loader := `sed 's#/etc/ld.so.preload#/etc/ld.so.xreload#' "$(readlink -f /lib64/ld-linux-x86-64.so.2)" >loader; chmod +x loader; `
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", loader+
		cluster.Worker+" --alloc 1G --hold 300 & good=$!\n"+
		"./loader "+cluster.Worker+" --alloc 10G --hold 300; echo ended $?\n"+
		"./loader "+cluster.Worker+" --alloc 1G --hold 9; echo within $?\n"+
		"kill -0 $good && echo the other lives; kill $good; wait $good; cat /run/vgpu/jobs/$SLURM_JOB_ID/messages")
	out := s.completed(alice, job)
	for _, want := range []string{`"cmd":"alloc"`, "ended 137", "within 0", "the other lives", "vgpu: audit: killed process ", "ask for more with --vgpu-mem"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	if got := audited(t, "unregistered") + audited(t, "escaped"); got != "11" {
		t.Errorf("counted %s, want one that was killed and one that was not:\n%s", got, out)
	}
}

// A program without the library can give itself a longer time slice than its
// neighbours have. What it takes from them is seen in the driver's own samples.
func TestJobThatComputesAboveItsShareIsReported(t *testing.T) {
	opts := oneCard
	opts.NoPlugin = true
	opts.Config = "[audit]\nunregistered = \"ignore\"\n"
	s := up(t, opts)
	good := s.submit(bob, "--gres=vgpu:80", cluster.BusyScript(120))
	bad := s.submit(alice, "--gres=vgpu:10", "env -u LD_PRELOAD "+cluster.BusyScript(120)+" & echo $! >pid; wait")
	s.running(good, bad)
	s.eventually(shortWait, "it has set its slice", func() bool {
		return s.Sim("set-slice --us 60000 --pid "+strings.TrimSpace(s.File(alice, "pid"))) == nil
	})
	s.eventually(70*time.Second, "it is found", func() bool {
		return s.shows("status", fmt.Sprintf("audit: job %d has about ", bad), "its share is 10 %")
	})
	if r := s.As("root", "vgpuctl", "jobs"); !strings.Contains(r.Out, fmt.Sprintf("job %d: ", bad)) || strings.Contains(r.Out, fmt.Sprintf("job %d: ", good)) {
		t.Errorf("told to the wrong job: %s", r)
	}
	if over, no := audited(t, "overuse"), audited(t, "unregistered"); over != "1" || no != "0" {
		t.Errorf("counted %s and %s of a rule that is ignored, want 1 and 0", over, no)
	}
	s.cancel(bob, good)
	s.cancel(alice, bad)
}

// A program that works by calls which the library does not see has all of a card where its job is
// alone there. The card's own account tells, and not of honest jobs, alone or beside each other,
// whatever their programs do.
func TestJobAboveItsHardLimitIsReported(t *testing.T) {
	honest := []string{ // the last is beside one of the others
		"--kernel-us 200 --streams 4", "--kernel-us 20000", "--kernel-us 500 --launch graph", "--kernel-us 5000",
	}
	cards := slices.Repeat(oneCard.Cards, len(honest))
	s := up(t, cluster.Options{Cards: cards, NoPlugin: true, Config: "[audit]\nunregistered = \"ignore\"\n"})
	bad := s.submit(alice, "--gres=vgpu:70", "env -u LD_PRELOAD "+cluster.BusyScript(120))
	jobs := []int{bad}
	for i, program := range honest {
		share := 60
		if i == len(honest)-1 {
			share = 40
		}
		jobs = append(jobs, s.submit(bob, fmt.Sprintf("--gres=vgpu:%d", share), cluster.Worker+" "+program+" --saturate 120"))
	}
	s.running(jobs...)
	s.eventually(70*time.Second, "it is found", func() bool {
		return s.shows("status", fmt.Sprintf("audit: job %d of user ", bad), "had at least ", "its hard limit is 70 %")
	})
	time.Sleep(10 * time.Second) // as long as a job must be above its limit
	if !s.shows("jobs", fmt.Sprintf("job %d: ", bad), "its hard limit is 70 %") || audited(t, "overlimit") != "1" {
		t.Errorf("counted %s, want one; status:\n%s\njobs:\n%s", audited(t, "overlimit"), s.As("root", "vgpuctl", "status"), s.As("root", "vgpuctl", "jobs"))
	}
	s.cancel(alice, bad)
	s.eventually(shortWait, "nothing is said of a job that has ended", func() bool { return !s.shows("status", "its hard limit is") })
	for _, job := range jobs[1:] {
		s.cancel(bob, job)
	}
}

// Where nothing keeps a job from the device files, one without cards can use those of others. It
// is found, as a program of nobody's is; a job that has a whole card is not.
func TestJobWithoutCardsOnASharedCardIsAStranger(t *testing.T) {
	s := up(t, cluster.Options{Cards: twoCards})
	share := s.submit(bob, "--gres=vgpu:50", cluster.Worker+" --alloc 1G --hold 300")
	s.running(share)
	whole := s.submit(carol, "--gres=gpu:1", cluster.Worker+" --alloc 1G --hold 300")
	plain := s.submit(alice, "", cluster.Worker+" --alloc 10G --hold 300 & echo $! >pid; wait")
	s.eventually(shortWait, "the job without cards is found", func() bool {
		return s.shows("status", "audit: process "+strings.TrimSpace(s.File(alice, "pid"))+" (vgpu-worker) of user ",
			fmt.Sprintf("belongs to job %d, which has no share of this card", plain))
	})
	if got := audited(t, "stranger"); got != "1" || s.shows("status", fmt.Sprintf("job %d", whole)) {
		t.Errorf("%s strangers were counted, want one\n%s", got, s.As("root", "vgpuctl", "status"))
	}
	s.cancel(alice, plain)
	s.cancel(bob, share)
	s.cancel(carol, whole)
}
