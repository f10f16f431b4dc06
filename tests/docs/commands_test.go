// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/spank/options"
)

// says runs a program that was built. It ends at once: it finds no gresd.
func says(t *testing.T, program string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(top, "build/bin", program), args...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatalf("%v: want make build before", err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// placeholder is a word that the reader puts something in the place of.
var placeholder = regexp.MustCompile(`…|\.\.\.|\b[A-Z]{1,}\b|[\[\]{}<>]`)

// asks are commands of vgpuctl that do nothing without a gresd: they are run as
// they stand.
var asks = []string{"status", "jobs", "ps", "topo", "explain", "set", "cordon", "uncordon", "inspect"}

// Every command line of vgpuctl and gresd names a command and flags that there are.
func TestCommandLinesOfOurPrograms(t *testing.T) {
	help := map[string]string{}
	found := map[string]bool{}
	check := func(c code, words []string) {
		program := words[0]
		var args []string
		for _, w := range words[1:] {
			if w == "" || placeholder.MatchString(w) && !strings.HasPrefix(w, "-") {
				continue
			}
			args = append(args, w)
		}
		command := slices.IndexFunc(args, func(w string) bool { return !strings.HasPrefix(w, "-") })
		wrong := func(why string) { t.Errorf("%s:%d: %s: %s", c.file, c.line, strings.Join(words, " "), why) }
		if command >= 0 {
			key := program + " " + args[command]
			if _, ok := help[key]; !ok {
				help[key], _ = says(t, program, args[command], "--help")
			}
			if !strings.Contains(help[key], "\n  "+key) {
				wrong("there is no such command")
				return
			}
			found[key] = true
		}
		if slices.ContainsFunc(args, placeholder.MatchString) {
			for _, w := range args {
				flag, _, _ := strings.Cut(w, "=")
				if strings.HasPrefix(flag, "--") && (command < 0 || !strings.Contains(help[program+" "+args[command]], flag+" ")) {
					wrong("there is no " + flag)
				}
			}
			return
		}
		if out, code := says(t, program, append(slices.Clone(args), "--help")...); code != 0 {
			wrong(out)
			return
		}
		if c.block && program == "vgpuctl" && command >= 0 && slices.Contains(asks, args[command]) && len(args) == len(words)-1 {
			if out, code := says(t, program, append([]string{"--socket", "/nonexistent/gresd.sock"}, args...)...); code == 2 {
				wrong(out)
			}
		}
	}
	for _, c := range everything(t) {
		for _, words := range commands(c.text) {
			// Also behind srun and its options.
			i := slices.IndexFunc(words, func(w string) bool { return w == "vgpuctl" || w == "gresd" })
			if i == 0 || i > 0 && words[0] == "srun" {
				check(c, words[i:])
			}
		}
	}
	for _, command := range []string{
		"vgpuctl status", "vgpuctl top", "vgpuctl jobs", "vgpuctl nodes", "vgpuctl report", "vgpuctl ps", "vgpuctl topo", "vgpuctl explain", "vgpuctl inspect", "vgpuctl set",
		"vgpuctl cordon", "vgpuctl uncordon", "vgpuctl doctor", "vgpuctl bench", "vgpuctl check-config", "gresd gres-conf",
	} {
		if !found[command] {
			t.Errorf("no document shows %s", command)
		}
	}
}

// refused are requests that the documents show as mistakes.
var refused = []string{"--vgpu-mem=1.5g", "--gres=vgpu:150"}

var (
	ours  = regexp.MustCompile(`^--(gres=vgpu(:|$)|vgpu-[a-z])`)
	value = regexp.MustCompile(`^--vgpu-([a-z-]+)(=.*)?$`)
)

// Every option is one of ours, and every request is one that vgpu-srun, as the
// plugin and the server, takes.
func TestRequestsAreTaken(t *testing.T) {
	shown := map[string]bool{}
	requests, seen := map[string]code{}, map[string]bool{}
	for _, c := range everything(t) {
		for _, words := range commands(c.text) {
			if words[0] == "vgpuctl" || words[0] == "gresd" {
				continue
			}
			var args []string
			for _, w := range words {
				if !ours.MatchString(w) {
					continue
				}
				w = strings.TrimSuffix(w, ",")
				if m := value.FindStringSubmatch(w); m != nil {
					if _, ok := options.Find(m[1]); !ok {
						t.Errorf("%s:%d: %s: no option --vgpu-%s", c.file, c.line, c.text, m[1])
						continue
					}
					seen[m[1]] = true
				}
				if v := w[strings.IndexByte(w+"=", '=')+min(1, strings.Count(w, "=")):]; v != "" && !placeholder.MatchString(v) && strings.Contains(w, "=") {
					args = append(args, w)
				}
			}
			if len(args) > 0 {
				requests[strings.Join(args, " ")] = c
			}
		}
	}
	for request, c := range requests {
		args := strings.Fields(request)
		if !strings.Contains(request, "--gres=") {
			args = append(args, "--gres=vgpu:60") // an option alone is about some share
		}
		wrong := slices.ContainsFunc(refused, func(r string) bool {
			if slices.Contains(args, r) {
				shown[r] = true
				return true
			}
			return false
		})
		out, code := says(t, "vgpu-srun", append([]string{"--show"}, append(args, "true")...)...)
		if wrong != (code != 0) {
			t.Errorf("%s:%d: %s: exit %d, %s", c.file, c.line, strings.Join(args, " "), code, out)
		}
	}
	for _, r := range refused {
		if !shown[r] {
			t.Errorf("no document shows %s", r)
		}
	}
	for _, o := range options.List {
		if !seen[o.Name] {
			t.Errorf("no document shows --vgpu-%s", o.Name)
		}
	}
	if len(requests) < 25 {
		t.Errorf("%d requests: are they found?", len(requests))
	}
}

// rules are the names that make knows in a folder, with what its makefile says
// of variables.
func rules(t *testing.T, folder string) (map[string]bool, string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, folder, "Makefile"))
	if err != nil {
		t.Error(err)
	}
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`).FindAllStringSubmatch(string(text), -1) {
		names[m[1]] = true
	}
	return names, string(text)
}

// functions are the tests and fuzz targets below a folder.
func functions(t *testing.T, folder string) []string {
	t.Helper()
	var names []string
	definition := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w*)\(`)
	err := filepath.WalkDir(filepath.Join(top, folder), func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "build" || d.Name() == ".git"):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range definition.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// What a contributor types: targets of make and their variables, tests that go
// test is to run, programs of build/.
func TestCommandsOfContributors(t *testing.T) {
	n := 0
	for _, c := range everything(t) {
		for _, words := range commands(c.text) {
			wrong := func(why string) { t.Errorf("%s:%d: %s: %s", c.file, c.line, strings.Join(words, " "), why) }
			switch {
			case words[0] == "make":
				n++
				folder, rest := ".", words[1:]
				if len(rest) > 1 && rest[0] == "-C" {
					folder, rest = rest[1], rest[2:]
				}
				targets, makefile := rules(t, folder)
				for _, w := range rest {
					name, val, variable := strings.Cut(w, "=")
					switch {
					case strings.HasPrefix(w, "-") || placeholder.MatchString(w) && !variable:
					case variable && !strings.Contains(makefile, name):
						wrong("the Makefile has no " + name)
					case variable && name == "RUN" && !placeholder.MatchString(val):
						if p, err := regexp.Compile(val); err != nil || !slices.ContainsFunc(functions(t, "tests/e2e"), p.MatchString) {
							wrong("RUN picks no test")
						}
					case !variable && !targets[w]:
						wrong("make has no target " + w)
					}
				}
			case words[0] == "go" && len(words) > 2 && (words[1] == "test" || words[1] == "run"):
				n++
				folder := words[slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "./") })]
				if _, err := os.Stat(filepath.Join(top, strings.TrimSuffix(folder, "..."))); err != nil {
					wrong(err.Error())
					continue
				}
				i := slices.Index(words, "-run")
				if b := slices.Index(words, "-bench"); b > 0 {
					i = b // -run of no test goes with it
				}
				if i > 0 {
					all := functions(t, strings.TrimSuffix(folder, "..."))
					for name := range strings.SplitSeq(strings.TrimSuffix(words[i+1], "$"), "|") {
						if p, err := regexp.Compile(name); err != nil || !slices.ContainsFunc(all, p.MatchString) {
							wrong("no test " + name)
						}
					}
				}
			case strings.HasPrefix(words[0], "build/"):
				n++
				program, err := os.ReadFile(filepath.Join(top, words[0]))
				if err != nil {
					wrong(err.Error())
					continue
				}
				for _, w := range words[1:] {
					flag, _, _ := strings.Cut(strings.TrimLeft(w, "-"), "=")
					if strings.HasPrefix(w, "--") && w != "--help" && !bytes.Contains(program, []byte(flag)) {
						wrong("it has no --" + flag)
					}
				}
			}
		}
	}
	if n < 30 {
		t.Errorf("%d commands: are they found?", n)
	}
}
