// SPDX-License-Identifier: Apache-2.0

package top

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

func ptr[T any](v T) *T { return &v }

// example is a node with four cards and some jobs, one of whom is not known much of.
func example(i int) Sample {
	at := time.Date(2026, 11, 22, 12, 34, 56, 0, time.UTC)
	s := Sample{At: at, Status: wire.Status{Node: "n1", Started: at.Add(-3725 * time.Second), Problems: []string{"card 3: lost"}}}
	for k := range 4 {
		s.Status.Cards = append(s.Status.Cards, wire.Card{
			UUID: fmt.Sprint("GPU-", k), Index: k, Type: "h200", Healthy: k < 3, Why: "the card is lost", Share: uint32(30 * k), ComputePercent: ptr(33.3 * float64(k)), Throttled: k / 2,
		})
	}
	s.Jobs = []wire.Job{
		{JobID: 1234567, User: "alice", Mode: "hard", Priority: "normal", Account: "physics", Cards: []wire.JobCard{{
			UUID: "GPU-1", Index: 1, Share: 30, Cores: 30, LimitBytes: 8 << 30, UsedBytes: ptr(uint64(79 << 30 / 10)),
			GPUSeconds: ptr(3723.4), Processes: ptr(2), SliceUS: 6000, GotPercent: ptr(29.6), ThrottledPercent: ptr(61.2),
			JobUse: wire.JobUse{LimitedBy: "neighbors"},
		}}},
		{JobID: 42, User: "a-very-long-name", Mode: "soft", Ceiling: 80, Priority: "high", Cards: []wire.JobCard{{
			UUID: "GPU-1", Index: 1, Share: 70, Cores: 70, LimitBytes: 141 << 30, UsedBytes: ptr(uint64(20 << 30)),
			GPUSeconds: ptr(12.0), Processes: ptr(1), SliceUS: 14000, GotPercent: ptr(float64(20 + 15*i)), ThrottledPercent: ptr(0.0),
		}, {UUID: "GPU-2", Index: 2, Share: 70, Cores: 70, LimitBytes: 512 << 20}}},
		{JobID: 9, UID: 33, State: "refused"},
	}
	return s
}

func view(samples int) *View {
	v := &View{}
	for i := range samples {
		v.Add(example(i))
	}
	return v
}

func textOf(lines []Line) string {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(l.String() + "\n")
	}
	return b.String()
}

func TestScreensAreAsWeLeftThem(t *testing.T) {
	for _, size := range []struct{ width, height int }{{80, 24}, {200, 50}} {
		got := textOf(view(6).Lines(size.width, size.height))
		path := filepath.Join("testdata", fmt.Sprintf("%dx%d.txt", size.width, size.height))
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || got != string(want) {
			t.Errorf("%s: %v: got\n%s(go test -update writes it anew)", path, err, got)
		}
	}
}

// Whatever the size, nothing sticks out, and the keys stay on the last line.
func TestEverySizeFits(t *testing.T) {
	for _, ascii := range []bool{false, true} {
		for width := 1; width <= 210; width += 7 {
			for height := 1; height <= 60; height += 3 {
				v := view(3)
				v.ASCII = ascii
				lines := v.Lines(width, height)
				if len(lines) > height {
					t.Fatalf("%d×%d: %d lines", width, height, len(lines))
				}
				for _, l := range lines {
					if n := utf8.RuneCountInString(textOf([]Line{l})) - 1; n > width {
						t.Fatalf("%d×%d: %d columns: %s", width, height, n, l)
					}
					if ascii && len(l.String()) != utf8.RuneCountInString(l.String()) {
						t.Fatalf("%d×%d: not ASCII: %s", width, height, l)
					}
				}
				if height >= 12 && width >= 6 && !strings.HasPrefix(lines[len(lines)-1].String(), "q quit") {
					t.Fatalf("%d×%d: the last line is %q", width, height, lines[len(lines)-1])
				}
			}
		}
	}
}

// first is the job of the first row.
func first(v *View) uint32 { return v.Rows()[0].Job.JobID }

func TestKeysSortAndQuit(t *testing.T) {
	v := view(1) // job 42 has 20 % of card 1, job 1234567 29.6 %
	for _, c := range []struct {
		key  rune
		want uint32
	}{{'g', 1234567}, {'m', 42}, {'t', 1234567}, {'j', 42}, {'r', 1234567}, {'r', 42}, {'u', 42}, {'g', 1234567}, {'x', 1234567}} {
		if !v.Key(c.key) || first(v) != c.want {
			t.Errorf("key %c: job %d is first, want %d", c.key, first(v), c.want)
		}
	}
	if v.Key('q') {
		t.Error("q does not quit")
	}
}

func TestManyJobsScroll(t *testing.T) {
	s := example(0)
	for i := range 100 {
		s.Jobs = append(s.Jobs, wire.Job{JobID: uint32(1000 + i), User: "x", Cards: []wire.JobCard{{UUID: "GPU-0", LimitBytes: 1 << 30}}})
	}
	v := &View{Order: "job"}
	v.Add(s)
	if got := textOf(v.Lines(80, 24)); !strings.Contains(got, "rows 1-") || !strings.Contains(got, " 1000 x") || strings.Contains(got, " 1099 x") {
		t.Errorf("got\n%s", got)
	}
	v.Scroll(1000)
	if got := textOf(v.Lines(80, 24)); !strings.Contains(got, "of 103") || strings.Contains(got, " 1000 x") || !strings.Contains(got, " 1099 x") {
		t.Errorf("got\n%s", got)
	}
}

func TestHistoryIsOfThisJobOnly(t *testing.T) {
	v := view(100)
	if n := len(v.history[rowKey{"n1", 42, "GPU-1"}]); n != longest {
		t.Errorf("%d samples are kept, want %d", n, longest)
	}
	s := example(0)
	s.Jobs = s.Jobs[:1]
	v.Add(s)
	if len(v.history) != 1 {
		t.Errorf("history of %d rows, want that of the living job", len(v.history))
	}
}

func TestNothingYetAndNoJobs(t *testing.T) {
	v := &View{}
	if got := textOf(v.Lines(80, 24)); !strings.Contains(got, "asking gresd") {
		t.Errorf("got %q", got)
	}
	v.Problem = "connect to gresd: no such file"
	if got := textOf(v.Lines(20, 24)); got != "connect to gresd: no\n" {
		t.Errorf("got %q", got)
	}
	v.Add(Sample{})
	if got := textOf(v.Lines(80, 24)); !strings.Contains(got, "no job has a share") {
		t.Errorf("got %q", got)
	}
}

// Jobs of several nodes have equal cards and numbers of their own; a node that says nothing is told.
func TestSeveralNodesAreOneView(t *testing.T) {
	other := example(0)
	other.Status.Node = "n2"
	v := &View{Nodes: true, Order: "job"}
	for range 3 {
		v.Add(example(0), other, Sample{Status: wire.Status{Node: "n3", Problems: []string{"no answer"}}})
	}
	if n := len(v.history[rowKey{"n2", 42, "GPU-1"}]); n != 3 {
		t.Errorf("%d samples of the second node are kept, want 3", n)
	}
	got := textOf(v.Lines(80, 40))
	for _, want := range []string{"nodes 3  rows 6", "node n3: no answer", "      42 n1           ", "      42 n2           ", "n2           card 1"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	for width := 1; width <= 210; width += 7 {
		for height := 1; height <= 60; height += 3 {
			lines := v.Lines(width, height)
			for _, l := range lines {
				if n := utf8.RuneCountInString(textOf([]Line{l})) - 1; n > width || len(lines) > height {
					t.Fatalf("%d×%d: %d lines, %d columns: %s", width, height, len(lines), n, l)
				}
			}
		}
	}
	if rows, silent := v.Rows(), v.Silent(); len(rows) != 2*3 || rows[0].Node != "n1" || len(silent) != 1 || silent[0].Status.Node != "n3" {
		t.Errorf("got %+v, silent %+v", rows, silent)
	}
}

// String is the line without its looks.
func (l Line) String() string {
	var text strings.Builder
	for _, s := range l {
		text.WriteString(s.Text)
	}
	return strings.TrimRight(text.String(), " ")
}
