// SPDX-License-Identifier: Apache-2.0

// Command pages makes docs/benchmarks.md and its charts from docs/benchmarks/VERSION:
// results.jsonl as vgpu-bench writes it, and machine.json. Each figure of the page is in them.
package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
)

//go:embed benchmarks.md.tmpl
var text string

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pages DOCS OUT")
		os.Exit(2)
	}
	if err := pages(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pages:", err)
		os.Exit(1)
	}
}

// pages writes the page and its charts of the data in the folder docs into the folder out.
func pages(docs, out string) error {
	parsed, err := template.New("benchmarks").Option("missingkey=error").Funcs(template.FuncMap{
		"data": func(version string) (*run, error) { return load(filepath.Join(docs, "benchmarks", version)) },
	}).Parse(text)
	if err != nil {
		return err
	}
	var page bytes.Buffer
	if err := parsed.Execute(&page, nil); err != nil {
		return err
	}
	charts := filepath.Join(out, "benchmarks")
	if err := os.MkdirAll(charts, 0o755); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(out, "benchmarks.md"), page.Bytes(), 0o644),
		chart(docs, "0.10.0", filepath.Join(charts, "company.svg"), func(b *bytes.Buffer, r *run) error {
			return report.Bars(b, r.list, "ours")
		}),
		chart(docs, "0.9.0", filepath.Join(charts, "shares.svg"), func(b *bytes.Buffer, r *run) error {
			return report.Errors(b, r.list, r.Systems(), []string{"native", "this", "MPS", "HAMi-core"})
		}))
}

func chart(docs, version, path string, draw func(*bytes.Buffer, *run) error) error {
	r, err := load(filepath.Join(docs, "benchmarks", version))
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := draw(&b, r); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// run is the data of one version. Its methods are what the template asks.
type run struct {
	list    []report.Record
	machine struct {
		Version, Card, Driver, CUDA, PyTorch string
	}
}

func load(folder string) (*run, error) {
	var r run
	about, err := os.ReadFile(filepath.Join(folder, "machine.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(about, &r.machine); err != nil {
		return nil, fmt.Errorf("read machine.json of %s: %w", folder, err)
	}
	r.list, err = report.Load(folder)
	return &r, err
}

// Machine is version, card and software in one line.
func (r *run) Machine() string {
	m := r.machine
	parts := []string{m.Version + " on one " + m.Card, "driver " + m.Driver}
	if m.CUDA != "" {
		parts = append(parts, "CUDA "+m.CUDA)
	}
	parts = append(parts, "PyTorch "+m.PyTorch)
	return strings.Join(parts, ", ")
}

func (r *run) find(scenario, name, system string) (*report.Record, error) {
	if rec := report.Find(r.list, scenario, name, system); rec != nil {
		return rec, nil
	}
	return nil, fmt.Errorf("%s has no row of %s, %s, %s", r.machine.Version, scenario, name, system)
}

// each is one figure of all tenants: 30.0/70.0.
func (r *run) each(scenario, name, system string, of func(report.Tenant) string) (string, error) {
	rec, err := r.find(scenario, name, system)
	if err != nil {
		return "", err
	}
	var texts []string
	alike := true
	for _, t := range rec.Tenants {
		texts = append(texts, of(t))
		alike = alike && texts[0] == of(t)
	}
	if len(texts) == 0 {
		return "", fmt.Errorf("%s, %s, %s: no tenants", scenario, name, system)
	}
	if alike && len(texts) > 2 {
		return texts[0] + " each", nil
	}
	return strings.Join(texts, "/"), nil
}

// Part is of the work that all tenants did.
func (r *run) Part(scenario, name, system string) (string, error) {
	return r.each(scenario, name, system, func(t report.Tenant) string { return fmt.Sprintf("%.1f", t.Part) })
}

// Solo is of what each does alone.
func (r *run) Solo(scenario, name, system string) (string, error) {
	return r.each(scenario, name, system, func(t report.Tenant) string { return fmt.Sprintf("%.1f", t.OfSolo) })
}

// Sum is the work of all, of one alone.
func (r *run) Sum(scenario, name, system string) (string, error) {
	rec, err := r.find(scenario, name, system)
	if err != nil {
		return "", err
	}
	if v, ok := rec.Numbers["sum_percent"]; ok {
		return fmt.Sprintf("%.1f", v), nil
	}
	return fmt.Sprintf("%.1f", rec.Sum()), nil
}

// Num is a number of a row.
func (r *run) Num(scenario, name, system, number string) (string, error) {
	rec, err := r.find(scenario, name, system)
	if err != nil {
		return "", err
	}
	v, ok := rec.Numbers[number]
	if !ok {
		return "", fmt.Errorf("%s, %s, %s has no %s", scenario, name, system, number)
	}
	return strconv.FormatFloat(v, 'f', -1, 64), nil
}

// row is a case of the scenario company, for a table.
type row struct {
	Asked, Kept, Varies, First, Worst, Native, Below string
	Met                                              bool
}

// Company is a row of company: each figure of all tenants.
func (r *run) Company(name string) (row, error) {
	rec, err := r.find("company", name, "ours")
	if err != nil {
		return row{}, err
	}
	var asked, kept, varies, first, worst, native, below []string
	two := func(v float64) string {
		if v == 0 {
			return "–"
		}
		return fmt.Sprintf("%.2f", v)
	}
	measured := slices.ContainsFunc(rec.Tenants, func(t report.Tenant) bool { return t.Kept.Varies > 0 })
	for _, t := range rec.Tenants {
		k := t.Kept
		asked = append(asked, fmt.Sprint(t.Share))
		kept, first, worst = append(kept, two(k.Kept)), append(first, two(k.First)), append(worst, two(k.Worst))
		if measured {
			varies = append(varies, fmt.Sprintf("%.0f", 100*k.Varies))
		}
		if k.Native > 0 {
			native = append(native, two(k.Native))
		}
		if k.Below != "" {
			below = append(below, fmt.Sprintf("%d: %s", t.Share, k.Below))
		}
	}
	const sep = " / "
	out := row{Met: len(below) == 0, Below: strings.Join(below, ", ")}
	for to, from := range map[*string][]string{&out.Asked: asked, &out.Kept: kept, &out.Varies: varies, &out.First: first, &out.Worst: worst, &out.Native: native} {
		*to = strings.Join(from, sep)
	}
	for _, text := range []*string{&out.Varies, &out.Native} {
		if *text == "" {
			*text = "–"
		}
	}
	return out, nil
}

// Beside is what the jobs of a case of company keep with an engine, and their work together, in
// percent of one alone.
func (r *run) Beside(name, system string) (string, error) {
	kept, err := r.each("company", name, system, func(t report.Tenant) string { return fmt.Sprintf("%.2f", t.Kept.Kept) })
	if err != nil {
		return "", err
	}
	sum, err := r.Sum("company", name, system)
	return kept + "; " + sum, err
}

// Engines are the columns of the table of engines.
func (*run) Engines() []string { return []string{"native", "ours", "concurrent", "mps", "mps-free"} }

// Systems are the columns of tables.
func (*run) Systems() []string { return []string{"native", "ours", "mpse", "hami"} }

// Cases are those of busy tenants that all systems have, and whose shares add up to 100.
func (r *run) Cases() []string {
	var names []string
	for _, rec := range r.list {
		whole := 0
		for _, t := range rec.Tenants {
			whole += t.Share
		}
		missing := slices.ContainsFunc(r.Systems(), func(system string) bool {
			at := report.Find(r.list, rec.Scenario, rec.Case, system)
			return at == nil || len(at.Tenants) == 0
		})
		if rec.Scenario == "contended" && whole == 100 && !missing && !slices.Contains(names, rec.Case) {
			names = append(names, rec.Case)
		}
	}
	return names
}

// Bursts are the cases of latency by their names in the page.
func (*run) Bursts() map[string]string {
	return map[string]string{
		"a burst beside busy kernels of 1 ms":  "burst 30 beside 70, 1 ms",
		"a burst beside busy kernels of 20 ms": "burst 30 beside 70, 20 ms",
	}
}

// Times are the median and the 99th percentile of a burst.
func (r *run) Times(name, system string) (string, error) {
	return r.numbers("latency", name, system, "p50_0_ms", "p99_0_ms")
}

// Steps are the 99th percentiles of the steps of two trainings.
func (r *run) Steps(name, system string) (string, error) {
	return r.numbers("torch", name, system, "p99_0_ms", "p99_1_ms")
}

func (r *run) numbers(scenario, name, system, first, second string) (string, error) {
	rec, err := r.find(scenario, name, system)
	if err != nil {
		return "", err
	}
	a, ok := rec.Numbers[first]
	b, also := rec.Numbers[second]
	if !ok || !also {
		return "–", nil
	}
	return fmt.Sprintf("%.2f; %.2f", a, b), nil
}
