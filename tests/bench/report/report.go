// SPDX-License-Identifier: Apache-2.0

// Package report is what the benchmark tells: one [Record] for each case and
// system, as lines of JSON, as a table and as Markdown.
package report

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// About is the scenario of the record whose case names machine and program.
const About = "about"

// Record is the result of one case under one system.
type Record struct {
	Scenario string  `json:"scenario"`
	Case     string  `json:"case"`
	System   string  `json:"system"`
	Seconds  float64 `json:"seconds,omitempty"` // measured
	// Error says why there is no result, Skipped that there was no time for it.
	Error   string   `json:"error,omitempty"`
	Skipped bool     `json:"skipped,omitempty"`
	Tenants []Tenant `json:"tenants,omitempty"`
	// Judged says that all tenants were busy all the time and might not have more
	// than their shares, so that ShareError means something.
	Judged bool `json:"judged,omitempty"`
	// Numbers by name; the name ends with the unit.
	Numbers map[string]float64 `json:"numbers,omitempty"`
	// Notes are what explains the numbers.
	Notes []string `json:"notes,omitempty"`
	// Tolerance is by how many percent a figure may be worse in another run, 0: by as much
	// as runs differ. See [Compare].
	Tolerance float64 `json:"tolerance,omitempty"`
	// LatencyMS are single requests, for their distribution.
	LatencyMS []float64 `json:"latency_ms,omitempty"`
}

// Tenant is what one job asked for and got. Part and OfSolo are percent.
type Tenant struct {
	Shape  string  `json:"shape"`
	Share  int     `json:"share"`
	Part   float64 `json:"part"`    // of the work that all tenants did together
	OfSolo float64 `json:"of_solo"` // of what the same load does alone, without any limit
	Sigma  float64 `json:"sigma"`   // of the windows
	// Windows are OfSolo in windows of 100 ms.
	Windows []float64 `json:"windows,omitempty"`
	// StepsMS are single steps of a training, for their distribution.
	StepsMS []float64 `json:"steps_ms,omitempty"`
	// Late is the lateness of the tenant (package processor) on the simulated card.
	Late float64 `json:"late,omitempty"`
	// SoloLate is the lateness of the run of the load alone: OfSolo is too high by up to 1/(1-SoloLate).
	SoloLate float64 `json:"solo_late,omitempty"`
	// Kept is set in the scenario company.
	Kept *Kept `json:"kept,omitempty"`
}

// Sum is the work of all tenants, in percent of one alone.
func (r Record) Sum() float64 {
	var sum float64
	for _, t := range r.Tenants {
		sum += t.OfSolo
	}
	return sum
}

// Parts sets each tenant's part of the work of all.
func (r *Record) Parts() {
	sum := r.Sum()
	for i := range r.Tenants {
		if sum > 0 {
			r.Tenants[i].Part = 100 * r.Tenants[i].OfSolo / sum
		}
	}
}

// ShareError is the largest distance, in points, of a tenant's part of the work from
// its part of the shares; where the shares leave some of the card to nobody, of
// its work in percent of solo from its share.
func (r Record) ShareError() float64 {
	shares, worst := 0, 0.0
	for _, t := range r.Tenants {
		shares += t.Share
	}
	for _, t := range r.Tenants {
		got, want := t.Part, 100*float64(t.Share)/float64(max(1, shares))
		if shares < 100 {
			got, want = t.OfSolo, float64(t.Share)
		}
		worst = max(worst, math.Abs(got-want))
	}
	return worst
}

// Write writes one line of JSON.
func (r Record) Write(w io.Writer) error {
	return json.NewEncoder(w).Encode(r)
}

// Read reads lines of JSON.
func Read(r io.Reader) ([]Record, error) {
	var list []Record
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	for n := 1; lines.Scan(); n++ {
		var rec Record
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		list = append(list, rec)
	}
	return list, lines.Err()
}

// Results is the file of a folder of results.
const Results = "results.jsonl"

// Load reads a file of records, or that of a folder.
func Load(path string) ([]Record, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, Results)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return list, nil
}

// columns of a row.
var columns = []string{"case", "system", "asked", "part %", "of solo %", "sum", "error", "σ", "more"}

func (r Record) row() []string {
	row := []string{r.Case, r.System, "", "", "", "", "", "", ""}
	switch {
	case r.Error != "":
		row[8] = "ERROR: " + strings.Join(strings.Fields(r.Error), " ")
		return row
	case r.Skipped:
		row[8] = noTime(r)
		return row
	}
	if len(r.Tenants) > 0 {
		row[2] = r.join("%.0f", func(t Tenant) float64 { return float64(t.Share) })
		row[3] = r.join("%.1f", func(t Tenant) float64 { return t.Part })
		row[4] = r.join("%.1f", func(t Tenant) float64 { return t.OfSolo })
		row[5] = fmt.Sprintf("%.1f", r.Sum())
		row[7] = r.join("%.1f", func(t Tenant) float64 { return t.Sigma })
	}
	if r.Judged {
		row[6] = fmt.Sprintf("%.1f", r.ShareError())
	}
	var more []string
	for _, name := range slices.Sorted(maps.Keys(r.Numbers)) {
		more = append(more, fmt.Sprintf("%s=%.4g", name, r.Numbers[name]))
	}
	row[8] = strings.Join(more, " ")
	return row
}

func noTime(r Record) string {
	return cmp.Or(strings.Join(r.Notes, "; "), "no time left")
}

// join is a figure of all tenants; of many that are alike the least and the most.
func (r Record) join(format string, of func(Tenant) float64) string {
	first, alike := r.Tenants[0], len(r.Tenants) > 4
	var values []float64
	var texts []string
	for _, t := range r.Tenants {
		alike = alike && t.Share == first.Share && t.Shape == first.Shape
		values = append(values, of(t))
		texts = append(texts, fmt.Sprintf(format, of(t)))
	}
	if alike {
		return fmt.Sprintf("%d × "+format+"…"+format, len(values), slices.Min(values), slices.Max(values))
	}
	return strings.Join(texts, " / ")
}

// about are the texts of the records of [About], a line each.
func about(list []Record) string {
	var b strings.Builder
	for _, r := range list {
		if r.Scenario == About {
			fmt.Fprintln(&b, r.Case)
		}
	}
	return b.String()
}

// scenarios returns the other names in the order of the records.
func scenarios(list []Record) []string {
	var names []string
	for _, r := range list {
		if r.Scenario != About && !slices.Contains(names, r.Scenario) {
			names = append(names, r.Scenario)
		}
	}
	return names
}

// rows of one scenario and what is above them, all systems of a case together.
func rows(list []Record, scenario string) (head []string, all [][]string) {
	var cases []string
	byCase := map[string][][]string{}
	for _, r := range list {
		if r.Scenario != scenario {
			continue
		}
		if !slices.Contains(cases, r.Case) {
			cases = append(cases, r.Case)
		}
		if scenario == company {
			byCase[r.Case] = append(byCase[r.Case], r.keptRows()...)
		} else {
			byCase[r.Case] = append(byCase[r.Case], r.row())
		}
	}
	for _, name := range cases {
		all = append(all, byCase[name]...)
	}
	if scenario == company {
		return keptColumns, all
	}
	return columns, all
}

// Table prints for a terminal.
func Table(w io.Writer, list []Record) error {
	if _, err := fmt.Fprintf(w, "\n%s", about(list)); err != nil {
		return err
	}
	for _, name := range scenarios(list) {
		tab := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		head, all := rows(list, name)
		fmt.Fprintf(tab, "\n== %s\n%s\n", name, strings.Join(head, "\t"))
		for _, row := range all {
			fmt.Fprintln(tab, strings.Join(row, "\t"))
		}
		if err := tab.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// Markdown prints the same for a document.
func Markdown(w io.Writer, list []Record) error {
	var b strings.Builder
	b.WriteString(about(list) + "\n")
	for _, name := range scenarios(list) {
		head, all := rows(list, name)
		fmt.Fprintf(&b, "## %s\n\n| %s |\n|%s\n", name, strings.Join(head, " | "), strings.Repeat("---|", len(head)))
		for _, row := range all {
			fmt.Fprintf(&b, "| %s |\n", strings.ReplaceAll(strings.Join(row, "\x00"), "|", "\\|"))
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, strings.ReplaceAll(b.String(), "\x00", " | "))
	return err
}
