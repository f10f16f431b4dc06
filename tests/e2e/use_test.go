// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// sample returns the values of a metric, by its labels as the page has them.
func sample(t *testing.T, page, name string) map[string]float64 {
	t.Helper()
	values := map[string]float64{}
	for line := range strings.Lines(page) {
		series, number, found := strings.Cut(strings.TrimSpace(line), "} ")
		rest, is := strings.CutPrefix(series, name+"{")
		if !found || !is {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		values[rest] = n
	}
	return values
}

// ofJob is the value of a job's metric, false where it is absent.
func ofJob(t *testing.T, page, name string, job int) (float64, bool) {
	t.Helper()
	for labels, n := range sample(t, page, name) {
		if strings.Contains(labels, fmt.Sprintf("job_id=%q", fmt.Sprint(job))) {
			return n, true
		}
	}
	return 0, false
}

// processes is what vgpuctl ps shows of a job.
func (s site) processes(job int) []wire.Process {
	s.t.Helper()
	r := s.As("root", "vgpuctl", "--json", "ps")
	var jobs []wire.Job
	if err := json.Unmarshal([]byte(r.Out), &jobs); err != nil {
		s.t.Fatalf("%v: %s", err, r)
	}
	for _, j := range jobs {
		if j.JobID == uint32(job) && len(j.Cards) == 1 {
			return j.Cards[0].ByProcess
		}
	}
	return nil
}

// What a job uses is right also where its processes have other numbers than the
// host knows them by: in all, and of each process.
func TestUseIsRightInPIDNamespaces(t *testing.T) {
	opts := oneCard
	opts.Config = "[metrics]\nprocesses = true\n"
	s := up(t, opts)
	const unshare = "unshare --pid --fork --kill-child --mount-proc "
	// Both are process 1. They start a moment apart, because the simulated card takes
	// the same pid and start time for the same process.
	inside := s.submit("root", "--gres=vgpu:30", unshare+cluster.BusyScript(300)+" & first=$!; sleep 0.2; "+
		unshare+cluster.BusyScript(300)+" & second=$!\nuntil [ -e end ]; do sleep 0.1; done; kill -KILL $first $second")
	plain := s.submit(bob, "--gres=vgpu:50", cluster.BusyScript(300))
	idle := s.submit(alice, "--gres=vgpu:20", cluster.Worker+" --alloc 1G --hold 300")
	s.running(inside, plain, idle)
	began := time.Now()

	near := func(got, want float64) bool { return got > want-0.06 && got < want+0.06 }
	var page string
	var found []wire.Process
	defer func() {
		if t.Failed() {
			t.Logf("%+v\n%s", found, page)
		}
	}()
	s.eventually(shortWait, "the use of all jobs is right", func() bool {
		page, found = metrics(t), s.processes(inside)
		a, ok := ofJob(t, page, "vgpu_job_utilization_ratio", inside)
		b, ok2 := ofJob(t, page, "vgpu_job_utilization_ratio", plain)
		c, ok3 := ofJob(t, page, "vgpu_job_utilization_ratio", idle)
		// Hard shares, each of which the card's time slices or the budget hold.
		right := ok && ok2 && ok3 && near(a, 0.3) && near(b, 0.5) && c == 0 && len(found) == 2
		for _, p := range found {
			right = right && p.Utilization != nil && near(*p.Utilization, 0.15)
		}
		return right
	})
	t.Logf("right after %s", time.Since(began).Round(100*time.Millisecond))
	for _, p := range found {
		if p.PID == 0 || p.JobPID != 1 {
			t.Errorf("a process in a namespace is %d there, and %d on the host", p.JobPID, p.PID)
		}
		// The same in the metrics, by the number that the host knows.
		one := fmt.Sprintf(",pid=%q,", fmt.Sprint(p.PID))
		if n := len(sample(t, page, "vgpu_process_utilization_ratio")); !strings.Contains(page, one) || n < 3 {
			t.Errorf("%d processes, want 4, one of them %s", n, one)
		}
	}
	for name, want := range map[string]float64{"vgpu_job_share_asked_ratio": 0.3, "vgpu_job_processes": 2} {
		if got, ok := ofJob(t, page, name, inside); !ok || got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	// The shares of the idle job are held, but idle; others work.
	if got := sample(t, page, "vgpu_card_share_idle_ratio"); len(got) != 1 {
		t.Errorf("idle shares: %v", got)
	} else {
		for _, n := range got {
			if n < 0.19 || n > 0.21 {
				t.Errorf("idle shares: %v, want 0.2", got)
			}
		}
	}
	held, _ := ofJob(t, page, "vgpu_job_idle_seconds_total", idle)
	worked, _ := ofJob(t, page, "vgpu_job_idle_seconds_total", plain)
	if held < 1 || worked > held/2 {
		t.Errorf("idle for %.1f s of a job that does nothing, %.1f s of one that works", held, worked)
	}
	row := func(job int) string { return fmt.Sprintf("\n%d ", job) } // the job is the first column
	if r := s.As(bob, "vgpuctl", "ps"); r.Code != 0 || !strings.Contains("\n"+r.Out, row(plain)) || strings.Contains("\n"+r.Out, row(inside)) {
		t.Errorf("a user sees the processes of own jobs only: %s", r)
	}
	s.cancel(bob, plain)
	s.cancel(alice, idle)
	// A signal of Slurm's would not reach process 1 of a namespace.
	if r := s.As("root", "touch", "end"); r.Code != 0 {
		t.Fatal(r)
	}
	s.completed("root", inside)
}

// A job that may have the whole card is not measured by the library, nor is one of several
// that hold each other: their GPU time counts all the same.
func TestGPUTimeThatNobodyCharges(t *testing.T) {
	s := up(t, cluster.Options{Cards: twoCards})
	whole := s.submit(alice, "--gres=vgpu:100", cluster.BusyScript(300))
	s.running(whole)
	first := s.submit(alice, "--gres=vgpu:40 --vgpu-mode=soft", cluster.BusyScript(300))
	second := s.submit(bob, "--gres=vgpu:60", cluster.BusyScript(300))
	s.running(first, second)
	gpuTime := func(job int) float64 {
		n, _ := ofJob(t, metrics(t), "vgpu_job_gpu_seconds_total", job)
		return n
	}
	s.eventually(shortWait, "the GPU time grows", func() bool { return gpuTime(whole) > 0 && gpuTime(first) > 0 })
	before := map[int]float64{whole: gpuTime(whole), first: gpuTime(first)}
	began := time.Now()
	time.Sleep(7500 * time.Millisecond) // counted each 2.5 s
	for job, of := range map[int]struct{ least, most float64 }{whole: {0.7, 1.3}, first: {0.25, 0.55}} {
		if part := (gpuTime(job) - before[job]) / time.Since(began).Seconds(); part < of.least || part > of.most {
			t.Errorf("job %d had %.2f of its card by its GPU time, want %.2f to %.2f", job, part, of.least, of.most)
		}
	}
	s.cancel(alice, whole, first)
	s.cancel(bob, second)
}
