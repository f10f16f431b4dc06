// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
)

// Sizes of a chart of bars, in pixels.
const (
	barLeft, barWidth, barHeight = 260, 400, 9
	groupSpace                   = 8
)

// bar is one value; the group's bars are below one another.
type bar struct {
	value float64
	color string
}

// group are the bars of one case. A red line stands at its mark, 0: none.
type group struct {
	label string
	bars  []bar
	mark  float64
}

// chart draws groups; a bar longer than most ends at the edge.
func chart(w io.Writer, title, format string, most float64, groups []group) error {
	var b strings.Builder
	y := 40
	for _, g := range groups {
		tall := len(g.bars) * barHeight
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", barLeft-6, y+tall/2+4, html.EscapeString(g.label))
		for i, v := range g.bars {
			x, at := min(max(v.value, 0), most)*barWidth/most, y+i*barHeight
			fmt.Fprintf(&b, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/><text x=\"%.1f\" y=\"%d\" font-size=\"9\">"+format+"</text>\n",
				barLeft, at, x, barHeight, v.color, barLeft+x+4, at+barHeight-1, v.value)
		}
		if x := barLeft + g.mark*barWidth/most; g.mark > 0 {
			fmt.Fprintf(&b, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"2\"/>\n", x, x, y-1, y+tall+1, colors[1])
		}
		y += tall + groupSpace
	}
	_, err := fmt.Fprintf(w, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n"+
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"12\" y=\"20\" font-size=\"14\">%s</text>\n%s</svg>\n",
		barLeft+barWidth+60, y+12, html.EscapeString(title), b.String())
	return err
}

// Bars draws what each tenant that is judged kept under one system, and natively, and its mark.
func Bars(w io.Writer, list []Record, system string) error {
	var groups []group
	for _, r := range list {
		if r.Scenario != company || r.System != system {
			continue
		}
		for _, t := range r.Tenants {
			if t.Kept == nil || t.Kept.Mark == 0 {
				continue
			}
			g := group{label: fmt.Sprintf("%s: %s of %d", r.Case, t.Kept.Load, t.Share), bars: []bar{{t.Kept.Kept, colors[0]}}, mark: t.Kept.Mark}
			if t.Kept.Native > 0 {
				g.bars = append(g.bars, bar{t.Kept.Native, colors[len(colors)-1]})
			}
			groups = append(groups, g)
		}
	}
	const most = 1.2
	return chart(w, "Part of what each is entitled to: blue "+system+", grey native, red the least that is accepted", "%.2f", most, groups)
}

// Errors draws by how many points each system misses the shares of the cases that all of them
// have. The chart calls the systems by names.
func Errors(w io.Writer, list []Record, systems, names []string) error {
	var groups []group
	var seen []string
	most := 0.0
	for _, r := range list {
		if !r.Judged || len(r.Tenants) < 2 || slices.Contains(seen, r.Case) {
			continue
		}
		seen = append(seen, r.Case)
		g := group{label: r.Case}
		for i, system := range systems {
			if at := Find(list, r.Scenario, r.Case, system); at != nil && at.Judged {
				g.bars = append(g.bars, bar{at.ShareError(), colors[i%len(colors)]})
				most = max(most, at.ShareError())
			}
		}
		if len(g.bars) == len(systems) {
			groups = append(groups, g)
		}
	}
	title := "Points by which a share is missed:"
	for i, name := range names {
		title += fmt.Sprintf(" %s %s;", []string{"blue", "orange", "green", "pink"}[i], name)
	}
	title = strings.TrimSuffix(title, ";")
	return chart(w, title, "%.1f", max(most, 1), groups)
}

// Find is the record of a case under a system, nil: there is none.
func Find(list []Record, scenario, name, system string) *Record {
	for i, r := range list {
		if r.Scenario == scenario && r.Case == name && r.System == system {
			return &list[i]
		}
	}
	return nil
}
