// SPDX-License-Identifier: Apache-2.0

package messages

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/doctor"
)

var update = flag.Bool("update", false, "write the table of doctor's findings anew")

const findingsHead = "| line | finding | do |\n|---|---|---|\n"

// Doctor and the page have the same findings, with the same remedies.
func TestDoctorsFindingsAreListed(t *testing.T) {
	found := doctor.Faults()
	if len(found) < 50 {
		t.Fatalf("only %d findings of doctor", len(found))
	}
	var want strings.Builder
	want.WriteString(findingsHead)
	for _, f := range found {
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", f.Check, cell(f.Message), cell(f.Remedy))
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, there := strings.Cut(string(text), findingsHead)
	if !there {
		t.Fatalf("%s: want a table %q", page, findingsHead)
	}
	end := strings.Index(rest, "\n\n") + 1
	if findingsHead+rest[:end] == want.String() {
		return
	}
	if !*update {
		t.Fatalf("%s has other findings than doctor; go test ./tests/messages -update writes:\n%s", page, want.String())
	}
	if err := os.WriteFile(page, []byte(before+want.String()+rest[end:]), 0o644); err != nil {
		t.Fatal(err)
	}
}

// cell is a format in a table, with "…" for each value.
func cell(format string) string {
	text := plain(format)
	if strings.Trim(text, "…: ") == "" {
		return "a message of the system, of Slurm or of gresd"
	}
	return strings.ReplaceAll(text, "|", `\|`)
}
