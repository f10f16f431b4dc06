// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Kind is how a piece of a line looks.
type Kind int

// Kinds.
const (
	Plain Kind = iota
	Dim
	Strong
	Good
	Warn
	Bad
	Head // header of the table, over the whole width
)

// Span is a piece of a line in one look.
type Span struct {
	Text string
	Kind Kind
}

// Line is one line of the terminal.
type Line []Span

// Lines draws what a terminal of that size shows: never more lines, none longer.
func (v *View) Lines(width, height int) []Line {
	if !v.some {
		return clip([]Line{{{cmp.Or(v.Problem, "asking gresd"), Warn}}}, width, height)
	}
	rows := v.rows()
	lines := []Line{v.title(len(rows))}
	if v.Problem != "" {
		lines = append(lines, Line{{v.Problem, Bad}})
	}
	// The cards have at most a third of the height; the jobs matter more.
	lines = append(lines, v.cards(width, max(1, height/3))...)
	cols := v.columns(width)
	lines = append(lines, nil, header(cols, width))
	room := height - len(lines) - 1
	v.first = max(0, min(v.first, len(rows)-room))
	for i, r := range rows[v.first:] {
		if i >= room {
			break
		}
		lines = append(lines, draw(cols, r))
	}
	if len(rows) == 0 && room > 0 {
		lines = append(lines, Line{{"no job has a share here, or none of yours", Dim}})
	}
	for len(lines) < height-1 {
		lines = append(lines, nil)
	}
	lines = append(lines, v.footer(len(rows), room))
	return clip(lines, width, height)
}

// cards are lines of the cards, most of them at the most, after nodes that say nothing.
func (v *View) cards(width, most int) (lines []Line) {
	if v.Nodes {
		for _, s := range v.silent() {
			lines = append(lines, Line{{"node " + s.Status.Node + ": " + s.Status.Problems[0], Bad}})
		}
	}
	for _, s := range v.samples {
		for _, c := range s.Status.Cards {
			line := v.card(c, width)
			if v.Nodes {
				line = append(Line{{fit(s.Status.Node, nodeWidth, true) + " ", Plain}}, v.card(c, width-nodeWidth-1)...)
			}
			lines = append(lines, line)
		}
	}
	if left := len(lines) - most; left > 0 {
		lines = append(lines[:most-1], Line{{fmt.Sprintf("     and %d more cards", left+1), Dim}})
	}
	return lines
}

func (v *View) title(rows int) Line {
	if len(v.samples) == 0 || v.Nodes {
		return v.titleOfNodes(rows)
	}
	s := v.samples[0]
	st := s.Status
	line := Line{
		{"vgpuctl top", Strong},
		{fmt.Sprintf(" - %s  %s  up %s  cards %d  rows %d", cmp.Or(st.Node, "this node"), s.At.Format(time.TimeOnly),
			s.At.Sub(st.Started).Round(time.Second), len(st.Cards), rows), Plain},
	}
	if n := len(st.Problems); n > 0 {
		line = append(line, Span{fmt.Sprintf("  problems %d: vgpuctl status", n), Bad})
	}
	return line
}

func (v *View) titleOfNodes(rows int) Line {
	var newest time.Time
	for _, s := range v.samples {
		if s.At.After(newest) {
			newest = s.At
		}
	}
	return Line{
		{"vgpuctl top", Strong},
		{fmt.Sprintf(" - your jobs  %s  nodes %d  rows %d", newest.Format(time.TimeOnly), len(v.samples), rows), Plain},
	}
}

// nodeWidth is that of a column with the name of a node.
const nodeWidth = 12

func (v *View) card(c wire.Card, width int) Line {
	bar := max(8, min(40, (width-66)/2))
	line := Line{{fmt.Sprintf("card %-2d %-6.6s ", c.Index, c.Type), Plain}}
	if !c.Healthy {
		return append(line, Span{"out: " + c.Why, Bad})
	}
	line = append(line, Span{"granted ", Dim})
	line = append(line, v.bar(float64(c.Share)/100, -1, bar, Plain)...)
	line = append(line, Span{fmt.Sprintf(" %3d%%  ", c.Share), Plain}, Span{"busy ", Dim})
	line = append(line, v.bar(value(c.ComputePercent)/100, -1, bar, Good)...)
	line = append(line, Span{fmt.Sprintf(" %4s", Percent(c.ComputePercent)), Plain})
	if c.Waiting > 0 {
		line = append(line, Span{fmt.Sprintf("  %d waiting", c.Waiting), Warn})
	}
	return line
}

// column is one column of the table.
type column struct {
	title string
	width int
	left  bool
	cell  func(row) Line
}

func text(f func(row) string) func(row) Line {
	return func(r row) Line { return Line{{f(r), Plain}} }
}

// columns are those that the width has room for.
func (v *View) columns(width int) []column {
	// Where there is more than 80 columns, bars and history grow first, then
	// columns are added.
	extra := max(0, width-80)
	wide := width >= 110
	names, bar, memory, spark := 8, 8+min(16, extra/8), 6+min(14, extra/8), 7+min(longest-7, extra/3)
	cols := []column{
		{"JOB", 8, false, text(func(r row) string { return fmt.Sprint(r.job.JobID) })},
		{"USER", names, true, text(func(r row) string { return r.job.Who() })},
		{"CD", 2, false, text(func(r row) string { return fmt.Sprint(r.card.Index) })},
		{"COMPUTE", bar, true, func(r row) Line { return v.compute(r, bar) }},
		{"GOT", 4, false, text(func(r row) string { return Percent(r.card.ComputePercent) })},
		{"ASK", 4, false, text(func(r row) string { return fmt.Sprintf("%d%%", r.card.Cores) })},
		{"HISTORY", spark, true, func(r row) Line { return v.spark(r, spark) }},
		{"MEMORY", memory, true, func(r row) Line { return v.memory(r, memory) }},
		{"USED/LIMIT", 10, false, text(used)},
		{"WAIT", 4, false, waited},
		{"MODE", 7, true, text(func(r row) string { return Mode(r.job) })},
	}
	if v.Nodes { // the user is always the same
		cols[1] = column{"NODE", nodeWidth, true, text(func(r row) string { return r.node })}
	}
	if !wide && v.Nodes { // the bar says what the column beside it does
		cols = slices.DeleteFunc(cols, func(c column) bool { return c.title == "MEMORY" })
	}
	if !wide {
		return cols
	}
	cols = append(
		cols,
		column{"PROCS", 5, false, text(func(r row) string { return Known(r.card.Processes, func(n int) string { return fmt.Sprint(n) }) })},
		column{"BOUND", 10, true, text(func(r row) string { return r.card.Bound })},
		column{"SLICE", 8, false, text(slice)},
	)
	if width >= 160 {
		cols = append(
			cols,
			column{"GPU TIME", 9, false, text(func(r row) string { return Known(r.card.GPUSeconds, seconds) })},
			column{"PRIO", 6, true, text(func(r row) string { return r.job.Priority })},
			column{"ACCOUNT", 10, true, text(func(r row) string { return r.job.Account })},
		)
	}
	return cols
}

func header(cols []column, width int) Line {
	var line strings.Builder
	for i, c := range cols {
		if i > 0 {
			line.WriteByte(' ')
		}
		line.WriteString(fit(c.title, c.width, c.left))
	}
	return Line{{fit(line.String(), width, true), Head}}
}

func draw(cols []column, r row) Line {
	var line Line
	for i, c := range cols {
		if i > 0 {
			line = append(line, Span{" ", Plain})
		}
		cell := c.cell(r)
		if len(cell) == 1 {
			cell[0].Text = fit(cell[0].Text, c.width, c.left)
		}
		line = append(line, cell...)
	}
	return line
}

// fit makes a text that wide.
func fit(s string, width int, left bool) string {
	n := utf8.RuneCountInString(s)
	switch {
	case n > width:
		return string([]rune(s)[:width])
	case left:
		return s + strings.Repeat(" ", width-n)
	}
	return strings.Repeat(" ", width-n) + s
}

// compute is a bar of the whole card, with a mark at what was asked for.
func (v *View) compute(r row, width int) Line {
	kind := Good
	if r.card.WaitPercent != nil && *r.card.WaitPercent >= waitsMuch {
		kind = Warn
	}
	return v.bar(value(r.card.ComputePercent)/100, float64(r.card.Cores)/100, width, kind)
}

func (v *View) memory(r row, width int) Line {
	part := 0.0
	if r.card.LimitBytes > 0 {
		part = float64(value(r.card.UsedBytes)) / float64(r.card.LimitBytes)
	}
	kind := Good
	switch {
	case part > 0.98:
		kind = Bad
	case part > 0.9:
		kind = Warn
	}
	return v.bar(part, -1, width, kind)
}

// waitsMuch is the percentage of time from which waiting is worth a look.
const waitsMuch = 25

func waited(r row) Line {
	kind := Plain
	if value(r.card.WaitPercent) >= waitsMuch {
		kind = Warn
	}
	return Line{{Percent(r.card.WaitPercent), kind}}
}

// bar is full at part 1; mark, when it is not negative, is a place on it.
func (v *View) bar(part, mark float64, width int, kind Kind) Line {
	full, empty, at := "█", "░", "│"
	if v.ASCII {
		full, empty, at = "#", ".", "|"
	}
	n := int(math.Round(min(max(part, 0), 1) * float64(width)))
	if n == 0 && part > 0.005 {
		n = 1
	}
	place := -1
	if mark >= 0 {
		place = min(int(mark*float64(width)), width-1)
	}
	var line Line
	for i := range width {
		piece := Span{empty, Dim}
		switch {
		case i == place:
			piece = Span{at, Strong}
		case i < n:
			piece = Span{full, kind}
		}
		if k := len(line) - 1; k >= 0 && line[k].Kind == piece.Kind {
			line[k].Text += piece.Text
		} else {
			line = append(line, piece)
		}
	}
	return line
}

// spark is the compute of the last samples, the newest on the right.
func (v *View) spark(r row, width int) Line {
	levels := []rune(" ▁▂▃▄▅▆▇█")
	if v.ASCII {
		levels = []rune(" .:-=+*%#")
	}
	past := v.history[r.key()]
	past = past[max(0, len(past)-width):]
	out := []rune(strings.Repeat(" ", width-len(past)))
	for _, p := range past {
		out = append(out, levels[min(int(math.Ceil(max(p, 0)/100*float64(len(levels)-1))), len(levels)-1)])
	}
	return Line{{string(out), Good}}
}

func (v *View) footer(rows, room int) Line {
	more := ""
	if rows > room {
		more = fmt.Sprintf("  rows %d-%d of %d", v.first+1, min(rows, v.first+room), rows)
	}
	order := v.Order.String()
	if v.Reverse {
		order += " reversed"
	}
	return Line{
		{"q", Strong},
		{" quit  sort: ", Plain},
		{"c", Strong},
		{"ompute ", Plain},
		{"m", Strong},
		{"emory ", Plain},
		{"w", Strong},
		{"ait ", Plain},
		{"j", Strong},
		{"ob ", Plain},
		{"u", Strong},
		{"ser ", Plain},
		{"r", Strong},
		{"everse", Plain},
		{"  by " + order + more, Dim},
	}
}

// clip cuts what does not fit.
func clip(lines []Line, width, height int) []Line {
	lines = lines[:min(len(lines), max(height, 0))]
	for i, l := range lines {
		left := width
		for k, s := range l {
			n := utf8.RuneCountInString(s.Text)
			if n > left {
				l[k].Text = string([]rune(s.Text)[:left])
				lines[i] = l[:k+1]
				break
			}
			left -= n
		}
	}
	return lines
}

// Known writes "?" for what gresd could not read.
func Known[T any](v *T, write func(T) string) string {
	if v == nil {
		return "?"
	}
	return write(*v)
}

// Percent is without a fraction.
func Percent(v *float64) string {
	return Known(v, func(v float64) string { return fmt.Sprintf("%.0f%%", v) })
}

// Mode is the mode of a job, with its ceiling.
func Mode(j wire.Job) string { return gpu.FormatMode(gpu.Mode(j.Mode), gpu.Share(j.Ceiling)) }

func slice(r row) string {
	switch {
	case r.job.Engine != "":
		return r.job.Engine
	case r.card.SliceUS == 0:
		return "driver's"
	}
	return fmt.Sprintf("%.3gms", float64(r.card.SliceUS)/1000)
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

// used is "3.2/8G": both in the unit of the limit.
func used(r row) string {
	unit, letter := float64(gpu.GiB), "G"
	if r.card.LimitBytes < uint64(gpu.GiB) {
		unit, letter = float64(gpu.MiB), "M"
	}
	number := func(b uint64) string {
		if v := float64(b) / unit; v < 9.95 {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
		}
		return fmt.Sprintf("%.0f", float64(b)/unit)
	}
	return Known(r.card.UsedBytes, number) + "/" + number(r.card.LimitBytes) + letter
}
