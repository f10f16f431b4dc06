// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// drawnUnit is the unit that the values of a query have, in Grafana's words.
func drawnUnit(query string) string {
	counts := regexp.MustCompile(`^(count|histogram_quantile|sum by \(\w+\) \((rate|increase)|sum\(increase)`).FindString(query)
	switch {
	case strings.HasPrefix(counts, "histogram") && strings.Contains(query, "_seconds_bucket"):
		return "s"
	case counts != "":
		return "none"
	case strings.Contains(query, " / "), strings.Contains(query, "_ratio"), strings.Contains(query, "rate(vgpu_job_gpu_seconds_total"):
		return "percentunit"
	case strings.Contains(query, "_bytes"):
		return "bytes"
	}
	return "none"
}

// A panel that Grafana itself can draw, in the unit of its values, with names for
// its lines that the series have; no variable that nothing asks for.
func TestPanelsSayWhatTheyShow(t *testing.T) {
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Type, Title string
			FieldConfig struct{ Defaults struct{ Unit string } }
			Targets     []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct {
				Name, Type string
				Query      json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	families, err := newExample().registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string][]string{}
	for _, f := range families {
		names := []string{"instance", "job"} // Prometheus' own
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				names = append(names, l.GetName())
			}
		}
		labels[f.GetName()] = names
	}
	metric := regexp.MustCompile(`\bvgpu_[a-z_]+`)
	of := func(query string) []string {
		if m := regexp.MustCompile(`\bby \(([^)]*)\)`).FindStringSubmatch(query); m != nil {
			return strings.Split(m[1], ", ")
		}
		return labels[regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(metric.FindString(query), "")]
	}

	drawn, units := 0, map[string]bool{}
	for _, p := range d.Panels {
		if !slices.Contains([]string{"row", "stat", "timeseries", "table"}, p.Type) {
			t.Errorf("panel %q is a %q: want one that every Grafana has", p.Title, p.Type)
		}
		for _, target := range p.Targets {
			drawn++
			if p.Type != "table" { // its columns have units of their own
				want := drawnUnit(target.Expr)
				units[want] = true
				if p.FieldConfig.Defaults.Unit != want {
					t.Errorf("panel %q has the unit %q: %s has %s", p.Title, p.FieldConfig.Defaults.Unit, target.Expr, want)
				}
			}
			for _, m := range regexp.MustCompile(`{{(\w+)}}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(of(target.Expr), m[1]) {
					t.Errorf("panel %q: %s gives no label %s", p.Title, target.Expr, m[1])
				}
			}
		}
	}
	if drawn < 15 || len(units) < 4 {
		t.Errorf("%d queries of the units %v: are they found?", drawn, units)
	}
	for _, v := range d.Templating.List {
		if strings.Count(string(text), "$"+v.Name) == 0 && strings.Count(string(text), "${"+v.Name+"}") == 0 {
			t.Errorf("nothing asks for the variable %s", v.Name)
		}
		if m := regexp.MustCompile(`label_values\((\w+), (\w+)\)`).FindStringSubmatch(string(v.Query)); v.Type == "query" && (m == nil || !slices.Contains(labels[m[1]], m[2])) {
			t.Errorf("variable %s: %s: there is no such label", v.Name, v.Query)
		}
	}
}
