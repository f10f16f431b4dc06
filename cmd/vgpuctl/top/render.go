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
	rows := v.Rows()
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
		lines = append(lines, v.row(cols, r))
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
		for _, s := range v.Silent() {
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
	var newest Sample
	for _, s := range v.samples {
		if s.At.After(newest.At) {
			newest = s
		}
	}
	st, at := newest.Status, newest.At.Format(time.TimeOnly)
	text, problems := fmt.Sprintf(" - your jobs  %s  nodes %d  rows %d", at, len(v.samples), rows), 0
	if !v.Nodes {
		text = fmt.Sprintf(" - %s  %s  up %s  cards %d  rows %d", cmp.Or(st.Node, "this node"), at, newest.At.Sub(st.Started).Round(time.Second), len(st.Cards), rows)
		problems = len(st.Problems)
	}
	line := Line{{"vgpuctl top", Strong}, {text, Plain}}
	if problems > 0 {
		line = append(line, Span{fmt.Sprintf("  problems %d: vgpuctl status", problems), Bad})
	}
	return line
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
	if c.Throttled > 0 {
		line = append(line, Span{fmt.Sprintf("  %d throttled", c.Throttled), Warn})
	}
	return line
}

// column is one column of the table.
type column struct {
	title string
	width int
	left  bool
}

// columns are the columns that the width has room for. Bars and the history take the rest of it.
func (v *View) columns(width int) []column {
	who := column{"USER", 8, true}
	if v.Nodes { // the user is always the same
		who = column{"NODE", nodeWidth, true}
	}
	wide := width >= 116
	cols := []column{{"JOB", 8, false}, who, {"CARD", 4, false}}
	if wide || !v.Nodes { // the column beside it has the same as a number
		cols = append(cols, column{"COMPUTE", 7, true})
	}
	cols = append(cols, column{"GOT", 4, false}, column{"SHARE", 7, false}, column{"HISTORY", 7, true})
	if wide {
		cols = append(cols, column{"USED", 6, true})
	}
	cols = append(cols, column{"MEMORY", 10, false}, column{"THROTTLED", 9, false}, column{"MODE", 7, true})
	if wide {
		cols = append(cols, column{"PROCS", 5, false}, column{"LIMITED BY", 10, true}, column{"SLICE", 10, false})
	}
	if width >= 160 {
		cols = append(cols, column{"GPU TIME", 9, false}, column{"PRIO", 6, true}, column{"ACCOUNT", 10, true})
	}
	rest := width + 1
	for _, c := range cols {
		rest -= c.width + 1
	}
	rest = max(rest, 0)
	for title, more := range map[string]int{"COMPUTE": min(17, rest/4), "USED": min(14, rest/4), "HISTORY": min(longest-7, rest/2)} {
		if k := slices.IndexFunc(cols, func(c column) bool { return c.title == title }); k >= 0 {
			cols[k].width += more
		}
	}
	return cols
}

// cell draws the text of a row in a column, or its bar.
func (v *View) cell(c column, r Row) Line {
	switch c.title {
	case "COMPUTE":
		return v.compute(r, c.width)
	case "USED":
		return v.memory(r, c.width)
	case "HISTORY":
		return v.spark(r, c.width)
	case "THROTTLED":
		return throttled(r)
	}
	return Line{{fit(r.Cells(c.title)[0], c.width, c.left), Plain}}
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

func (v *View) row(cols []column, r Row) (line Line) {
	for i, c := range cols {
		if i > 0 {
			line = append(line, Span{" ", Plain})
		}
		line = append(line, v.cell(c, r)...)
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

// compute is a bar of the whole card, with a mark at the share.
func (v *View) compute(r Row, width int) Line {
	kind := Good
	if r.Card.ThrottledPercent != nil && *r.Card.ThrottledPercent >= throttledMuch {
		kind = Warn
	}
	return v.bar(value(r.Card.GotPercent)/100, float64(r.Card.Cores)/100, width, kind)
}

func (v *View) memory(r Row, width int) Line {
	part := 0.0
	if r.Card.LimitBytes > 0 {
		part = float64(value(r.Card.UsedBytes)) / float64(r.Card.LimitBytes)
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

// throttledMuch is the percentage of time from which throttling is worth a look.
const throttledMuch = 25

func throttled(r Row) Line {
	kind := Plain
	if value(r.Card.ThrottledPercent) >= throttledMuch {
		kind = Warn
	}
	return Line{{fit(Percent(r.Card.ThrottledPercent), 9, false), kind}}
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
func (v *View) spark(r Row, width int) Line {
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
	line := Line{{"q", Strong}, {" quit, sort: ", Plain}}
	for _, order := range append(slices.Clone(Orders), "reverse") {
		line = append(line, Span{order[:1], Strong}, Span{order[1:] + " ", Plain})
	}
	by := cmp.Or(v.Order, Orders[0])
	if v.Reverse {
		by += " reversed"
	}
	return append(line, Span{"by " + by + more, Dim})
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
