// SPDX-License-Identifier: Apache-2.0

package srun

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/man"
)

// The page's parts are those of the usage text, by its paragraphs.
func TestManPage(t *testing.T) {
	paragraphs := strings.Split(strings.TrimSpace(usage), "\n\n")
	if len(paragraphs) != 4 {
		t.Fatalf("usage has %d paragraphs: want synopsis, what it does, options, examples", len(paragraphs))
	}
	option := regexp.MustCompile(`^  (--[a-z-]+)(=\S+)?\s+(.+)$`)
	var options strings.Builder
	for line := range strings.SplitSeq(paragraphs[2], "\n") {
		m := option.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("usage: %q is not an option and what it does", line)
		}
		fmt.Fprintf(&options, "**%s**%s\n:   %s%s.\n\n", m[1], m[2], strings.ToUpper(m[3][:1]), m[3][1:])
	}
	_, example, ok := strings.Cut(paragraphs[3], "Example: ")
	if !ok {
		t.Fatal("usage has no example")
	}
	man.Check(t, "vgpu-srun.1", map[string]string{
		"about": paragraphs[1] + "\n", "options": options.String(), "examples": "    " + example + "\n",
	})
}
