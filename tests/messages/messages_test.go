// SPDX-License-Identifier: Apache-2.0

package messages

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

const page = "../../docs/troubleshooting.md"

// fewest is how much text a pattern of the page must have: one of values alone
// would list every message.
const fewest = 5

// patterns are the texts in backticks in the first cells of the page's tables
// of messages, those under a heading with the word "Messages". "…" stands for
// a value.
func patterns(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("``? ?(.+?) ?``?(?:,|;| |$)")
	var found []string
	in := false
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "## ") {
			in = strings.Contains(line, "Messages")
		}
		cells := strings.Split(line, " | ")
		if !in || !strings.HasPrefix(line, "| `") || len(cells) < 3 {
			continue
		}
		for i, cell := range cells[1:3] {
			if strings.Trim(cell, " |\n") == "" {
				t.Errorf("%s: %s: no %s", page, cells[0], []string{"cause", "remedy"}[i])
			}
		}
		for _, m := range quoted.FindAllStringSubmatch(strings.TrimPrefix(cells[0], "| "), -1) {
			found = append(found, m[1])
		}
	}
	return found
}

// lists says whether a message begins as a pattern says.
func lists(pattern, message string) bool {
	enough := len(strings.Trim(strings.ReplaceAll(pattern, "…", ""), ": ")) >= fewest
	return pattern == message || enough && strings.HasPrefix(message, pattern)
}

func TestEveryMessageHasACauseAndARemedy(t *testing.T) {
	all, err := All("../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 150 {
		t.Fatalf("only %d messages found", len(all))
	}
	used := map[string]bool{}
	list := patterns(t)
	for _, m := range all {
		listed := false
		for _, p := range list {
			if lists(p, m.Text) {
				used[p], listed = true, true
			}
		}
		if !listed {
			t.Errorf("%s: %q: want a row in %s", m.Where, m.Text, page)
		}
	}
	for _, p := range list {
		if !used[p] {
			t.Errorf("%s: %q: no message begins so", page, p)
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, message string
		want             bool
	}{
		{"grant: not a grant file", "grant: not a grant file", true},
		{"vgpu: place: job …", "vgpu: place: job …: …", true},
		{"vgpu: place: job …", "vgpu: request: job …: …", false},
		{"want … cards", "want … cards for the share …", true},
		{"want … cards", "want a number of cards", false},
		{"want", "want a number of cards", false},
		{"…: …", "vgpu: place: job …: …", false},
		{"…: open: …", "…: open: …", true},
	} {
		if got := lists(c.pattern, c.message); got != c.want {
			t.Errorf("%q lists %q: %t, want %t", c.pattern, c.message, got, c.want)
		}
	}
}

func TestFormatsBecomeTexts(t *testing.T) {
	for format, want := range map[string]string{
		`job %d: "%s": %v`:          "job …: …: …",
		`%q: want %[1]s, 100%%`:     "…: want …, 100%",
		`mode %04o of %zu, 10% off`: "mode … of …, 10% off",
	} {
		if got := plain(format); got != want {
			t.Errorf("%q: got %q, want %q", format, got, want)
		}
	}
}
