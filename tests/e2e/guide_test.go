// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// step is one command of a document, with the lines that it must print.
type step struct {
	line    int
	command string
	want    []string
}

// steps reads the indented blocks of a document that have a prompt.
func steps(t *testing.T, path string) (all []step) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for i, line := range strings.Split(string(text), "\n") {
		body, indented := strings.CutPrefix(line, "    ")
		command, prompt := strings.CutPrefix(body, "$ ")
		switch {
		case indented && prompt:
			all, inside = append(all, step{line: i + 1, command: command}), true
		case indented && inside:
			last := &all[len(all)-1]
			last.want = append(last.want, body)
		default:
			inside = false
		}
	}
	return all
}

var blanks = regexp.MustCompile(`\s+`)

// pattern matches a line of a document: "…" stands for anything, and columns may be wider.
func pattern(line string) *regexp.Regexp {
	parts := strings.Split(strings.TrimSpace(line), "…")
	for i, p := range parts {
		words := blanks.Split(p, -1)
		for k := range words {
			words[k] = regexp.QuoteMeta(words[k])
		}
		parts[i] = strings.Join(words, `\s+`)
	}
	return regexp.MustCompile(strings.ReplaceAll(strings.Join(parts, ".*"), `\s+.*`, `\s*.*`))
}

// missing is the first wanted line that is not there, in their order.
func missing(output string, want []string) string {
	lines := strings.Split(output, "\n")
	for _, w := range want {
		p := pattern(w)
		for len(lines) > 0 && !p.MatchString(lines[0]) {
			lines = lines[1:]
		}
		if len(lines) == 0 {
			return w
		}
		lines = lines[1:]
	}
	return ""
}

var submitted = regexp.MustCompile(`Submitted batch job (\d+)`)

// Every command of the user guide, in its order, as a user who has those programs, on a host
// without gresd.
func TestUserGuide(t *testing.T) {
	s := up(t, oneCard)
	l := s.login()
	home := s.Home(alice)
	s.As(alice, "true") // makes the home
	for name, work := range map[string]string{
		"train": "--alloc 3G --saturate 600", "evaluate": "--report", "too-big": "--fill",
	} {
		script := fmt.Sprintf("#!/bin/sh\nexec %s %s\n", cluster.Worker, work)
		if err := os.WriteFile(filepath.Join(home, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	all := steps(t, "../../docs/user-guide.md")
	if len(all) < 12 {
		t.Fatalf("%d commands: are they found?", len(all))
	}
	var ids []string // of the document, and of this run
	for _, step := range all {
		real := strings.NewReplacer(ids...)
		command := real.Replace(step.command)
		var want []string
		for _, w := range step.want {
			want = append(want, real.Replace(w))
		}
		// What only looks may be looked at again: jobs take a moment to begin.
		again := strings.Contains(command, "--overlap") || strings.HasPrefix(command, "vgpuctl")
		var output, not string
		for end := time.Now().Add(shortWait); ; time.Sleep(200 * time.Millisecond) {
			text, _ := exec.Command(l.program, alice, "bash", "-c", command).CombinedOutput() // some are to fail
			output = string(text)
			if submits := submitted.FindStringSubmatch(strings.Join(step.want, "\n")); submits != nil {
				if got := submitted.FindStringSubmatch(output); got != nil {
					ids, want = append(ids, submits[1], got[1]), []string{got[0]}
				}
			}
			if not = missing(output, want); not == "" || !again || time.Now().After(end) {
				break
			}
		}
		if not != "" {
			t.Errorf("docs/user-guide.md:%d: %s: no line %q in\n%s", step.line, command, not, output)
		}
		if len(step.want) == 0 && strings.Contains(output, "vgpu:") {
			t.Errorf("docs/user-guide.md:%d: %s: is to print nothing of ours:\n%s", step.line, command, output)
		}
	}
}
