// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func TestWhatIsKeptIsJudged(t *testing.T) {
	for _, c := range []struct {
		name               string
		rate, native, mark float64
		below              string
		seconds            []float64
		kept, first, worst float64
		entitled           float64
	}{
		{name: "all of it", rate: 50, mark: 0.95, entitled: 50, seconds: []float64{40, 60, 45, 55}, kept: 1, first: 0.8, worst: 0.9},
		{name: "at its mark", rate: 42.5, mark: 0.85, entitled: 50, kept: 0.85},
		{name: "less than its mark", rate: 42, mark: 0.85, entitled: 50, kept: 0.84, below: "want 0.85"},
		{name: "less than native", rate: 45, native: 0.95, mark: 0.85, entitled: 50, kept: 0.9, below: "native 0.95"},
		{name: "within noise of native", rate: 46.5, native: 0.95, mark: 0.85, entitled: 50, kept: 0.93},
		{name: "native takes from the other", rate: 49, native: 1.6, mark: 0.85, entitled: 50, kept: 0.98},
		{name: "less than all, where native has more", rate: 48, native: 1.6, mark: 0.85, entitled: 50, kept: 0.96},
		{name: "without a mark", rate: 5, native: 0.9, entitled: 50, kept: 0.1},
		{name: "nothing to compare with", rate: 5, mark: 0.9},
		{name: "no work", mark: 0.9, entitled: 50, seconds: []float64{0, 0}, below: "want 0.90"},
	} {
		k := Kept{Rate: c.rate, Native: c.native, Mark: c.mark, Entitled: c.entitled, Seconds: c.seconds}
		k.Judge()
		if math.Abs(k.Kept-c.kept) > 1e-9 || math.Abs(k.First-c.first) > 1e-9 || math.Abs(k.Worst-c.worst) > 1e-9 || k.Below != c.below {
			t.Errorf("%s: got %+v, want %+v", c.name, k, c)
		}
	}
}

func ofCompany(system string, kept ...Kept) Record {
	r := Record{Scenario: company, Case: "I/T4 30/70", System: system}
	for _, k := range kept {
		k.Judge()
		r.Tenants = append(r.Tenants, Tenant{Shape: "x", Share: 30, Kept: &k})
	}
	return r
}

func TestVerdictNamesThoseBelow(t *testing.T) {
	good := Kept{Load: "T4", Entitled: 10, Rate: 10, Mark: 0.85, Native: 0.5, Mode: "hard"}
	bad := Kept{Load: "I", Entitled: 10, Rate: 4, Mark: 0.7, Mode: "hard"}
	list := []Record{ofCompany("native", Kept{Load: "I", Rate: 1, Entitled: 10}), ofCompany("ours", bad, good)}
	err := Verdict(list)
	if err == nil || !strings.HasPrefix(err.Error(), "company: 1 of 2 tenants kept less than they should:\n  I/T4 30/70, ours: I of 30 kept 0.40, want 0.70") {
		t.Errorf("got %v", err)
	}
	if err := Verdict([]Record{ofCompany("ours", good), {Scenario: "soft", Error: "x"}, {Scenario: company, Skipped: true}}); err != nil {
		t.Errorf("got %v, want none", err)
	}
	if err := Verdict([]Record{{Scenario: company, Case: "c", System: "ours", Error: "x"}}); err == nil || !strings.Contains(err.Error(), "no result") {
		t.Errorf("a case that failed: got %v", err)
	}
}

func TestCompanyHasARowForEachTenant(t *testing.T) {
	list := []Record{
		ofCompany("ours", Kept{Load: "I", Entitled: 10, Varies: 0.12, Rate: 4, Mark: 0.7, Mode: "hard", Seconds: []float64{5, 3}}, Kept{Load: "T4", Mode: "soft", Rate: 1}),
		{Scenario: company, Case: "later", System: "ours", Skipped: true},
		{Scenario: company, Case: "broken", System: "ours", Error: "a\nb"},
		{Scenario: company, Case: "arrays", System: "ours", Skipped: true, Notes: []string{"left out"}},
	}
	var text strings.Builder
	if err := Markdown(&text, list); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| I/T4 30/70 | ours | I | 30 | hard | – | 10.00 | 12 | 4.00 | 0.40 | 0.50 | 0.30 | – | 0.70 | want 0.70 |\n",
		"| I/T4 30/70 | ours | T4 | 30 | soft | – | – | – | 1.00 | – | – | – | – | – |  |\n", "no time left |", "ERROR: a b |", "left out |",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	paths, err := Plots(t.TempDir(), list)
	if err != nil || len(paths) != 1 || !strings.HasSuffix(paths[0], "company-ours.svg") {
		t.Errorf("got %v, %v; want one chart", paths, err)
	}
	data, err := json.Marshal(list[0])
	if err != nil || !strings.Contains(string(data), `"seconds":[5,3]`) {
		t.Errorf("got %s, %v", data, err)
	}
}
