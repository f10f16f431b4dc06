// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// documented is a row of docs/metrics.md, or what the registry has of it.
type documented struct{ kind, unit, labels string }

// ofAJob are the labels of all series of jobs. The page says so once.
const ofAJob = "`account`, `gpu_uuid`, `job_id`, `partition`, `user`"

// units are the last words of names; other names count things.
var units = []string{"bytes", "ratio", "seconds"}

func unitOf(name string, kind string) string {
	stem := strings.TrimSuffix(name, "_total")
	for _, unit := range units {
		if strings.HasSuffix(stem, "_"+unit) {
			return unit
		}
	}
	if strings.HasSuffix(name, "_info") {
		return "always 1"
	}
	if kind == "counter" || strings.HasSuffix(name, "s") {
		return "count"
	}
	return "0 or 1"
}

var row = regexp.MustCompile("^\\| `(vgpu_[a-z_]+)` \\| ([a-z]+) \\| ([a-z0-9 ]+) \\| ([^|]*) \\| ([^|]+) \\|$")

// The document and the registry have the same metrics, both ways.
func TestEveryMetricIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]documented{}
	for line := range strings.Lines(string(text)) {
		parts := row.FindStringSubmatch(strings.TrimSpace(line))
		switch {
		case parts == nil && strings.HasPrefix(line, "| `vgpu_"):
			t.Errorf("not a row of name, type, unit, labels, meaning: %s", line)
		case parts == nil:
		case said[parts[1]] != documented{}:
			t.Errorf("%s is documented twice", parts[1])
		default:
			said[parts[1]] = documented{parts[2], parts[3], parts[4]}
		}
	}
	m := newExample()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]documented{}
	for _, f := range families {
		labels := map[string]bool{}
		for _, metric := range f.GetMetric() {
			for _, l := range metric.GetLabel() {
				labels[l.GetName()] = true
			}
		}
		names := "–" // of a job, pid and by come last
		last := ""
		for _, label := range []string{"pid", "by"} {
			if labels[label] && labels["job_id"] {
				delete(labels, label)
				last = ", `" + label + "`"
			}
		}
		if len(labels) > 0 {
			names = "`" + strings.Join(slices.Sorted(maps.Keys(labels)), "`, `") + "`"
		}
		names = strings.Replace(names, ofAJob, "of a job", 1) + last
		kind := strings.ToLower(f.GetType().String())
		have[f.GetName()] = documented{kind, unitOf(f.GetName(), kind), names}
	}
	for name, got := range have {
		if want, is := said[name]; !is {
			t.Errorf("docs/metrics.md lacks %s: | `%s` | %s | %s | %s | … |", name, name, got.kind, got.unit, got.labels)
		} else if got != want {
			t.Errorf("docs/metrics.md says of %s %+v, it is %+v", name, want, got)
		}
	}
	for name := range said {
		if _, is := have[name]; !is {
			t.Errorf("docs/metrics.md has %s, which there is not", name)
		}
	}
	// The example leaves nothing out.
	for _, name := range described(m) {
		if _, is := have[name]; !is {
			t.Errorf("newExample has no %s", name)
		}
	}
	if !strings.Contains(string(text), "("+ofAJob+")") {
		t.Errorf("docs/metrics.md does not say that the labels of a job are %s", ofAJob)
	}
	// Other systems' series are matched to ours.
	for _, name := range regexp.MustCompile(`\bvgpu_[a-z_]+`).FindAllString(string(text), -1) {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if _, is := have[base]; !is && !strings.HasSuffix(name, "_") {
			t.Errorf("docs/metrics.md speaks of %s, which there is not", name)
		}
	}
}

// described are the names of all that is registered, with or without a value.
func described(m *Metrics) []string {
	descs := make(chan *prometheus.Desc)
	go func() {
		m.registry.Describe(descs)
		close(descs)
	}()
	var names []string
	for d := range descs {
		names = append(names, regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1])
	}
	return names
}
