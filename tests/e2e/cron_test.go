// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// A share for a job that Slurm starts by the clock. A table with a mistake is refused when it is handed in; Slurm
// leaves out the words of job_submit.lua, and prints those of the plugin.
func TestScrontab(t *testing.T) {
	if _, err := exec.LookPath("scrontab"); err != nil {
		t.Skip("this Slurm comes without scrontab")
	}
	s := up(t, cluster.Options{Cards: oneCard.Cards, Slurm: "ScronParameters=enable\n"})
	// Slurm starts such a job with what the user's login shell sets.
	shell := s.edit("/etc/passwd", func(text string) string {
		return regexp.MustCompile("(?m)^("+alice+":.*:).*$").ReplaceAllString(text, "$1/bin/bash")
	})
	defer shell()
	table := s.Home(alice) + "/table"
	install := func(options string) cluster.Result {
		t.Helper()
		s.As(alice, "true") // makes the home
		s.must(os.WriteFile(table, []byte("#SCRON --output="+s.Home(alice)+"/%j.out "+options+"\n* * * * * "+cluster.LookScript+"\n"), 0o644))
		return s.As(alice, "scrontab", table)
	}
	for options, says := range map[string]string{
		"--gres=vgpu:150":                             "submission on lines 1-2",
		"--gres=vgpu:30 --exclusive":                  "submission on lines 1-2",
		"--gres=vgpu:30 --comment=vgpu(mem=nonsense)": "submission on lines 1-2",
		"--gres=vgpu:30 --vgpu-mem=nonsense":          `vgpu: --vgpu-mem: "nonsense": want a whole number`,
		"--gres=vgpu:30 --vgpu-mem=8G":                "want --comment=vgpu(mem=8G)",
	} {
		if r := install(options); r.Code == 0 || !strings.Contains(r.Out+r.Err, says) {
			t.Errorf("%s: %s", options, r)
		}
	}
	s.oneLine(s.As(alice, "sbatch", "--test-only", "--gres=vgpu:150", "--wrap=true"), `--gres=vgpu: "150"`) // has the words
	if r := install("--gres=vgpu:30 --comment=vgpu(mem=8G)"); r.Code != 0 {
		t.Fatal(r)
	}
	job, err := strconv.Atoi(s.As(alice, "squeue", "-h", "-o", "%i").Out)
	s.must(err)
	s.eventually(90*time.Second, "the clock has started the job", func() bool { return strings.Contains(s.Output(alice, job), "fill") })
	if got := look(t, s.Output(alice, job)); got.Total != 8*gib {
		t.Errorf("saw %d bytes, want 8 GiB", got.Total)
	}
	if r := s.As(alice, "scrontab", "-r"); r.Code != 0 {
		t.Error(r)
	}
}
