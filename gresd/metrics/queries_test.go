// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// A real Prometheus understands the queries of docs/metrics.md and of the alerts, and finds series for
// the former.
func TestQueriesOnPrometheus(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(page), "## Five questions\n")
	part, _, _ = strings.Cut(part, "\n## ")
	var queries []string
	for _, m := range regexp.MustCompile("(?m)^    (.+)$|`(sum by [^`]+)`").FindAllStringSubmatch(part, -1) {
		queries = append(queries, m[1]+m[2])
	}
	if n := strings.Count(part, "?**"); n != 5 || len(queries) != 10 {
		t.Fatalf("%d questions and %d queries: are they found?", n, len(queries))
	}
	rules, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)expr: (?:>-\n((?: {10}.+\n)+)|(.+)\n)`).FindAllStringSubmatch(string(rules), -1) {
		queries = append(queries, strings.Join(strings.Fields(m[1]+m[2]), " "))
	}
	if len(queries) < 10+13 {
		t.Fatalf("%d queries with those of alerts: are they found?", len(queries))
	}

	gresd := httptest.NewServer(promhttp.HandlerFor(newExample().registry, promhttp.HandlerOpts{}))
	defer gresd.Close()
	api := startPrometheus(t, gresd.Listener.Addr().String())
	deadline := time.Now().Add(time.Minute)
	for i, q := range queries {
		for {
			n, err := ask(api, q)
			// Whether an alert has series is what promtool tests: here, that it is understood.
			empty := i >= 10 || strings.Contains(q, "> 0")
			if err == nil && (n > 0 || empty) {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s: %d series, %v", q, n, err)
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}
