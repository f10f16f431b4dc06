// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// hooks is a folder of links to what Slurm runs, so that a measurement can
// change it from one job to the next without reconfiguring Slurm.
const hooks = cluster.Dir + "/hooks"

// roles are Slurm's hooks that slurm-vgpu has a program for.
var roles = []string{"Prolog", "Epilog", "TaskProlog"}

// useHooks lets Slurm run the links of the hooks folder.
func (s site) useHooks() {
	s.t.Helper()
	conf, err := os.ReadFile("/etc/slurm/slurm.conf")
	if err != nil {
		s.t.Fatal(err)
	}
	if err := os.MkdirAll(hooks, 0o755); err != nil {
		s.t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(conf)) {
		name, _, _ := strings.Cut(line, "=")
		switch {
		case slices.Contains(roles, name):
			line = name + "=" + filepath.Join(hooks, name) + "\n"
		case name == "HealthCheckInterval", name == "HealthCheckProgram":
			continue // nothing beside what is measured
		}
		out.WriteString(line)
	}
	if err := os.WriteFile("/etc/slurm/slurm.conf", []byte(out.String()), 0o644); err != nil {
		s.t.Fatal(err)
	}
	s.setHooks()
	if out, err := s.Scontrol("reconfigure"); err != nil {
		s.t.Fatal(out, err)
	}
	time.Sleep(time.Second)
}

// setHooks runs vgpu-prolog in these roles, and true in the others.
func (s site) setHooks(ours ...string) {
	s.t.Helper()
	for _, role := range roles {
		program := "/bin/true"
		if slices.Contains(ours, role) {
			program = cluster.Dir + "/bin/vgpu-prolog"
		}
		link := filepath.Join(hooks, role)
		if err := os.Symlink(program, link+".new"); err != nil {
			s.t.Fatal(err)
		}
		if err := os.Rename(link+".new", link); err != nil {
			s.t.Fatal(err)
		}
	}
}

// setting is one of the things that are compared.
type setting struct {
	name   string
	hooks  []string
	plugin bool
	took   []time.Duration
}

// compare runs the same command with each setting in turn, and returns the
// median of what it took with each.
func (s site) compare(rounds int, settings []setting, argv ...string) map[string]time.Duration {
	s.t.Helper()
	for round := range rounds + 2 { // the first two warm caches
		for i := range settings {
			set := &settings[i]
			s.setHooks(set.hooks...)
			s.setPlugstack(map[bool]string{true: levels[1].plugstack}[set.plugin])
			start := time.Now()
			r := s.As(alice, argv...)
			took := time.Since(start)
			if r.Code != 0 {
				s.t.Fatalf("%s: %v: %s", set.name, argv, r)
			}
			if round >= 2 {
				set.took = append(set.took, took)
			}
			s.settled()
		}
	}
	median := map[string]time.Duration{}
	for _, set := range settings {
		slices.Sort(set.took)
		median[set.name] = set.took[len(set.took)/2]
		s.t.Logf("%-40s median %5.1f ms, 10 %% below %5.1f, 90 %% below %5.1f", set.name,
			ms(median[set.name]), ms(set.took[len(set.took)/10]), ms(set.took[len(set.took)*9/10]))
	}
	return median
}

// settled waits until no job is completing. Then no Epilog runs during the next job start.
func (s site) settled() {
	s.t.Helper()
	for range 1000 {
		out, err := exec.Command("squeue", "-h", "-t", "CG", "-o", "%i").Output()
		if err == nil && len(out) == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.t.Fatal("a job is completing for 5 s")
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// onDisk lets gresd keep its state on the disk of this machine, where a write
// that must last takes its time, and not in the memory of the private /run.
func (s site) onDisk() {
	s.t.Helper()
	s.Gresd.Stop()
	text := regexp.MustCompile(`state_dir = "[^"]*"`).ReplaceAllString(s.Config(), fmt.Sprintf("state_dir = %q", s.t.TempDir()))
	if err := s.SetConfig(text); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Gresd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// The limits of the time that slurm-vgpu adds to a job start and to a step.
const (
	startLimit = 15 * time.Millisecond
	stepLimit  = 3 * time.Millisecond
)

// within measures what is added to something, and fails when it is more than
// the limit. On a machine with other work everything takes longer: the short
// run measures again before it fails, and allows twice as much, or a third of
// what it is added to.
func within(t *testing.T, limit time.Duration, what string, measure func(rounds int) (base, with time.Duration)) {
	t.Helper()
	rounds, tries := 12, 3
	if isLong() {
		rounds, tries = 30, 1
	}
	var added, allowed time.Duration
	for range tries {
		base, with := measure(rounds)
		added, allowed = with-base, limit
		if !isLong() {
			allowed = max(2*limit, base/3)
		}
		if added <= allowed {
			t.Logf("%s: %.1f ms, at most %.1f ms are allowed", what, ms(added), ms(allowed))
			return
		}
	}
	t.Errorf("%s: %.1f ms, want at most %.1f ms", what, ms(added), ms(allowed))
}

func TestCostOfAJobStart(t *testing.T) {
	s := up(t, oneCard)
	s.onDisk()
	s.useHooks()
	within(t, startLimit, "Prolog and Epilog of a job with a share", func(rounds int) (base, with time.Duration) {
		median := s.compare(rounds, []setting{
			{name: "true"},
			{name: "vgpu-prolog", hooks: []string{"Prolog", "Epilog"}},
		}, "srun", "--gres=shard:10", "/bin/true")
		return median["true"], median["vgpu-prolog"]
	})
}

func TestCostOfAStep(t *testing.T) {
	s := up(t, oneCard)
	s.useHooks()
	s.setHooks("Prolog", "Epilog")
	job := s.submit(alice, "--gres=vgpu:10", "sleep 300")
	s.running(job)
	within(t, stepLimit, "plugin at a step", func(rounds int) (base, with time.Duration) {
		median := s.compare(rounds, []setting{
			{name: "no plugin"},
			{name: "plugin", plugin: true},
			{name: "plugin, TaskProlog", hooks: []string{"TaskProlog"}, plugin: true},
		}, "srun", "--overlap", "--jobid", fmt.Sprint(job), "/bin/true")
		return median["no plugin"], median["plugin"]
	})
	s.setHooks("Prolog", "Epilog")
	s.cancel(alice, job)
}

// Jobs that end at once, as fast as Slurm starts them: at least 500 a minute, and no
// Prolog waits for those of other jobs. On a machine where Slurm alone takes longer than
// half of that time, the short run allows twice what it takes.
func TestManyShortJobs(t *testing.T) {
	jobs, perMinute := 60, 500
	if isLong() {
		jobs = 500
	}
	s := up(t, cluster.Options{})
	s.onDisk()
	s.useHooks()
	limit := time.Minute * time.Duration(jobs) / time.Duration(perMinute)
	run := func(args string) time.Duration {
		start := time.Now()
		s.submit(alice, fmt.Sprintf("--array=1-%d --output=/dev/null %s", jobs, args), "true")
		s.eventually(10*limit, "all jobs have ended", func() bool {
			queue, err := s.Queue()
			return err == nil && len(queue) == 0
		})
		return time.Since(start)
	}
	alone := run("")
	if !isLong() {
		limit = max(limit, 2*alone)
	}
	s.setHooks(roles...)
	const quick = `vgpu_grant_duration_seconds_bucket{le="1"}`
	before := count(t, quick) // without a Prolog tasks ask
	took := run("--gres=vgpu:25")
	t.Logf("%d jobs in %.1f s: %.0f a minute; without shares in %.1f s", jobs, took.Seconds(), float64(jobs)/took.Minutes(), alone.Seconds())
	if took > limit {
		t.Errorf("%d jobs took %.1f s, want at most %.1f s", jobs, took.Seconds(), limit.Seconds())
	}
	m := metrics(t)
	if n := metric(m, `vgpu_placements_total{result="granted"}`); n != fmt.Sprint(jobs) {
		t.Errorf("%s grants, want %d", n, jobs)
	}
	if n := count(t, quick) - before; n != jobs {
		t.Errorf("%d of %d grants within 1 s: a queue has built up", n, jobs)
	}
	var sum float64
	fmt.Sscan(metric(m, "vgpu_grant_duration_seconds_sum"), &sum)
	t.Logf("a grant took %.1f ms on average", sum*1000/float64(jobs))
}

// count is the value of a metric that counts.
func count(t *testing.T, name string) (n int) {
	t.Helper()
	fmt.Sscan(metric(metrics(t), name), &n)
	return n
}

// metric is the value of one line of gresd's metrics.
func metric(text, name string) string {
	for line := range strings.Lines(text) {
		if rest, is := strings.CutPrefix(line, name+" "); is {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
