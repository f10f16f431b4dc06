// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// rule says which direction of a figure is worse, and how much worse it may be: by a part of
// the older figure, or by an amount, whichever is more.
type rule struct {
	figure *regexp.Regexp
	lower  bool // lower is better
	part   float64
	amount float64
}

// rules of figures that can be judged; the first that matches counts. Others are not compared.
var rules = []rule{
	{regexp.MustCompile(`^kept`), false, 0, 0.05},
	{regexp.MustCompile(`^share error`), true, 0, 1},
	{regexp.MustCompile(`^sum`), false, 0.03, 0},
	{regexp.MustCompile(`^(errors|hangs|jobs_left|left|memory_left_mib|never_returned|above_limit|real_above_limit)$`), true, 0, 0},
	{regexp.MustCompile(`^routes_held$`), false, 0, 0},
	{regexp.MustCompile(`^jain_`), false, 0, 0.005},
	{regexp.MustCompile(`^(error_mean|error_worst)$`), true, 0, 0.5},
	{regexp.MustCompile(`^(whole|soft|card|returned)_percent$`), false, 0, 1},
	{regexp.MustCompile(`^cpu_percent$`), true, 0.25, 0.1},
	{regexp.MustCompile(`^wakeups_per_s$`), true, 0.25, 10},
	{regexp.MustCompile(`^launch_pairs_added_ns$`), true, 0.25, 15},
	{regexp.MustCompile(`^p50_\d_ms$`), true, 0.1, 0.1},
	{regexp.MustCompile(`^p99_\d_ms$`), true, 0.2, 0.2},
	{regexp.MustCompile(`^(stall_max|return_ms_max|settle)`), true, 0.5, 20},
}

// Change is one figure of a case in two runs.
type Change struct {
	Scenario, Case, System, Figure string
	A, B                           float64
	Allowed                        float64 // how much worse B may be
	Worse                          bool    // by more than that
}

// figures of a record that rules may judge, by name.
func (r Record) figures() map[string]float64 {
	found := maps.Clone(r.Numbers)
	if found == nil {
		found = map[string]float64{}
	}
	kept := false
	for i, t := range r.Tenants {
		if t.Kept != nil && (t.Kept.Entitled > 0 || t.Kept.Kept > 0) {
			found[fmt.Sprintf("kept by %d: %s of %d", i, t.Kept.Load, t.Share)] = t.Kept.Kept
			kept = true
		}
	}
	if r.Judged {
		found["share error"] = r.ShareError()
	}
	if len(r.Tenants) > 1 && !kept {
		found["sum"] = r.Sum()
	}
	return found
}

// Compare returns what changed from a to b, for the cases that both have, and the names of
// those that b lacks. A row's Tolerance, in percent, replaces the tolerance of its figures.
func Compare(a, b []Record) (changes []Change, missing []string) {
	for i, old := range a {
		if old.Scenario == About || old.Error != "" || old.Skipped || Find(a, old.Scenario, old.Case, old.System) != &a[i] {
			continue
		}
		now := Find(b, old.Scenario, old.Case, old.System)
		if now == nil || now.Error != "" || now.Skipped {
			missing = append(missing, strings.Join([]string{old.Scenario, old.Case, old.System}, ", "))
			continue
		}
		before, after := old.figures(), now.figures()
		for _, name := range slices.Sorted(maps.Keys(before)) {
			at := slices.IndexFunc(rules, func(r rule) bool { return r.figure.MatchString(name) })
			value, ok := after[name]
			if at < 0 || !ok {
				continue
			}
			c := Change{Scenario: old.Scenario, Case: old.Case, System: old.System, Figure: name, A: before[name], B: value}
			c.Allowed = max(rules[at].part*math.Abs(c.A), rules[at].amount)
			if old.Tolerance > 0 {
				c.Allowed = old.Tolerance / 100 * math.Abs(c.A)
			}
			loss := c.A - c.B
			if rules[at].lower {
				loss = -loss
			}
			c.Worse = loss > c.Allowed+1e-9
			changes = append(changes, c)
		}
	}
	return changes, missing
}

// Changes prints a row for each figure, and is an error that counts those that are worse.
func Changes(w io.Writer, changes []Change, missing []string) error {
	tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tab, "scenario\tcase\tsystem\tfigure\tA\tB\tallowed\t")
	worse := 0
	for _, c := range changes {
		verdict := ""
		if c.Worse {
			verdict = "WORSE"
			worse++
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%.4g\t%.4g\t%.3g\t%s\n", c.Scenario, c.Case, c.System, c.Figure, c.A, c.B, c.Allowed, verdict)
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	for _, name := range missing {
		if _, err := fmt.Fprintf(w, "not in B: %s\n", name); err != nil {
			return err
		}
	}
	switch {
	case len(changes) == 0:
		return fmt.Errorf("%s: nothing to compare", cmp.Or(strings.Join(missing, "; "), "A"))
	case worse > 0:
		return fmt.Errorf("%d of %d figures are worse than allowed", worse, len(changes))
	}
	return nil
}
