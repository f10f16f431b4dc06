// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
)

func TestEveryPlotIsDrawn(t *testing.T) {
	dir := t.TempDir()
	results := filepath.Join(dir, "results.jsonl")
	f, err := os.Create(results)
	if err != nil {
		t.Fatal(err)
	}
	tenants := []report.Tenant{{Share: 30, OfSolo: 29, Part: 30, Windows: []float64{28, 30}}, {Share: 70, OfSolo: 66, Part: 70, Windows: []float64{65, 67}}}
	for _, r := range []report.Record{
		{Scenario: "contended", Case: "30/70, 1 ms", System: "a", Judged: true, Tenants: tenants},
		{Scenario: "contended", Case: "30/70, 1 ms", System: "b", Judged: true, Tenants: tenants},
		{Scenario: "contended", Case: "only of a", System: "a", Judged: true, Tenants: tenants},
		{Scenario: "alone", Case: "10, 1ms", System: "a", Judged: true, Tenants: tenants[:1]},
		{Scenario: "latency", Case: "burst 30 beside 70, 1 ms", System: "a", LatencyMS: []float64{3, 2, 5}},
		{Scenario: "latency", Case: "burst 30 beside 70, 20 ms", System: "a", Error: "broke"},
		{Scenario: "torch", Case: "training 30/70", System: "a", Tenants: []report.Tenant{{Share: 30, StepsMS: []float64{40, 44}}, {Share: 70, StepsMS: []float64{18, 17}}}},
	} {
		if err := r.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	if err := drawAll(results, out); err != nil {
		t.Fatal(err)
	}
	want := []string{"error-alone.svg", "error-contended.svg", "latency-beside-1ms.svg", "steps.svg", "time-30-70.svg"}
	var got []string
	files, _ := os.ReadDir(out) // an empty list fails below
	for _, f := range files {
		got = append(got, f.Name())
		text, err := os.ReadFile(filepath.Join(out, f.Name()))
		if err != nil || !strings.Contains(string(text), "<svg") {
			t.Errorf("%s: no drawing: %v", f.Name(), err)
		}
		if strings.Contains(string(text), "only of a") {
			t.Errorf("%s: shows a case that one system has no result of", f.Name())
		}
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got %v, want %v", got, want)
	}
}
