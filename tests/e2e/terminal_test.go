// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

var update = flag.Bool("update", false, "write anew the golden files of terminal views, and tables of docs")

// terminal is a tmux of its own with one program in it.
type terminal struct {
	t      *testing.T
	socket string
}

// open starts a program in a terminal of that size. The shell says how it ended.
func (s site) open(width, height int, command string) terminal {
	s.t.Helper()
	x := terminal{s.t, filepath.Join(cluster.Dir, "tmux")}
	x.tmux("-f", "/dev/null", "new-session", "-d", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height),
		"stty -echo; "+filepath.Join(cluster.Dir, "bin", command)+"; echo ended with $?; exec sleep 600")
	s.t.Cleanup(x.close)
	return x
}

// close waits until the terminal is gone, which it may be already: the next one
// has the same socket.
func (x terminal) close() {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if out, err := x.try("kill-server"); err != nil && !strings.Contains(out, "lost") {
			return
		}
	}
}

func (x terminal) try(args ...string) (string, error) {
	cmd := exec.Command("tmux", append([]string{"-u", "-S", x.socket}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TERM=xterm-256color", "LC_ALL=C.UTF-8", "SHELL=/bin/sh"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (x terminal) tmux(args ...string) string {
	x.t.Helper()
	out, err := x.try(args...)
	if err != nil {
		x.t.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return out
}

func (x terminal) screen() string { return x.tmux("capture-pane", "-p") }

// shows waits until the screen has a text.
func (x terminal) shows(text string) string {
	x.t.Helper()
	var got string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if got = x.screen(); strings.Contains(got, text) {
			return got
		}
	}
	x.t.Fatalf("the terminal does not show %q:\n%s", text, got)
	return ""
}

// volatile are the parts of a view that differ from run to run. Each is masked
// with as many signs as it has, so that what moves is seen.
var volatile = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\d\d:\d\d:\d\d  up \S+`), "TIME  up TIME"},
	{regexp.MustCompile(`  \d+ throttled`), ""},
	{regexp.MustCompile(`[█░│]`), "▒"},
	{regexp.MustCompile(`[▁▂▃▄▅▆▇]`), " "},
	{regexp.MustCompile(`(program|neighbors|limit|card|-) +([0-9.]+ ms|driver's)( gate)?`), ""},
	{regexp.MustCompile(` *(\d+|\?)%?(?: |$)`), ""},
	{regexp.MustCompile(` *[0-9.?]+/[0-9.]+[GM]`), ""},
	{regexp.MustCompile(` +([0-9]+m)?[0-9.]+m?s`), ""},
}

func masked(screen string) string {
	var lines []string
	for line := range strings.Lines(screen) {
		line = strings.TrimRight(line, "\n")
		for _, v := range volatile {
			line = v.what.ReplaceAllStringFunc(line, func(part string) string {
				switch {
				case v.with == "▒" || v.with == " ", strings.HasPrefix(v.with, "TIME"):
					return v.with
				case strings.Contains(part, "throttled"):
					return ""
				}
				return strings.Repeat("~", len([]rune(strings.TrimRight(part, " ")))) + part[len(strings.TrimRight(part, " ")):]
			})
		}
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n"
}

// needsTmux leaves a test out on the system of another release, which has none.
func needsTmux(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil && os.Getenv(cluster.RootEnv) != "" {
		t.Skip("the system of the other release has no tmux; it needs nothing of Slurm")
	}
}

// The live view on a real terminal, with two jobs on one card.
func TestTopOnATerminal(t *testing.T) {
	needsTmux(t)
	s := up(t, oneCard)
	a := s.submit(alice, "--gres=vgpu:30", cluster.BusyScript(300))
	b := s.submit(bob, "--gres=vgpu:70 --vgpu-mode=soft", cluster.BusyScript(300))
	s.running(a, b)
	s.eventually(shortWait, "both jobs work", func() bool {
		var v top.Sample
		r := s.As("root", "vgpuctl", "top", "--json")
		if err := json.Unmarshal([]byte(r.Out), &v); err != nil {
			t.Fatalf("%v: %s", err, r)
		}
		return len(v.Jobs) == 2 && !slices.ContainsFunc(v.Jobs, func(j wire.Job) bool {
			c := j.Cards[0]
			return c.GotPercent == nil || *c.GotPercent == 0 || c.UsedBytes == nil || *c.UsedBytes < 1<<30 || *c.Processes != 1
		})
	})

	for _, size := range []struct{ width, height int }{{80, 24}, {200, 50}} {
		t.Run(fmt.Sprintf("%dx%d", size.width, size.height), func(t *testing.T) {
			x := site{s.Cluster, t}.open(size.width, size.height, "vgpuctl top --interval 500ms")
			x.shows("HISTORY")
			x.tmux("send-keys", "j")
			x.shows("by job")
			x.shows(bob)
			got := masked(x.screen())
			path := filepath.Join("testdata", fmt.Sprintf("top-%dx%d.txt", size.width, size.height))
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil || got != string(want) {
				t.Errorf("%s: %v: got\n%s(go test -update writes it anew)", path, err, got)
			}
			// The order of rows follows the keys.
			x.tmux("send-keys", "r")
			screen := x.shows("by job reversed")
			if strings.Index(screen, alice) < strings.Index(screen, bob) {
				t.Errorf("reversed, job %d is still before job %d:\n%s", a, b, screen)
			}
			// A terminal that changes its size, and back to the shell.
			x.tmux("resize-window", "-x", "100", "-y", "30")
			site{s.Cluster, t}.eventually(shortWait, "the view follows the terminal's size", func() bool {
				lines := strings.Split(x.screen(), "\n")
				return len(lines) >= 30 && strings.Contains(lines[29], "q quit")
			})
			x.tmux("send-keys", "q")
			x.shows("ended with 0")
			x.close()
		})
	}

	// A user sees his own jobs, also here.
	r := s.As(alice, "vgpuctl", "top", "--once")
	if r.Code != 0 || !strings.Contains(r.Out, alice) || strings.Contains(r.Out, bob) {
		t.Errorf("top of %s: %s", alice, r)
	}
	if r := s.As(alice, "vgpuctl", "status"); r.Code != 0 || !strings.Contains(r.Out, "100%") || strings.Contains(r.Out, bob) {
		t.Errorf("status of %s: %s", alice, r)
	}
	// What waits in the queue is told, to root and to the one who waits.
	c := s.submit(carol, "--gres=vgpu:50", "true")
	for _, user := range []string{"root", carol} {
		s.eventually(shortWait, "the queue shows the job to "+user, func() bool {
			r := s.As(user, "vgpuctl", "status")
			return strings.Contains(r.Out, fmt.Sprintf("\n%d", c)) && strings.Contains(r.Out, "shard:")
		})
	}
	if r := s.As(alice, "vgpuctl", "status"); strings.Contains(r.Out, "queue") {
		t.Errorf("%s is told of the job of %s: %s", alice, carol, r)
	}
	s.cancel(alice, a)
	s.cancel(bob, b)
	s.completed(carol, c)
}
