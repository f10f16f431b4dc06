// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPlotsAreOfRecordsWithWindows(t *testing.T) {
	dir := t.TempDir()
	paths, err := Plots(dir, []Record{
		{Scenario: "contended", Case: "30/70, 1 ms", System: "ours", Tenants: []Tenant{
			{Share: 30, OfSolo: 29.5, Windows: []float64{20, 30, 40}}, {Share: 70, OfSolo: 68.5, Windows: []float64{80, 70, 160}},
		}},
		{Scenario: "contended", Case: "broken <&", System: "ours", Error: "no"},
		{Scenario: "cost", Case: "launch", System: "ours", Numbers: map[string]float64{"x_ns": 1}},
	})
	if err != nil || len(paths) != 1 || paths[0] != filepath.Join(dir, "contended-30-70-1-ms-ours.svg") {
		t.Fatalf("got %v, %v", paths, err)
	}
	text, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	dec := xml.NewDecoder(strings.NewReader(string(text)))
	for err == nil {
		_, err = dec.Token()
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("not XML: %v", err)
	}
	// 0 % is at 276, 100 % at 36, above which nothing is drawn.
	for _, want := range []string{"140.0,228.0 320.0,204.0 500.0,180.0", "140.0,84.0 320.0,108.0 500.0,36.0", "30% asked, 29.5%", "0.3 s", "30/70, 1 ms, ours"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
