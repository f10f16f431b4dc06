// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/man"
)

// The page says of each key what etc/vgpu.toml says of it; that this file has
// every key, with its default, is another test's business.
func TestManPage(t *testing.T) {
	shipped, err := os.ReadFile("../../etc/vgpu.toml")
	if err != nil {
		t.Fatal(err)
	}
	page := manKeys(string(shipped))
	for _, key := range keys() {
		_, name := split(key)
		if !strings.Contains(page, "**"+name+"**") && !strings.Contains(page, "["+key+"]") {
			t.Errorf("vgpu.toml(5) lacks %s", key)
		}
	}
	man.Check(t, "vgpu.toml.5", map[string]string{"keys": page})
}

// manKeys turns the file into the page's Markdown. Comments over a table or a
// key belong to it; an empty line ends what they belong to.
func manKeys(file string) string {
	var out strings.Builder
	var comment []string
	for line := range strings.SplitSeq(file, "\n") {
		text, isComment := strings.CutPrefix(line, "#")
		switch {
		case isComment:
			comment = append(comment, strings.TrimSpace(text))
		case line == "":
			comment = nil
		case strings.HasPrefix(line, "["):
			table, _, _ := strings.Cut(line, "#")
			fmt.Fprintf(&out, "## %s\n\n%s\n\n", strings.TrimSpace(table), strings.Join(comment, "\n"))
			comment = nil
		default:
			key, rest, _ := strings.Cut(line, " = ")
			value, about, _ := strings.Cut(rest, " #")
			comment = append(comment, strings.TrimSpace(about))
			fmt.Fprintf(&out, "**%s** = %s\n", key, strings.TrimSpace(value))
			prefix := ":   "
			for _, c := range comment {
				if c != "" {
					out.WriteString(prefix + c + "\n")
					prefix = "    "
				}
			}
			if prefix == ":   " {
				out.WriteString(":   The format of this file.\n")
			}
			out.WriteString("\n")
			comment = nil
		}
	}
	return out.String()
}
