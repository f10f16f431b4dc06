// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"math"
	"strings"
	"testing"
)

func record(shares []int, solo ...float64) Record {
	r := Record{Scenario: "contended", Case: "c", System: "s"}
	for i, v := range solo {
		r.Tenants = append(r.Tenants, Tenant{Shape: "1ms", Share: shares[i], OfSolo: v})
	}
	r.Parts()
	return r
}

func TestShareError(t *testing.T) {
	for _, c := range []struct {
		name   string
		shares []int
		solo   []float64
		want   float64
	}{
		{"exact, with some work lost to switches", []int{30, 70}, []float64{28.5, 66.5}, 0},
		{"equal halves for 30 / 70", []int{30, 70}, []float64{45, 45}, 20},
		{"idle rest: work counts, not proportion", []int{30, 50}, []float64{30, 47}, 3},
		{"one alone, over its limit", []int{25}, []float64{100}, 75},
		{"nobody worked", []int{50, 50}, []float64{0, 0}, 50},
	} {
		if got := record(c.shares, c.solo...).ShareError(); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestEveryFormatShowsEveryRecord(t *testing.T) {
	good := record([]int{30, 70}, 28.5, 66.5)
	good.Judged = true
	good.Numbers = map[string]float64{"p99_ms": 4.25}
	many := record([]int{12, 12, 12, 12, 12}, 9.5, 10.25, 11, 100, 12)
	unlike := record([]int{12, 12, 12, 12, 12}, 9, 10, 11, 100, 12)
	unlike.Tenants[3].Shape = "burst"
	list := []Record{
		{Scenario: About, Case: "some card"},
		good, many, unlike,
		{Scenario: "soft", Case: "d", System: "s", Error: "it\nbroke | here"},
		{Scenario: "soft", Case: "e", System: "s", Skipped: true},
	}
	var lines, table, markdown bytes.Buffer
	for _, r := range list {
		if err := r.Write(&lines); err != nil {
			t.Fatal(err)
		}
	}
	back, err := Read(&lines)
	if err != nil || len(back) != 6 || back[1].Numbers["p99_ms"] != 4.25 || back[1].Tenants[1].OfSolo != 66.5 {
		t.Errorf("Read: got %+v, %v", back, err)
	}
	if err := Table(&table, list); err != nil {
		t.Fatal(err)
	}
	if err := Markdown(&markdown, list); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"some card\n", "30 / 70", "28.5 / 66.5", "5 × 9.5…100.0", "9.0 / 10.0 / 11.0 / 100.0 / 12.0", "95.0", "0.0", "p99_ms=4.25", "ERROR: it broke", "no time left"} {
		if !strings.Contains(table.String(), want) || !strings.Contains(markdown.String(), want) {
			t.Errorf("%q is missing in\n%s\n%s", want, table.String(), markdown.String())
		}
	}
	if !strings.Contains(markdown.String(), `broke \| here`) {
		t.Errorf("a bar in a text breaks the table:\n%s", markdown.String())
	}
	if _, err := Read(strings.NewReader("{}\nnonsense\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("Read of nonsense: got %v, want line 2 named", err)
	}
}
