// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
)

// panel is where a plot is in the picture, and what it shows.
type panel struct {
	x, y, w, h float64
	lowX, topX float64
	topY       float64
}

func (p panel) at(x, y float64) (float64, float64) {
	return p.x + p.w*(x-p.lowX)/(p.topX-p.lowX), p.y + p.h*(1-y/p.topY)
}

// Lines that lie on each other can still be told apart: gresd's has dots, FGD's
// is dashed, and best fit's is broad and light.
var styles = map[string]string{
	"first fit": `stroke="#d55e00" stroke-width="1.5"`,
	"best fit":  `stroke="#a6cee3" stroke-width="7"`,
	"spread":    `stroke="#999999" stroke-width="1.5"`,
	"FGD":       `stroke="#009e73" stroke-width="2.5" stroke-dasharray="7 5"`,
	vgpu:        `stroke="#000000" stroke-width="1" marker-mid="url(#dot)" marker-start="url(#dot)" marker-end="url(#dot)"`,
}

// plot draws refused work over load, for the first two mixes, as SVG.
func (c campaign) plot() string {
	var b strings.Builder
	fmt.Fprint(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 420" font-family="sans-serif" font-size="13">
<defs><marker id="dot" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="6" markerHeight="6" markerUnits="userSpaceOnUse"><circle cx="4" cy="4" r="4"/></marker></defs>
<rect width="960" height="420" fill="white"/>
`)
	loads := []float64{0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5}
	for i, m := range mixes()[:2] {
		p := panel{x: 70 + 460*float64(i), y: 50, w: 390, h: 290, lowX: 0.5, topX: 1.5, topY: 60}
		p.frame(&b, m.name)
		lines := make([][]string, len(rules(m)))
		for _, load := range loads {
			means, _ := c.run(m, load)
			for n, r := range means {
				x, y := p.at(load, r.refused)
				lines[n] = append(lines[n], fmt.Sprintf("%.1f,%.1f", x, y))
			}
		}
		for n, r := range rules(m) {
			fmt.Fprintf(&b, "<polyline fill=\"none\" %s points=\"%s\"/>\n", styles[r.name], strings.Join(lines[n], " "))
			y := 70 + 18*float64(n)
			fmt.Fprintf(&b, "<polyline fill=\"none\" %s points=\"%.0f,%.0f %.0f,%.0f %.0f,%.0f\"/><text x=\"%.0f\" y=\"%.0f\">%s</text>\n",
				styles[r.name], p.x+12, y, p.x+27, y, p.x+42, y, p.x+50, y+4, r.name)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (p panel) frame(b *strings.Builder, title string) {
	fmt.Fprintf(b, "<text x=\"%.0f\" y=\"%.0f\" font-size=\"15\">%s</text>\n", p.x, p.y-16, title)
	for y := 0.0; y <= p.topY; y += 10 {
		x0, at := p.at(p.lowX, y)
		fmt.Fprintf(b, "<line x1=\"%.0f\" y1=\"%.1f\" x2=\"%.0f\" y2=\"%.1f\" stroke=\"#dddddd\"/><text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%.0f %%</text>\n",
			x0, at, p.x+p.w, at, x0-6, at+4, y)
	}
	for _, x := range []float64{0.5, 0.75, 1, 1.25, 1.5} {
		at, bottom := p.at(x, 0)
		fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%.2f</text>\n", at, bottom+18, x)
	}
	fmt.Fprintf(b, "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">load offered, in parts of the node</text>\n", p.x+p.w/2, p.y+p.h+40)
	fmt.Fprintf(b, "<text transform=\"translate(%.0f %.0f) rotate(-90)\" text-anchor=\"middle\">work refused</text>\n", p.x-50, p.y+p.h/2)
}
