// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMarkers(t *testing.T) {
	for _, tc := range []struct{ marker, marked, plain string }{
		{"what/who as a noun", "The ledger keeps what the job asked for.", "The user asks gresd what to do with the job."},
		{"Where X, Y", "The job waits, where the card is busy.", "The key names a folder, where the file must be."},
		{"beside", "A job runs beside another job.", "A job runs next to another job."},
		{"nobody/somebody", "The file is safe because nobody can write it.", "The file is safe because users cannot write it."},
		{"held/holds", "The limit is held by the library.", "The library enforces the limit of each job."},
		{"told/tells/said", "The user is told the reason.", "The message gives the user the reason."},
		{"of which/whose", "The file of which the name is wrong.", "The file has a name that is wrong."},
		{"is to/is meant/wants", "This option is meant for tests.", "Only the tests use this option."},
		{"Nor/Of/Such first", "Of two cards the first is free.", "The first of the two cards is free."},
		{"another one, the former one", "The grant replaces the one that ended.", "The grant replaces the grant of the ended job."},
		{"thereafter words", "The tool writes the file anew.", "The tool writes the file again."},
		{"over 30 words", strings.Repeat("one more word ", 11), strings.Repeat("one more word ", 10)},
	} {
		if got := findMarkers(tc.marked); !slices.Equal(got, []string{tc.marker}) {
			t.Errorf("%q: got %q, want %q", tc.marked, got, tc.marker)
		}
		if got := findMarkers(tc.plain); got != nil {
			t.Errorf("%q: got %q, want no marker", tc.plain, got)
		}
	}
	if len(markers) != 11 {
		t.Errorf("%d markers: want a case for each", len(markers))
	}
	if got := findMarkers("Is this what the user asked for?"); got != nil {
		t.Errorf("a question: got %q, want no marker", got)
	}
}

func TestSentencesOfFiles(t *testing.T) {
	for _, tc := range []struct {
		path, text string
		want       []string
	}{
		{
			"a.go", "// SPDX\n\n// Package a does one\n// thing well. It `opens` the file twice.\npackage a\n\nimport \"a\"\n" +
				"const url = \"// no comment is in here\" // The value has a comment.\n" +
				"var err = fmt.Errorf(\"cannot read \"+path+\" of job %d: \\\"%w\\\"\", 1, err)\n",
			[]string{
				"Package a does one thing well", "It `opens` the file twice", "The value has a comment",
				"// no comment is in here", "cannot read X of job X: X",
			},
		},
		{"a_test.go", "// The test has this comment.\nvar s = \"the test has this text\"", []string{"The test has this comment"}},
		{
			"a.c", "/*\n * The list has a lock:\n * - One item is free.\n * - The other item is not free.\n */\n" +
				"int c = '\"'; // The quote starts no string.\n" +
				"vgpu_warn(\"the limit is %\" PRIu64\n\" bytes, not /* %s */\", \"one two three four five\");",
			[]string{
				"The list has a lock:", "The other item is not free", "The quote starts no string",
				"the limit is X bytes, not /* X */", "one two three four five",
			},
		},
		{
			"a.lua", "-- The user doesn't see this.\nlog_user('vgpu: the partition ' .. name .. \" has no cards\")",
			[]string{"The user doesn't see this", "vgpu: the partition X has no cards"},
		},
		{"a.js", "f('the page has this text'); // The page does not have it", []string{"The page does not have it", "the page has this text"}},
		{"Makefile", "# The target builds all programs.\nall: one two three four five\n", []string{"The target builds all programs"}},
		{"run", "#!/bin/bash\n\n# The script runs all tests.\n", []string{"!/bin/bash The script runs all tests"}},
		{"text", "The file has no comments at all.", nil},
		{
			"a.md", "# A heading of more than five words\n\nThe page has [one link](to/a page) and `some code`. It ends here with a stop.\n\n" +
				"    this is code in the page\n\n| the first cell has text | no |\n",
			[]string{"The page has [one link] and X", "It ends here with a stop", "the first cell has text"},
		},
	} {
		if got := readSentences(tc.path, tc.text); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.path, got, tc.want)
		}
	}
}

func TestAChangeNeverRaisesAPercentage(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(filepath.Dir(limitsFile), 0o755); err != nil {
		t.Fatal(err)
	}
	// folder returns the sentences of a folder.
	folder := func(marked, all int) []string {
		return slices.Concat(slices.Repeat([]string{"It keeps what the job asked for."}, marked), slices.Repeat([]string{"The job has one card."}, all-marked))
	}
	for _, step := range []struct {
		what   string
		files  map[string][]string
		update bool
		fails  bool
		limits string // afterwards
	}{
		{"the first list", map[string][]string{"a/x.md": folder(2, 3), "a/y.md": folder(1, 6)}, true, false, "33.3 % 3/9 a\n"},
		{"a higher percentage", map[string][]string{"a/x.md": folder(4, 11)}, false, true, "33.3 % 3/9 a\n"},
		{"an update raises nothing", map[string][]string{"a/x.md": folder(4, 11)}, true, true, "33.3 % 3/9 a\n"},
		{"the same percentage", map[string][]string{"a/x.md": folder(1, 3)}, false, false, "33.3 % 3/9 a\n"},
		{"a new folder above 8 %", map[string][]string{"a/x.md": folder(1, 3), "b/x.md": folder(2, 24)}, true, true, "33.3 % 1/3 a\n"},
		{"a new folder with 8 %", map[string][]string{"a/x.md": folder(1, 3), "b/x.md": folder(2, 25)}, false, false, "33.3 % 1/3 a\n"},
		{"a new folder with one sentence", map[string][]string{"a/x.md": folder(1, 3), "b/x.md": folder(1, 5)}, false, false, "33.3 % 1/3 a\n"},
		{"a lower percentage", map[string][]string{"a/x.md": folder(0, 2)}, true, false, "0.0 % 0/2 a\n"},
	} {
		if err := checkFolders(step.files, step.update); (err != nil) != step.fails {
			t.Errorf("%s: got error %v, want one: %v", step.what, err, step.fails)
		}
		limits, err := os.ReadFile(limitsFile)
		if got := strings.TrimPrefix(string(limits), limitsHead); err != nil || got != step.limits {
			t.Errorf("%s: got limits %q (%v), want %q", step.what, got, err, step.limits)
		}
	}
}
