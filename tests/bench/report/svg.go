// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Plots writes a plot of each record that has windows into a folder, and a chart of
// company for each system that is judged there, and returns the paths. They are plain SVG, made here: a program of a node needs no library
// for graphics.
func Plots(folder string, list []Record) ([]string, error) {
	paths, err := charts(folder, list)
	if err != nil {
		return paths, err
	}
	for _, r := range list {
		if r.Error != "" || len(r.Tenants) == 0 || len(r.Tenants[0].Windows) < 2 {
			continue
		}
		path := filepath.Join(folder, plotName(r))
		if err := draw(path, func(w io.Writer) error { return SVG(w, r) }); err != nil {
			return paths, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// charts writes the charts of company.
func charts(folder string, list []Record) (paths []string, err error) {
	var seen []string
	for _, r := range list {
		if r.Scenario != company || !r.judgedKept() || slices.Contains(seen, r.System) {
			continue
		}
		seen = append(seen, r.System)
		path := filepath.Join(folder, plotName(Record{Scenario: company, System: r.System}))
		if err := draw(path, func(w io.Writer) error { return Bars(w, list, r.System) }); err != nil {
			return paths, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// draw makes a file of what is written.
func draw(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

func plotName(r Record) string {
	return strings.Trim(notInName.ReplaceAllString(strings.ToLower(r.Scenario+"-"+r.Case+"-"+r.System), "-"), "-") + ".svg"
}

// Size of a plot and of its frame, in pixels.
const (
	plotWidth, plotHeight        = 720, 320
	frameLeft, frameTop          = 50, 36
	frameWidth, frameHeight      = 540, 240
	windowSeconds                = 0.1
	legendLeft                   = frameLeft + frameWidth + 12
	percentEvery, percentTop int = 20, 100
	lineFormat                   = "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"%s\"/>\n"
)

var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"}

// SVG draws what each tenant got, in windows of 100 ms, and dashed what it asked for.
func SVG(w io.Writer, r Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n",
		plotWidth, plotHeight)
	fmt.Fprintf(&b, "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%d\" y=\"20\" font-size=\"14\">%s</text>\n",
		frameLeft, html.EscapeString(r.Case+", "+r.System))
	y := func(percent float64) float64 {
		return frameTop + frameHeight - min(max(percent, 0), float64(percentTop))*frameHeight/float64(percentTop)
	}
	for p := 0; p <= percentTop; p += percentEvery {
		fmt.Fprintf(&b, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d</text>\n",
			frameLeft, frameLeft+frameWidth, y(float64(p)), y(float64(p)), frameLeft-6, y(float64(p))+4, p)
	}
	longest := 0
	for _, t := range r.Tenants {
		longest = max(longest, len(t.Windows))
	}
	step := float64(frameWidth) / float64(max(1, longest))
	for i, t := range r.Tenants {
		color := colors[i%len(colors)]
		fmt.Fprintf(&b, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" stroke-dasharray=\"4 4\"/>\n",
			frameLeft, frameLeft+frameWidth, y(float64(t.Share)), y(float64(t.Share)), color)
		var points strings.Builder
		for k, v := range t.Windows {
			fmt.Fprintf(&points, "%.1f,%.1f ", frameLeft+(float64(k)+0.5)*step, y(v))
		}
		fmt.Fprintf(&b, lineFormat, color, strings.TrimSpace(points.String()))
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" fill=\"%s\">%d%% asked, %.1f%%</text>\n",
			legendLeft, frameTop+14+18*i, color, t.Share, t.OfSolo)
	}
	fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%.1f s, windows of 100 ms; %% of what the load does alone</text>\n</svg>\n",
		frameLeft+frameWidth/2, frameTop+frameHeight+28, float64(longest)*windowSeconds)
	_, err := io.WriteString(w, b.String())
	return err
}
