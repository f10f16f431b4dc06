// SPDX-License-Identifier: Apache-2.0

// Command plot draws what vgpu-bench measured: results.jsonl to SVG files.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: plot RESULTS.jsonl FOLDER")
		os.Exit(2)
	}
	if err := drawAll(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

func drawAll(results, folder string) error {
	f, err := os.Open(results)
	if err != nil {
		return err
	}
	defer f.Close()
	list, err := report.Read(f)
	if err != nil {
		return fmt.Errorf("read %s: %w", results, err)
	}
	list = slices.DeleteFunc(list, func(r report.Record) bool { return r.Error != "" || r.Skipped })
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	var errs []error
	for _, scenario := range []string{"contended", "alone", "torch"} {
		errs = append(errs, shareErrors(list, scenario, filepath.Join(folder, "error-"+scenario+".svg")))
	}
	errs = append(errs, overTime(list, filepath.Join(folder, "time-30-70.svg")))
	for _, neighbour := range []string{"1 ms", "20 ms"} {
		errs = append(errs, latencies(list, neighbour, filepath.Join(folder, "latency-beside-"+file(neighbour)+".svg")))
	}
	for name, to := range map[string]string{"training 30/70": "steps", "training 30/70, CUDA graphs": "steps-graphs"} {
		errs = append(errs, steps(list, name, filepath.Join(folder, to+".svg")))
	}
	return errors.Join(errs...)
}

// file makes a part of a file's name.
func file(s string) string { return strings.NewReplacer(" ", "", "/", "-").Replace(s) }

const (
	height     = 9 * vg.Centimeter
	barsHeight = 12 * vg.Centimeter // the names of cases stand aslant below
	// margin is room for the ends of labels that stand aslant or at the end of an axis.
	margin = 0.8 * vg.Centimeter
)

// newPlot is one with a title, and fonts that are as wide as those in every browser.
func newPlot(title string) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Text, p.Title.Padding = title, vg.Points(6)
	p.BackgroundColor = color.White
	p.Legend.Top, p.Legend.Padding = true, vg.Points(2)
	return p
}

func save(p *plot.Plot, width, height vg.Length, path string) error {
	canvas := vgsvg.New(width, height)
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	p.Draw(draw.Crop(all, 0, -margin, 0, -margin/4))
	var text bytes.Buffer
	if _, err := canvas.WriteTo(&text); err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	// Of the same widths, where the first is missing.
	out := bytes.ReplaceAll(text.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;"))
	if err := os.WriteFile(path, out, 0o644); err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	fmt.Println(path)
	return nil
}

// distinct are the values of the records in their order.
func distinct(list []report.Record, of func(report.Record) string) []string {
	var out []string
	for _, r := range list {
		if v := of(r); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// shareErrors are bars: for each case, the error of each system.
func shareErrors(list []report.Record, scenario, path string) error {
	var judged []report.Record
	for _, r := range list {
		if r.Scenario == scenario && r.Judged {
			judged = append(judged, r)
		}
	}
	if len(judged) == 0 {
		return nil
	}
	systems := distinct(judged, func(r report.Record) string { return r.System })
	cases := distinct(judged, func(r report.Record) string { return r.Case })
	// A bar that is missing would look like no error.
	cases = slices.DeleteFunc(cases, func(name string) bool {
		of := distinct(judged, func(r report.Record) string {
			if r.Case != name {
				return ""
			}
			return r.System
		})
		missing := slices.ContainsFunc(systems, func(s string) bool { return !slices.Contains(of, s) })
		if missing {
			fmt.Printf("%s: left out: %s: not every system has a result\n", path, name)
		}
		return missing
	})
	if len(cases) == 0 {
		return nil
	}
	p := newPlot("By how many points a share is missed at most: " + scenario)
	p.Y.Label.Text = "points"
	p.Y.Min = 0
	width := vg.Points(max(3, 22/float64(len(systems))))
	for i, system := range systems {
		values := make(plotter.Values, len(cases))
		for _, r := range judged {
			if at := slices.Index(cases, r.Case); at >= 0 && r.System == system {
				values[at] = r.ShareError()
			}
		}
		bars, err := plotter.NewBarChart(values, width)
		if err != nil {
			return fmt.Errorf("draw %s: %w", path, err)
		}
		bars.Color, bars.LineStyle.Width = plotutil.Color(i), 0
		bars.Offset = width * vg.Length(float64(i)-float64(len(systems)-1)/2)
		p.Add(bars)
		p.Legend.Add(system, bars)
	}
	p.Y.Max *= 1 + 0.08*float64(len(systems)+1) // room for the legend
	p.NominalX(cases...)
	p.X.Tick.Label.Rotation = math.Pi / 5
	p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = -1, -0.3
	return save(p, vg.Length(max(12, float64(len(cases))*1.6))*vg.Centimeter, barsHeight, path)
}

// overTime are the windows of the two tenants of one case, by system.
func overTime(list []report.Record, path string) error {
	p := newPlot("Asked for 30 (dashed) and 70, kernels of 1 ms")
	p.X.Label.Text, p.Y.Label.Text = "s, windows of 100 ms", "% of solo work"
	p.Y.Min, p.Y.Max = 0, 120 // room for the legend
	n := 0
	for _, r := range list {
		if r.Scenario != "contended" || r.Case != "30/70, 1 ms" {
			continue
		}
		for _, t := range r.Tenants {
			points := make(plotter.XYs, len(t.Windows))
			for i, v := range t.Windows {
				points[i] = plotter.XY{X: float64(i) / 10, Y: v}
			}
			line, err := plotter.NewLine(points)
			if err != nil {
				return fmt.Errorf("draw %s: %w", path, err)
			}
			addTenant(p, line, r.System, t.Share, n)
		}
		n++
	}
	if n == 0 {
		return nil
	}
	return save(p, 16*vg.Centimeter, height, path)
}

// addTenant adds a tenant's line: one color for each system, dashed for the smaller share.
// The first is broader, or the next would hide it where both are the same.
func addTenant(p *plot.Plot, line *plotter.Line, system string, share, n int) {
	line.Color, line.Width = plotutil.Color(n), vg.Points(1.2)
	if n == 0 {
		line.Width = vg.Points(3)
	}
	if share < 50 {
		line.Dashes = plotutil.Dashes(1)
	} else {
		p.Legend.Add(system, line)
	}
	p.Add(line)
}

// latencies are the distributions of a burst's time, one line a system.
func latencies(list []report.Record, neighbour, path string) error {
	p := newPlot("Bursts of 20 x 100 us beside kernels of " + neighbour)
	p.Y.Label.Text = "% of bursts"
	n, all := 0, times{}
	for _, r := range list {
		beside := strings.HasSuffix(r.Case, ", "+neighbour)
		if r.Scenario != "latency" || len(r.LatencyMS) == 0 || (!beside && (r.Case != "burst alone" || r.System != "native")) {
			continue
		}
		line, err := all.distribution(r.LatencyMS)
		if err != nil {
			return fmt.Errorf("draw %s: %w", path, err)
		}
		line.Color, line.Dashes = plotutil.Color(n), plotutil.Dashes(n/5)
		name := r.System
		if !beside {
			name = "alone"
		} else if strings.HasPrefix(r.Case, "high") {
			name += ", high priority"
		}
		p.Add(line)
		p.Legend.Add(name, line)
		n++
	}
	if n == 0 {
		return nil
	}
	all.axes(p)
	return save(p, 16*vg.Centimeter, height, path)
}

// times are the shortest and the longest of all distributions in a plot.
type times struct{ least, most float64 }

// distribution is a line of how many percent took so long at most.
func (t *times) distribution(took []float64) (*plotter.Line, error) {
	sorted := slices.Sorted(slices.Values(took))
	points := make(plotter.XYs, len(sorted))
	for i, v := range sorted {
		points[i] = plotter.XY{X: v, Y: 100 * float64(i+1) / float64(len(sorted))}
	}
	if t.least == 0 || sorted[0] < t.least {
		t.least = sorted[0]
	}
	t.most = max(t.most, sorted[len(sorted)-1])
	return plotter.NewLine(points)
}

// axes have a logarithmic one for times: the longest is what is asked for, and may be a
// hundred times the shortest. The legend is in the middle, where there are fewest lines.
func (t *times) axes(p *plot.Plot) {
	p.X.Label.Text = "ms"
	p.X.Min, p.X.Max = 0.9*t.least, 1.1*t.most
	p.Y.Min, p.Y.Max = 0, 100
	p.X.Scale = plot.LogScale{}
	var ticks plot.ConstantTicks
	for decade := 0.001; decade < t.most; decade *= 10 {
		for _, digit := range []float64{1, 1.5, 2, 3, 5, 7} {
			if v := decade * digit; v >= p.X.Min && v <= p.X.Max {
				ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprintf("%.4g", v)})
			}
		}
	}
	p.X.Tick.Marker = ticks
	p.Legend.Top, p.Legend.XOffs = false, -4*vg.Centimeter
}

// steps are the distributions of the steps of two trainings, two lines a system.
func steps(list []report.Record, name, path string) error {
	p := newPlot("Steps of a " + name + " (30 dashed)")
	p.Y.Label.Text = "% of steps"
	n, all := 0, times{}
	for _, r := range list {
		if r.Scenario != "torch" || r.Case != name {
			continue
		}
		for _, t := range r.Tenants {
			if len(t.StepsMS) == 0 {
				continue
			}
			line, err := all.distribution(t.StepsMS)
			if err != nil {
				return fmt.Errorf("draw %s: %w", path, err)
			}
			addTenant(p, line, r.System, t.Share, n)
		}
		n++
	}
	if all.most == 0 {
		return nil
	}
	all.axes(p)
	return save(p, 16*vg.Centimeter, height, path)
}
