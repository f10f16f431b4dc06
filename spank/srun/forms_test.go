// SPDX-License-Identifier: Apache-2.0

package srun

import (
	"os"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// The same table is read by the tests of the SPANK plugin and of job_submit.lua.
func TestOptionFormsAreTheSameEverywhere(t *testing.T) {
	table, err := os.ReadFile("../plugin/testdata/options.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(string(table)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(words) != 3 {
			t.Fatalf("%q: want three columns", line)
		}
		value := strings.ReplaceAll(words[1], "_", " ")
		_, err := request.Parse(request.Options{words[0]: value})
		if (err == nil) != (words[2] == "ok") {
			t.Errorf("%s %q: got %v, want %s", words[0], value, err, words[2])
		}
		lines++
	}
	if lines < 80 {
		t.Errorf("only %d lines", lines)
	}
}
