// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// exampleReport is of a job of an hour that its own program held back, with 5 GiB of its 20 used.
func exampleReport() wire.Report {
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	ended := at.Add(time.Hour)
	return wire.Report{
		Node: "n1", Until: ended, Ended: &ended,
		Job: wire.Job{
			JobID: 7, User: `<script>"eve"`, Mode: "hard", Priority: "normal", Created: at, State: "granted", Messages: []string{"12:30 card 0 <is> ill"},
			Cards: []wire.JobCard{{
				Index: 0, Share: 50, Cores: 50, LimitBytes: 20 << 30, GPUSeconds: ptr(360.0),
				JobUse: wire.JobUse{AskedShare: 50, AskedCores: 50, LaunchesThrottled: ptr(uint64(12)), ThrottledSeconds: ptr(3.5), Refused: ptr(uint64(0))},
			}},
		},
		Cards: []wire.ReportCard{{PeakBytes: 9 << 29, LimitedBySeconds: map[string]float64{"program": 900, "limit": 100}}},
	}
}

func TestReportSaysWhatWouldHaveFitted(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*wire.Report)
		advice []string
		next   string
	}{
		"its own program": {
			func(*wire.Report) {},
			[]string{"used 4608 MiB at the most: 5 GiB would have fitted", "90% of the time: a share of 15% would have done"},
			"--gres=vgpu:15 --vgpu-mem=5G",
		},
		"its limits": {
			func(r *wire.Report) {
				r.Cards[0].LimitedBySeconds = map[string]float64{"limit": 900, "program": 100}
				*r.Job.Cards[0].Refused = 3
			},
			[]string{"Memory reached its limit, 20 GiB", "a larger share makes it faster", "--vgpu-mode=soft"},
			"--gres=vgpu:75 --vgpu-mem=25G",
		},
		"its neighbours": {
			func(r *wire.Report) {
				r.Cards[0].LimitedBySeconds = map[string]float64{"neighbors": 900}
				r.Cards[0].PeakBytes = 18 << 30
			},
			[]string{"Memory fits: 18 GiB of 20 GiB", "turns of its neighbors", "--vgpu-priority=high"},
			"--gres=vgpu:50 --vgpu-mem=20G",
		},
		"a short job": {
			func(r *wire.Report) { r.Cards[0] = wire.ReportCard{LimitedBySeconds: map[string]float64{"program": 2}} },
			[]string{"Too little was seen"},
			"",
		},
		"no cards": {func(r *wire.Report) { r.Job.Cards, r.Cards = nil, nil }, []string{"Too little was seen"}, ""},
		"fewer cards than it should have": {
			func(r *wire.Report) { r.Cards = nil }, []string{"Too little was seen"}, "",
		},
	} {
		r := exampleReport()
		c.change(&r)
		advice, next := advise(r)
		if next != c.next {
			t.Errorf("%s: next %q, want %q", name, next, c.next)
		}
		for _, want := range c.advice {
			if !strings.Contains(strings.Join(advice, "\n"), want) {
				t.Errorf("%s: no %q in %q", name, want, advice)
			}
		}
		readReport(r) // and nothing breaks
	}
}

// The page has no part from elsewhere, and nothing of a user's words is markup.
func TestReportIsOneFile(t *testing.T) {
	socket := serveRequests(t, func(req wire.Request) wire.Reply {
		if req.Op != wire.OpReport || req.JobID != 7 {
			return wire.Reply{Kind: wire.KindUser, Message: "none of yours"}
		}
		r := exampleReport()
		return wire.Reply{OK: true, Report: &r}
	})
	t.Chdir(t.TempDir())
	out, errs, code := run(t, "--socket", socket, "report", "7")
	if code != 0 || out != "vgpu-report-7.html\n" {
		t.Fatalf("exit %d: %s%s", code, out, errs)
	}
	text, err := os.ReadFile("vgpu-report-7.html")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, want := range []string{
		"<title>Job 7 of &lt;script&gt;&#34;eve&#34; on n1</title>", "card 0 &lt;is&gt; ill", "<code>--gres=vgpu:15 --vgpu-mem=5G</code>",
		"Memory, peak of the limit: 22.5%", `<rect class="bar" width="22.5"`, "Got of the card: 10%; the line is its share, 50%", `x1="50.0"`, "Limited by program: 90%",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if found := regexp.MustCompile(`<script|https?:|src=|<link|@import|ZgotmplZ`).FindString(strings.ReplaceAll(page, "Content-Security-Policy", "")); found != "" {
		t.Errorf("%q in the page", found)
	}
	out, _, code = run(t, "--socket", socket, "report", "7", "--text")
	narrow(t, out)
	for _, want := range []string{"15m0s, 90% of the time with work", "It was told: 12:30 card 0 <is> ill", "Next time: --gres=vgpu:15 --vgpu-mem=5G\n"} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("exit %d, no %q in\n%s", code, want, out)
		}
	}
	var reports []wire.Report
	out, _, _ = run(t, "--socket", socket, "report", "7", "--json")
	if err := json.Unmarshal([]byte(out), &reports); err != nil || len(reports) != 1 || reports[0].Cards[0].PeakBytes != 9<<29 {
		t.Errorf("%v: %s", err, out)
	}
	if out, _, code = run(t, "--socket", socket, "report", "7", "--output", "-"); code != 0 || !strings.HasPrefix(out, "<!DOCTYPE html>") {
		t.Errorf("exit %d: %s", code, out)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"8"}, 1, "none of yours"},
		{[]string{"7_1"}, 2, "want the number of a job"},
		{[]string{"7", "--text", "-o", "x"}, 2, "--text"},
		{[]string{"7", "-o", filepath.Join("no", "such")}, 1, "no such file"},
	} {
		if _, errs, code := run(t, append([]string{"--socket", socket, "report"}, c.args...)...); code != c.code || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit %d: %s", c.args, code, errs)
		}
	}
}
