// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	dashboardFile = "../../etc/grafana/slurm-vgpu.json"
	rulesFile     = "../../etc/prometheus/vgpu.rules.yml"
)

// dashboard is what these tests need of Grafana's format.
type dashboard struct {
	Panels     []panel `json:"panels"`
	Templating struct {
		List []struct {
			Name, Type, Definition string
		} `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID         int
	Type       string
	Title      string
	GridPos    struct{ X, Y, W, H int }
	Datasource struct{ Type, UID string }
	Targets    []struct{ RefID, Expr string }
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d dashboard) queries() []string {
	var all []string
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	return all
}

// What Grafana's import refuses or shows as an empty panel. tests/grafana holds it against the
// models of Grafana's schema.
func TestDashboardIsWellFormed(t *testing.T) {
	d := readDashboard(t)
	ids := map[int]string{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if other, twice := ids[p.ID]; twice {
			t.Errorf("panels %q and %q have the id %d", other, p.Title, p.ID)
		}
		ids[p.ID] = p.Title
		g := p.GridPos
		if g.X < 0 || g.W < 1 || g.H < 1 || g.X+g.W > 24 {
			t.Errorf("panel %q is not within 24 columns", p.Title)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("panels %q and %q overlap", other, p.Title)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("panel %q has %d queries to %q: want some to ${datasource}", p.Title, len(p.Targets), p.Datasource.UID)
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if target.Expr == "" || refs[target.RefID] {
				t.Errorf("panel %q: query %q is empty or not the only one of its letter", p.Title, target.RefID)
			}
			refs[target.RefID] = true
		}
	}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
	}
	for _, q := range d.queries() {
		for _, m := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(q, -1) {
			if !variables[m[1]] {
				t.Errorf("%s: the dashboard has no variable %s", q, m[1])
			}
		}
	}
	if len(d.queries()) < 15 {
		t.Errorf("%d queries", len(d.queries()))
	}
}

// What the views name is what gresd exports.
func TestViewsNameMetricsThatExist(t *testing.T) {
	exported := map[string]bool{}
	families, err := newExample().registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		exported[f.GetName()] = true
		if f.GetType().String() == "HISTOGRAM" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				exported[f.GetName()+suffix] = true
			}
		}
	}
	for _, file := range []string{dashboardFile, rulesFile, strings.Replace(rulesFile, ".yml", ".test.yml", 1)} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`\bvgpu_[a-z_]+`).FindAllString(string(text), -1)
		if len(names) < 10 {
			t.Errorf("%s names %d metrics", file, len(names))
		}
		for _, name := range names {
			if !exported[name] {
				t.Errorf("%s: gresd exports no %s", file, name)
			}
		}
	}
}

// Prometheus' own tools read the rules and run their tests.
func TestAlertRules(t *testing.T) {
	for _, args := range [][]string{
		{"check", "rules", filepath.Base(rulesFile)},
		{"test", "rules", strings.Replace(filepath.Base(rulesFile), ".yml", ".test.yml", 1)},
	} {
		cmd := exec.Command("promtool", args...)
		cmd.Dir = filepath.Dir(rulesFile)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	rules, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(strings.Replace(rulesFile, ".yml", ".test.yml", 1))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1) {
		if n := strings.Count(string(tests), "alertname: "+m[1]); n < 2 {
			t.Errorf("%s: %d tests: want that it fires, and that it does not", m[1], n)
		}
	}
}

// A real Prometheus scrapes an example, and finds series for every query of the
// dashboard.
func TestDashboardOnPrometheus(t *testing.T) {
	m := newExample()
	gresd := httptest.NewServer(promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	defer gresd.Close()
	api := startPrometheus(t, gresd.Listener.Addr().String())

	replace := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*", "$user", ".*")
	deadline := time.Now().Add(time.Minute)
	for _, q := range readDashboard(t).queries() {
		q = replace.Replace(q)
		for {
			n, err := ask(api, q)
			if err == nil && n > 0 {
				break
			}
			// A rate wants two scrapes; what is wrong stays so.
			if time.Now().After(deadline) {
				t.Errorf("%s: %d series, %v", q, n, err)
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// startPrometheus runs one that scrapes target, and returns the address of its
// API.
func startPrometheus(t *testing.T, target string) string {
	t.Helper()
	dir := t.TempDir()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	conf := fmt.Sprintf("scrape_configs:\n- job_name: gresd\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  static_configs: [{targets: [%q]}]\n", target)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file="+dir+"/prometheus.yml",
		"--storage.tsdb.path="+dir+"/data", "--web.listen-address="+address)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: want Debian's package prometheus (tools/deps test)", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s", text)
		}
	})
	return "http://" + address
}

// ask returns the number of series that a query finds.
func ask(api, query string) (int, error) {
	resp, err := http.Get(api + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var answer struct {
		Error string
		Data  struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return 0, err
	}
	if answer.Error != "" {
		return 0, fmt.Errorf("prometheus: %s", answer.Error)
	}
	return len(answer.Data.Result), nil
}
