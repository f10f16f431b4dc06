// SPDX-License-Identifier: Apache-2.0

// Package docs holds every command line, option, key, path and link of the
// documents against the programs that were built. What a machine is needed for
// (Slurm, systemd) other tests run: INSTALL.md in tests/install, the user guide
// in tests/e2e.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const top = "../.."

// code is a piece of a document that stands for itself: a line of a block, or
// what is between backticks.
type code struct {
	file  string // from the top
	line  int
	text  string
	block bool
}

// documents are all of them but CHANGELOG.md, which tells what once was.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md", "docs/man/*.md", "libvgpu/README.md", "tests/*/README.md"} {
		files, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if name, _ := filepath.Rel(top, file); name != "CHANGELOG.md" {
				texts[name] = string(text)
			}
		}
	}
	return texts
}

var span = regexp.MustCompile("``?([^`]+)``?")

// pieces takes the code out of a document. Lines that a backslash continues are one.
func pieces(file, text string) []code {
	var all []code
	lines := strings.Split(text, "\n")
	prose := slices.Clone(lines)
	fenced, before := false, ""
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		fence := strings.HasPrefix(line, "```")
		if fence {
			fenced = !fenced
		}
		indented := strings.HasPrefix(line, "    ") && (before == "" || strings.HasPrefix(before, "    "))
		before = line
		if !fence && !fenced && !indented {
			continue
		}
		prose[i] = ""
		if fence {
			continue
		}
		c := code{file, i + 1, strings.TrimSpace(line), true}
		for strings.HasSuffix(c.text, `\`) && i+1 < len(lines) {
			i++
			c.text, prose[i], before = strings.TrimSuffix(c.text, `\`)+strings.TrimSpace(lines[i]), "", lines[i]
		}
		all = append(all, c)
	}
	rest := strings.ReplaceAll(strings.Join(prose, "\n"), `\|`, "|") // as a table has it
	for _, m := range span.FindAllStringSubmatchIndex(rest, -1) {
		text := strings.Join(strings.Fields(rest[m[2]:m[3]]), " ")
		all = append(all, code{file, 1 + strings.Count(rest[:m[0]], "\n"), text, false})
	}
	return all
}

// everything is the code of all documents.
func everything(t *testing.T) []code {
	t.Helper()
	var all []code
	for file, text := range documents(t) {
		all = append(all, pieces(file, text)...)
	}
	if len(all) < 1500 {
		t.Fatalf("%d pieces of code: are they found?", len(all))
	}
	return all
}

var (
	assignment = regexp.MustCompile(`^[A-Z_]+=`)
	inside     = regexp.MustCompile(`\$\(([^()]+)\)`)
)

// commands are the simple commands of a line of shell, without what stands
// before their names.
func commands(text string) [][]string {
	var all [][]string
	for _, m := range inside.FindAllStringSubmatch(text, -1) {
		all = append(all, commands(m[1])...)
	}
	text = inside.ReplaceAllString(strings.TrimPrefix(text, "$ "), "4217")
	var words []string
	word, begun, quote := "", false, rune(0)
	endWord := func() {
		if begun {
			words = append(words, word)
		}
		word, begun = "", false
	}
	endCommand := func() {
		endWord()
		for len(words) > 0 && (assignment.MatchString(words[0]) || words[0] == "sudo" || words[0] == "exec") {
			words = words[1:]
		}
		if len(words) > 0 {
			all = append(all, words)
		}
		words = nil
	}
	for _, r := range text {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == '#' && !begun:
			endCommand()
			return all
		case r == ' ' || r == '\t':
			endWord()
		case strings.ContainsRune(";|&", r):
			endCommand()
		default:
			word, begun = word+string(r), true
		}
	}
	endCommand()
	return all
}

func TestCommandsAreTakenOutOfDocuments(t *testing.T) {
	text := "Say `vgpuctl jobs\n--json` to it:\n\n    $ A=1 srun --x \\\n        'a b' | gresd $(vgpuctl status)  # not this\n\n1. list\n   goes on\n\n```sh\nmake x && make y\n```\n"
	var got []string
	for _, c := range pieces("x.md", text) {
		for _, words := range commands(c.text) {
			got = append(got, strings.Join(words, "_"))
		}
	}
	want := []string{"vgpuctl_status", "srun_--x_a b", "gresd_4217", "make_x", "make_y", "vgpuctl_jobs_--json"}
	if !slices.Equal(got, want) {
		t.Errorf("%q: want %q", got, want)
	}
}
