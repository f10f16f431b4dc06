// SPDX-License-Identifier: Apache-2.0

// Package grafana holds the dashboard against Grafana's own models, which Grafana makes of its
// schemas: no Grafana to load it into can be had from a registry.
package grafana

import (
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

const file = "../../etc/grafana/slurm-vgpu.json"

// read is strict, but for what is below fieldConfig. Without a mistake the strict models return an
// empty list of them, which is no nil, and nothing else: what is read, the others return.
func read(text []byte) (d dashboard.Dashboard, err error) {
	var mistakes cog.BuildErrors
	if err := new(dashboard.Dashboard).UnmarshalJSONStrict(text); err != nil && (!errors.As(err, &mistakes) || len(mistakes) > 0) {
		return d, err
	}
	return d, json.Unmarshal(text, &d)
}

// Every field of the dashboard, its panels with their options, and its queries is one that Grafana has, with a
// value that it may have.
func TestDashboardIsOfGrafanasSchema(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	d, err := read(text)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if err := d.Validate(); err != nil {
		t.Errorf("%s: %v", file, err)
	}
	if d.SchemaVersion < 36 || d.Uid == nil || *d.Uid != "slurm-vgpu" {
		t.Errorf("schema version %d, uid %v", d.SchemaVersion, d.Uid)
	}
	types := map[string]int{}
	queries := 0
	for _, p := range d.Panels {
		if p.Panel == nil {
			continue // a row
		}
		types[p.Panel.Type]++
		if p.Panel.Type != "row" && p.Panel.Options == nil {
			t.Errorf("panel %q: no options that a %s has", *p.Panel.Title, p.Panel.Type)
		}
		for _, target := range p.Panel.Targets {
			q, is := target.(prometheus.Dataquery)
			if pointer, also := target.(*prometheus.Dataquery); also {
				q, is = *pointer, true
			}
			if !is || q.Expr == "" {
				t.Errorf("panel %q: %T is no query of Prometheus", *p.Panel.Title, target)
			}
			queries++
		}
	}
	if types["stat"] == 0 || types["timeseries"] == 0 || types["table"] == 0 || queries < 20 {
		t.Errorf("%v, %d queries: are they found?", types, queries)
	}
}

// The models are strict: what Grafana has not is found, wherever it stands.
func TestSchemaFindsMistakes(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, breakIt := range map[string]func(d map[string]any){
		"a field of the dashboard": func(d map[string]any) { d["refreshes"] = "30s" },
		"a number for its title":   func(d map[string]any) { d["title"] = 7 },
		"an option of a panel":     func(d map[string]any) { panel(d, "stat")["options"].(map[string]any)["colour"] = "red" },
		"a field of a query":       func(d map[string]any) { target(panel(d, "timeseries"))["expression"] = "up" },
		"a position":               func(d map[string]any) { panel(d, "table")["gridPos"].(map[string]any)["width"] = 3 },
	} {
		var d map[string]any
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		breakIt(d)
		broken, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := read(broken); err == nil {
			t.Errorf("%s: not found", name)
		}
	}
}

func panel(d map[string]any, kind string) map[string]any {
	panels := d["panels"].([]any)
	i := slices.IndexFunc(panels, func(p any) bool { return p.(map[string]any)["type"] == kind })
	return panels[i].(map[string]any)
}

func target(p map[string]any) map[string]any { return p["targets"].([]any)[0].(map[string]any) }
