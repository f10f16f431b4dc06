// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/web"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// A script reads plain text, whatever the terminal of the one who tests.
func TestColourIsChosen(t *testing.T) {
	socket := serve(t, exampleReply)
	for name, c := range map[string]struct {
		args []string
		env  string
		want bool
	}{
		"no terminal":               {nil, "", false},
		"always":                    {[]string{"--color", "always"}, "", true},
		"always, whatever NO_COLOR": {[]string{"--color=always"}, "1", true},
		"never":                     {[]string{"--color", "never"}, "", false},
	} {
		t.Setenv("NO_COLOR", c.env)
		for _, command := range [][]string{{"status", "--no-queue"}, {"jobs"}, {"top", "--once"}} {
			out, errs, code := run(t, append(append([]string{"--socket", socket}, c.args...), command...)...)
			if code != 0 || strings.Contains(out, "\x1b[") != c.want {
				t.Errorf("%s: %v: exit %d, %s%q", name, command, code, errs, out)
			}
			narrow(t, codes.ReplaceAllString(out, ""))
		}
	}
	if _, errs, code := run(t, "--color=sometimes", "status"); code != 2 || !strings.Contains(errs, "want auto, always or never") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// Every command that prints has --json, and what it prints is JSON.
func TestJSONEverywhere(t *testing.T) {
	socket := serve(t, func(op wire.Op) wire.Reply {
		rep := exampleReply(op)
		rep.OK, rep.Topology, rep.Explain = true, &wire.Topology{}, &wire.Explanation{}
		if op == wire.OpStatus {
			rep.Jobs = nil
		}
		return rep
	})
	config := filepath.Join(t.TempDir(), "vgpu.toml")
	if err := os.WriteFile(config, []byte("version = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"status"},
		{"jobs"},
		{"top"},
		{"top", "--once"},
		{"topo"},
		{"explain", "7"},
		{"set", "7", "--cores", "20"},
		{"cordon", "0"},
		{"uncordon", "0"},
		{"check-config", config},
		{"doctor", "--local", "--timeout", "2s"},
	} {
		out, errs, _ := run(t, append([]string{"--json", "--socket", socket}, args...)...)
		var v any
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Errorf("%v: %v: %s%s", args, err, out, errs)
		}
	}
}

func TestTopNeedsATerminal(t *testing.T) {
	socket := serve(t, exampleReply)
	if out, errs, code := run(t, "--socket", socket, "top"); code != 1 || out != "" || !strings.Contains(errs, "top --once") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	out, _, code := run(t, "--socket", socket, "top", "--once", "--sort", "job")
	if lines := strings.Split(strings.TrimRight(out, "\n"), "\n"); code != 0 || len(lines) != 4 || strings.Fields(lines[0])[4] != "GOT" || strings.Fields(lines[1])[0] != "1234567" {
		t.Errorf("exit %d:\n%s", code, out)
	}
	for _, args := range [][]string{{"top", "--sort", "size"}, {"top", "--interval", "1ms"}} {
		if _, errs, code := run(t, args...); code != 2 || !strings.Contains(errs, "want") {
			t.Errorf("%v: exit %d: %s", args, code, errs)
		}
	}
}

func TestWaitingJobsAreThoseWithShares(t *testing.T) {
	jobs := parseQueue("12|alice|gres/shard:30|Resources\n13|bob|N/A|Priority\n14_[1-3]|bob|gres:vgpu:5|Dependency\nbroken\n")
	if len(jobs) != 2 || jobs[0] != (web.Waiting{JobID: "12", User: "alice", GRES: "shard:30", Reason: "Resources"}) || jobs[1].JobID != "14_[1-3]" {
		t.Errorf("got %+v", jobs)
	}
	var out strings.Builder
	if err := writeQueue(&out, false, jobs); err != nil || !strings.Contains(out.String(), "for a share: 2\nJOB") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// complete is what a press of the Tab key offers.
func completions(t *testing.T, args ...string) string {
	t.Helper()
	out, _, code := run(t, append([]string{cobra.ShellCompRequestCmd}, args...)...)
	if code != 0 {
		t.Fatalf("%v: exit %d", args, code)
	}
	return out
}

func TestCompletionKnowsJobsAndCards(t *testing.T) {
	socket := serve(t, exampleReply)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--socket", socket, "set", ""}, "1234567\tlongname12, 100% of card 0"},
		{[]string{"--socket", socket, "explain", ""}, "9\t33, refused"},
		{[]string{"--socket", socket, "cordon", ""}, "2\th200, 0% granted"},
		{[]string{"--socket", socket, "inspect", ""}, "/run/vgpu/jobs/1234567/cache"},
		{[]string{"--color", ""}, "never"},
		{[]string{"top", "--sort", ""}, "memory"},
		{[]string{"explain", "--vgpu-mode", ""}, "soft"},
		{[]string{""}, "doctor\tCheck this node"},
	} {
		if out := completions(t, c.args...); !strings.Contains(out, c.want) {
			t.Errorf("%v: no %q in %q", c.args, c.want, out)
		}
	}
	// One job is enough, and a gresd that is away is no error.
	if out := completions(t, "--socket", socket, "set", "7", ""); strings.Contains(out, "1234567") {
		t.Errorf("a second job is offered: %q", out)
	}
	if out := completions(t, "--socket", "/nonexistent/s", "cordon", ""); !strings.HasPrefix(out, ":4") {
		t.Errorf("without gresd: %q", out)
	}
}

// The shells take what is printed for them; fish and bash complete with it.
func TestShellsTakeTheCompletion(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ shell, script, want string }{
		{"bash", `source ./bash; complete -p vgpuctl`, "__start_vgpuctl"},
		{"zsh", `autoload -Uz compinit; compinit -u -D; source ./zsh; print ${_comps[vgpuctl]}`, "_vgpuctl"},
		{"fish", `source ./fish; complete -c vgpuctl | string match '*vgpuctl*'`, "vgpuctl"},
	} {
		out, errs, code := run(t, "completion", c.shell)
		if code != 0 {
			t.Fatalf("%s: exit %d: %s", c.shell, code, errs)
		}
		if err := os.WriteFile(filepath.Join(dir, c.shell), []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
		path, err := exec.LookPath(c.shell)
		if err != nil {
			t.Logf("%s is not installed: not tried", c.shell)
			continue
		}
		cmd := exec.Command(path, "-c", c.script)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir)
		if got, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(got), c.want) {
			t.Errorf("%s: %v: %q, want %q", c.shell, err, got, c.want)
		}
	}
	if _, errs, code := run(t, "completion", "csh"); code != 2 || !strings.Contains(errs, "csh") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

func TestBenchSaysWhatIsMissing(t *testing.T) {
	t.Setenv(benchEnv, t.TempDir())
	if _, errs, code := run(t, "bench"); code != 1 || !strings.Contains(errs, "the benchmark is not installed: reinstall slurm-vgpu-node") {
		t.Errorf("exit %d: %s", code, errs)
	}
	socket := serve(t, exampleReply)
	t.Setenv(benchEnv, "../../build")
	if err := (&settings{socket: socket}).bench(nil); err == nil || !strings.Contains(err.Error(), "drain the node") {
		t.Error(err)
	}
}

func TestDoctorExitStatus(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "vgpu.toml")
	if err := os.WriteFile(missing, []byte("version = 1\n[nvml]\nlibrary = \"/nonexistent/libnvidia-ml.so.1\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, code := run(t, "--config", missing, "doctor", "--local", "--timeout", "2s")
	if code != 1 || errs != "" || !strings.Contains(out, "pass  config") || !strings.Contains(out, "fail  driver") || !strings.Contains(out, "do: install the NVIDIA driver") {
		t.Errorf("exit %d: %s\n%s", code, errs, out)
	}
	if out, _, _ = run(t, "--config", missing, "doctor", "--local", "--quiet"); strings.Contains(out, "pass") {
		t.Errorf("--quiet: %s", out)
	}
	if _, errs, code = run(t, "doctor", "--timeout", "1ms"); code != 2 || !strings.Contains(errs, "at least 1s") {
		t.Errorf("exit %d: %s", code, errs)
	}
}
