// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
)

// What an administrator calls: vgpuctl bench, here on a simulated card.
func TestVgpuctlBench(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("gresd runs as root only")
	}
	out := t.TempDir()
	records, text, err := vgpuctlBench(t, out, "--budget", "40s", "--system", "ours", "--scenario", "contended", "--case", "^30/70, 1 ms$", "--seconds", "1500ms")
	if err != nil {
		t.Fatalf("%v (run make first): %s", err, text)
	}
	found := false
	for _, r := range records {
		if r.Scenario == "contended" && r.System == "ours" && len(r.Tenants) == 2 {
			found = true
			nearOf(t, "part of 30", r.Tenants[0].Part, []float64{30, 70}, 7, r.Tenants)
		}
	}
	if !found {
		t.Errorf("no result of the case in %+v", records)
	}
	for _, name := range []string{"results.jsonl", "results.md", "contended-30-70-1-ms-ours.svg"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
	if !strings.Contains(text, "== contended") {
		t.Errorf("no table: %s", text)
	}
}

// From the command line to the verdict. What is measured here depends on who else uses this
// machine: the exit status follows from it, whatever it is.
func TestVgpuctlBenchCompany(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("gresd runs as root only")
	}
	out := t.TempDir()
	records, errs, err := vgpuctlBench(t, out, "--scenario", "company", "--case", "^I/T4 30/70( soft)?$", "--seconds", "2s")
	systems := map[string]int{}
	for _, r := range records {
		if r.Scenario != "company" || r.Error != "" {
			continue
		}
		systems[r.System]++
		for _, x := range r.Tenants {
			k := x.Kept
			if k.Entitled <= 0 || k.Solo <= 0 || len(k.Seconds) != 3 || (r.System == "ours" && k.Native <= 0) {
				t.Errorf("%s, %s: %+v", r.Case, r.System, k)
			}
		}
	}
	if systems["native"] != 1 || systems["ours"] != 2 {
		t.Errorf("got %v, want the pair natively once, and hard and soft: %s", systems, errs)
	}
	if bad := report.Verdict(records); (bad == nil) != (err == nil) {
		t.Errorf("the results say %v, the exit status %v: %s", bad, err, errs)
	} else if bad != nil && !strings.Contains(errs, "kept less than they should") {
		t.Errorf("no reason for the exit status: %s", errs)
	}
	for _, name := range []string{"results.md", "company-ours.svg"} {
		if text, err := os.ReadFile(filepath.Join(out, name)); err != nil || !bytes.Contains(text, []byte("I/T4 30/70")) {
			t.Errorf("%s: %v: %.300s", name, err, text)
		}
	}
}

// vgpuctlBench runs vgpuctl bench --sim with more flags. It returns the results and the output.
func vgpuctlBench(t *testing.T, out string, flags ...string) ([]report.Record, string, error) {
	t.Helper()
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(build, "bin/vgpuctl"), append([]string{"bench", "--sim", "--python", "", "--out", out}, flags...)...)
	cmd.Env = append(os.Environ(), "VGPU_BENCH_FOLDER="+build)
	text, ran := cmd.CombinedOutput()
	records, err := report.Load(out)
	if err != nil {
		t.Fatalf("%v, %v (run make first): %s", ran, err, text)
	}
	return records, string(text), ran
}
