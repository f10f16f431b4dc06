// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// company is the scenario whose tenants are told one by one.
const company = "company"

// noise is by how much two runs of the same thing may differ.
const noise = 0.03

// Kept is what a tenant has in company. Rates are steps or units a second.
type Kept struct {
	Load     string  `json:"load"`
	Mode     string  `json:"mode"`
	Solo     float64 `json:"solo,omitempty"`     // alone, without a library
	Entitled float64 `json:"entitled,omitempty"` // alone, under its own hard limit: a mean
	// Varies is the part of Entitled by which single measurements were off: so much is unsure.
	Varies float64 `json:"varies,omitempty"`
	Rate   float64 `json:"rate"` // in company
	// Kept, First and Worst are parts of Entitled: over the whole time, in the first
	// second, in the worst second behind it.
	Kept  float64 `json:"kept"`
	First float64 `json:"first_s"`
	Worst float64 `json:"worst_s"`
	// Native is what the same load has natively in the same company, a part of Entitled
	// too; 0: not measured.
	Native float64 `json:"native,omitempty"`
	// Mark is the least Kept that is accepted; 0: none is asked for.
	Mark float64 `json:"mark,omitempty"`
	// Below says what Kept is less than, "": not too little.
	Below string `json:"below,omitempty"`
	// Seconds and Windows are rates in windows of 1 s and of 100 ms.
	Seconds []float64 `json:"seconds,omitempty"`
	Windows []float64 `json:"windows,omitempty"`
}

// Judge sets what follows from the rates, Native and Mark. A tenant that natively has more than
// it is entitled to, because its neighbours then have less, is not held against that.
func (k *Kept) Judge() {
	if k.Entitled <= 0 {
		return
	}
	k.Kept = k.Rate / k.Entitled
	if len(k.Seconds) > 0 {
		k.First = k.Seconds[0] / k.Entitled
	}
	if len(k.Seconds) > 1 {
		k.Worst = slices.Min(k.Seconds[1:]) / k.Entitled
	}
	k.Below = ""
	switch {
	case k.Mark == 0:
	case k.Kept < k.Mark:
		k.Below = fmt.Sprintf("want %.2f", k.Mark)
	case k.Native <= 1 && k.Kept < (1-noise)*k.Native:
		k.Below = fmt.Sprintf("native %.2f", k.Native)
	}
}

// String is for one line while the benchmark runs.
func (k Kept) String() string {
	text := fmt.Sprintf("%s kept %.2f", k.Load, k.Kept)
	if k.Below != "" {
		text += " (" + k.Below + ")"
	}
	return text
}

// judgedKept says whether any tenant has a mark.
func (r Record) judgedKept() bool {
	return slices.ContainsFunc(r.Tenants, func(t Tenant) bool { return t.Kept != nil && t.Kept.Mark > 0 })
}

// Verdict is an error that names the tenants that kept less than they should, and the
// cases that came to nothing where something was asked for; nil: none.
func Verdict(list []Record) error {
	var below, failed []string
	judged := 0
	for _, r := range list {
		if r.Scenario != company {
			continue
		}
		if r.Error != "" {
			failed = append(failed, r.Case+", "+r.System)
		}
		for _, t := range r.Tenants {
			if t.Kept == nil || t.Kept.Mark == 0 {
				continue
			}
			judged++
			if k := t.Kept; k.Below != "" {
				below = append(below, fmt.Sprintf("%s, %s: %s of %d kept %.2f, %s", r.Case, r.System, k.Load, t.Share, k.Kept, k.Below))
			}
		}
	}
	var errs []error
	if len(below) > 0 {
		errs = append(errs, fmt.Errorf("company: %d of %d tenants kept less than they should:\n  %s", len(below), judged, strings.Join(below, "\n  ")))
	}
	if len(failed) > 0 {
		errs = append(errs, fmt.Errorf("company: no result, see above:\n  %s", strings.Join(failed, "\n  ")))
	}
	return errors.Join(errs...)
}

var keptColumns = []string{"case", "system", "load", "asked", "mode", "solo /s", "entitled /s", "± %", "rate /s", "kept", "first s", "worst s", "native", "mark", "below"}

// keptRows has a row for each tenant.
func (r Record) keptRows() [][]string {
	if len(r.Tenants) == 0 {
		row := make([]string, len(keptColumns))
		copy(row, []string{r.Case, r.System})
		row[len(row)-1] = r.row()[len(columns)-1]
		return [][]string{row}
	}
	text := func(format string, v float64, measured bool) string {
		if !measured {
			return "–"
		}
		return fmt.Sprintf(format, v)
	}
	part := func(v float64, measured bool) string { return text("%.2f", v, measured) }
	percent := func(v float64, measured bool) string { return text("%.0f", 100*v, measured) }
	var rows [][]string
	for _, t := range r.Tenants {
		k := t.Kept
		if k == nil {
			continue
		}
		entitled := k.Entitled > 0
		rows = append(rows, []string{
			r.Case, r.System, k.Load, fmt.Sprint(t.Share), k.Mode,
			part(k.Solo, k.Solo > 0), part(k.Entitled, entitled), percent(k.Varies, entitled), part(k.Rate, true),
			part(k.Kept, entitled), part(k.First, entitled && len(k.Seconds) > 0), part(k.Worst, entitled && len(k.Seconds) > 1),
			part(k.Native, k.Native > 0), part(k.Mark, k.Mark > 0), k.Below,
		})
	}
	return rows
}
