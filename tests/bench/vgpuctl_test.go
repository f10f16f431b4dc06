// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
)

// What an administrator calls: vgpuctl bench, here on a simulated card.
func TestVgpuctlBench(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("gresd runs as root only")
	}
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	cmd := exec.Command(filepath.Join(build, "bin/vgpuctl"), "--json", "bench", "--sim", "--out", out, "--budget", "40s",
		"--", "--system", "ours", "--scenario", "contended", "--case", "^30/70, 1 ms$", "--seconds", "1500ms")
	cmd.Env = append(os.Environ(), "VGPU_BENCH_FOLDER="+build)
	var text, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v (run make first): %s", err, errs.String())
	}
	var records []report.Record
	if err := json.Unmarshal(text.Bytes(), &records); err != nil {
		t.Fatalf("%v: %s", err, text.String())
	}
	found := false
	for _, r := range records {
		if r.Scenario == "contended" && r.System == "ours" && len(r.Tenants) == 2 {
			found = true
			near(t, "part of 30", r.Tenants[0].Part, 30, 7)
		}
	}
	if !found {
		t.Errorf("no result of the case in %s", text.String())
	}
	for _, name := range []string{"results.jsonl", "results.md", "contended-30-70-1-ms-ours.svg"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
	if !bytes.Contains(errs.Bytes(), []byte("== contended")) {
		t.Errorf("no table beside the JSON: %s", errs.String())
	}
}
