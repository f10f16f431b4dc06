// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"
)

func TestCompareAllowsWhatARunMayDiffer(t *testing.T) {
	share := func(part float64) Record {
		return Record{Scenario: "contended", Case: "30/70", System: "ours", Judged: true, Tenants: []Tenant{
			{Share: 30, Part: part, OfSolo: part}, {Share: 70, Part: 100 - part, OfSolo: 100 - part},
		}}
	}
	kept := func(v float64) Record { return ofCompany("ours", Kept{Load: "I", Entitled: 10, Rate: v * 10, Kept: v}) }
	number := func(name string, v float64) Record {
		return Record{Scenario: "s", Case: "c", System: "ours", Numbers: map[string]float64{name: v}}
	}
	strict := number("p50_0_ms", 10)
	strict.Tolerance = 1
	for _, c := range []struct {
		name  string
		a, b  Record
		worse bool
	}{
		{"a share within a point", share(30), share(30.9), false},
		{"a share that is missed", share(30), share(31.2), true},
		{"a share that is met again", share(35), share(30), false},
		{"kept within the tolerance", kept(0.9), kept(0.86), false},
		{"kept less", kept(0.9), kept(0.84), true},
		{"a slower median", number("p50_0_ms", 10), number("p50_0_ms", 11.1), true},
		{"a median within a tenth", number("p50_0_ms", 10), number("p50_0_ms", 10.9), false},
		{"a median beyond its row's tolerance", strict, number("p50_0_ms", 10.2), true},
		{"a faster median", number("p50_0_ms", 10), number("p50_0_ms", 2), false},
		{"one hang", number("hangs", 0), number("hangs", 1), true},
		{"less of native", number("whole_percent", 99.9), number("whole_percent", 98.5), true},
	} {
		changes, missing := Compare([]Record{c.a}, []Record{c.b})
		if len(changes) == 0 || len(missing) > 0 {
			t.Errorf("%s: %d figures, missing %v", c.name, len(changes), missing)
		}
		var text strings.Builder
		err := Changes(&text, changes, missing)
		if (err != nil) != c.worse || strings.Contains(text.String(), "WORSE") != c.worse {
			t.Errorf("%s: got %v, want worse %v\n%s", c.name, err, c.worse, text.String())
		}
	}
}

func TestCompareNamesWhatIsMissing(t *testing.T) {
	a := []Record{{Scenario: About, Case: "x"}, {Scenario: "s", Case: "c", System: "ours", Numbers: map[string]float64{"p50_0_ms": 1, "other": 2}}}
	changes, missing := Compare(a, []Record{{Scenario: "s", Case: "c", System: "ours", Error: "no card"}})
	if len(changes) != 0 || len(missing) != 1 || missing[0] != "s, c, ours" {
		t.Errorf("got %v, %v", changes, missing)
	}
	if err := Changes(&strings.Builder{}, changes, missing); err == nil {
		t.Error("nothing was compared: want an error")
	}
	if changes, _ = Compare(a, a); len(changes) != 1 || changes[0].Figure != "p50_0_ms" {
		t.Errorf("got %v: want the one figure that has a rule", changes)
	}
}
