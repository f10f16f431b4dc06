// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// loginHost runs commands of a user where there is no gresd.
type loginHost struct {
	site
	program string
}

func (s site) login() loginHost {
	s.t.Helper()
	program, err := s.Login()
	if err != nil {
		s.t.Fatal(err)
	}
	return loginHost{s, program}
}

// as runs a command there, which must end with that status.
func (l loginHost) as(code int, user string, argv ...string) string {
	l.t.Helper()
	out, err := exec.Command(l.program, append([]string{user}, argv...)...).CombinedOutput()
	got := 0
	if exit, is := err.(*exec.ExitError); is {
		got = exit.ExitCode()
	} else if err != nil {
		l.t.Fatal(err)
	}
	if got != code {
		l.t.Fatalf("%s: %v: exit %d, want %d:\n%s", user, argv, got, code, out)
	}
	return string(out)
}

// steps are the running steps of jobs, but for their batch scripts.
func (l loginHost) steps() (steps []string) {
	l.t.Helper()
	out, err := exec.Command("squeue", "-s", "-h", "-o", "%i").Output()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, step := range strings.Fields(string(out)) {
		if !strings.HasSuffix(step, ".batch") && !strings.HasSuffix(step, ".extern") {
			steps = append(steps, step)
		}
	}
	return steps
}

// rowOf is the line of a table that begins with that job.
func rowOf(table string, job int) string {
	for line := range strings.Lines(table) {
		if hasWord(line[:min(len(line), 8)], fmt.Sprint(job)) {
			return line
		}
	}
	return ""
}

// Where users log in, vgpuctl asks the nodes of their own jobs, and no others.
func TestVgpuctlWhereUsersLogIn(t *testing.T) {
	needsTmux(t)
	s := up(t, twoNodes)
	l := s.login()
	if out := l.as(0, alice, "vgpuctl", "jobs"); !strings.Contains(out, "no running job of yours") {
		t.Errorf("without jobs: %s", out)
	}
	one := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G --nodelist=vgpu-node", cluster.BusyScript(300))
	two := s.submit(alice, "--gres=vgpu:40 --vgpu-mem=9G --nodelist=vgpu-node2", cluster.BusyScript(300))
	other := s.submit(bob, "--gres=vgpu:25 --nodelist=vgpu-node2", "sleep 300")
	without := s.submit(alice, "--nodelist=vgpu-node2", "sleep 300")
	s.running(one)
	for _, job := range []int{two, other, without} {
		if _, err := s.WaitState(job, shortWait, "RUNNING"); err != nil {
			t.Fatal(err)
		}
	}

	var table string
	s.eventually(shortWait, "both jobs are in one table", func() bool {
		table = l.as(0, alice, "vgpuctl", "jobs")
		return strings.Contains(rowOf(table, one), "30%") && strings.Contains(rowOf(table, two), "40%")
	})
	if !hasWord(table, "NODE") || !hasWord(rowOf(table, one), "vgpu-node") || !hasWord(rowOf(table, two), "vgpu-node2") ||
		strings.Contains(table, bob) || rowOf(table, other) != "" || rowOf(table, without) != "" {
		t.Errorf("jobs %d and %d alone, each with its node:\n%s", one, two, table)
	}
	s.eventually(shortWait, "both processes are in one table", func() bool {
		table = l.as(0, alice, "vgpuctl", "ps")
		return hasWord(rowOf(table, one), "vgpu-node") && hasWord(rowOf(table, two), "vgpu-node2")
	})
	if out := l.as(0, alice, "vgpuctl", "explain", fmt.Sprint(two)); !strings.Contains(out, "node vgpu-node2, job") || !strings.Contains(out, "got card 0") {
		t.Errorf("explain: %s", out)
	}
	if out := l.as(1, alice, "vgpuctl", "explain", fmt.Sprint(other)); !strings.Contains(out, "none of yours") {
		t.Errorf("explain a job of another: %s", out)
	}
	if out := l.as(0, alice, "vgpuctl", "top", "--once"); !hasWord(rowOf(out, one), "vgpu-node") || !hasWord(rowOf(out, two), "vgpu-node2") || strings.Contains(out, bob) {
		t.Errorf("top --once: %s", out)
	}
	var samples []top.Sample
	if err := json.Unmarshal([]byte(l.as(0, alice, "vgpuctl", "top", "--json")), &samples); err != nil || len(samples) != 2 {
		t.Errorf("top --json: %v, %d nodes, want 2", err, len(samples))
	}
	if steps := l.steps(); len(steps) > 0 {
		t.Errorf("steps are left: %v", steps)
	}

	t.Run("live", func(t *testing.T) { testLiveLogin(t, loginHost{site{s.Cluster, t}, l.program}, one, two) })
	t.Run("silent node", func(t *testing.T) { testSilentNode(t, loginHost{site{s.Cluster, t}, l.program}, one, two) })
	s.cancel(alice, one, two, without)
	s.cancel(bob, other)
}

// The live view has a step on each node, and none is left however it ends.
func testLiveLogin(t *testing.T, l loginHost, one, two int) {
	for _, c := range []struct {
		how string
		end func(x terminal)
	}{
		{"by its key", func(x terminal) { x.tmux("send-keys", "q") }},
		{"by ^C", func(x terminal) { x.tmux("send-keys", "C-c") }},
		{"killed", func(terminal) { l.signalView("KILL") }},
		{"by a signal", func(terminal) { l.signalView("TERM") }},
	} {
		x := l.open(80, 24, "login "+alice+" vgpuctl top --interval 500ms --sort job")
		screen := x.shows(fmt.Sprintf("%8d vgpu-node2", two))
		if !strings.Contains(screen, fmt.Sprintf("%8d vgpu-node ", one)) || !strings.Contains(screen, "nodes 2") || strings.Contains(screen, bob) {
			t.Errorf("the view:\n%s", screen)
		}
		if steps := l.steps(); len(steps) != 2 {
			t.Errorf("steps %v, want one on each node", steps)
		}
		c.end(x)
		x.shows("ended with ")
		l.eventually(shortWait, "ended "+c.how+", no step is left", func() bool { return len(l.steps()) == 0 })
		x.close()
	}
}

// signalView sends a signal to the view alone.
func (l loginHost) signalView(name string) {
	l.t.Helper()
	for _, p := range l.Processes() {
		if strings.HasSuffix(p.Command, "vgpuctl top --interval 500ms --sort job") && !strings.Contains(p.Command, "login") {
			if out, err := exec.Command("kill", "-"+name, fmt.Sprint(p.PID)).CombinedOutput(); err != nil {
				l.t.Fatalf("%v: %s", err, out)
			}
			return
		}
	}
	l.t.Fatal("no view runs")
}

// A node whose gresd does not answer is a row that says so.
func testSilentNode(t *testing.T, l loginHost, one, two int) {
	l.Gresd.Kill()
	if err := os.Remove("/run/vgpu/gresd.sock"); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	table := l.as(0, alice, "vgpuctl", "jobs")
	if !hasWord(rowOf(table, one), "unanswered") || !strings.Contains(table, "node vgpu-node: ") || !strings.Contains(table, "is gresd running?") {
		t.Errorf("a node without gresd:\n%s", table)
	}
	if !strings.Contains(rowOf(table, two), "40%") {
		t.Errorf("the other node answers:\n%s", table)
	}
	if out := l.as(0, alice, "vgpuctl", "top", "--once"); !strings.Contains(out, "is gresd running?") || !hasWord(rowOf(out, two), "vgpu-node2") {
		t.Errorf("top --once: %s", out)
	}
	if err := l.Gresd.Start(); err != nil {
		t.Fatal(err)
	}
	l.eventually(shortWait, "it answers again", func() bool {
		return strings.Contains(rowOf(l.as(0, alice, "vgpuctl", "jobs"), one), "30%")
	})
}
