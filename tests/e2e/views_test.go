// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

var plainWord = regexp.MustCompile(`[A-Za-z][A-Za-z_./=:-]{2,}`)

// Every view fits a terminal: no line goes on over its edge, and nothing that a
// pipe is told is cut off, but for columns that the view says it has left out.
func TestViewsOnATerminal(t *testing.T) {
	needsTmux(t)
	s := up(t, oneCard)
	a := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=20G --vgpu-mode=soft:80", cluster.BusyScript(300))
	b := s.submit(bob, "--gres=vgpu:25", cluster.BusyScript(300))
	s.running(a, b)
	c := s.submit(carol, "--gres=vgpu:60", "true")
	s.eventually(shortWait, "both jobs have a process, the third waits", func() bool {
		return strings.Contains(s.As("root", "vgpuctl", "status").Out, "Resources") && strings.Count(s.As("root", "vgpuctl", "ps").Out, "\n") == 2
	})
	if r := s.As("root", "vgpuctl", "cordon", "0", "the", "fan", "is", "too", "loud", "and", "somebody", "comes", "on", "Monday", "morning"); r.Code != 0 {
		t.Fatal(r)
	}
	leftOut := regexp.MustCompile(`\(a wider terminal, or --json, also\s+shows ([A-Z, \n]+)\)`)
	for _, size := range []struct{ width, height int }{{80, 24}, {200, 50}} {
		for _, view := range []struct {
			command string
			spare   []string // columns that 80 have no room for
		}{
			{"status", []string{"UUID"}},
			{"jobs", []string{"SLICE"}},
			{"ps", nil},
			{"topo", nil},
			{fmt.Sprintf("explain %d", a), nil},
			{"explain --gres=vgpu:30 --vgpu-mem=20G --vgpu-mode=soft:80 --vgpu-priority=high", nil},
			{"doctor", nil},
			{"top --once", []string{"SLICE"}},
		} {
			t.Run(fmt.Sprintf("%dx%d %s", size.width, size.height, strings.Fields(view.command)[0]), func(t *testing.T) {
				piped := s.As("root", append([]string{"vgpuctl"}, strings.Fields(view.command)...)...).Out
				x := site{s.Cluster, t}.open(size.width, size.height, "vgpuctl "+view.command)
				x.shows("ended with ")
				shown, joined := x.tmux("capture-pane", "-p", "-S", "-"), x.tmux("capture-pane", "-p", "-J", "-S", "-")
				x.close()
				if trim(shown) != trim(joined) {
					t.Errorf("lines go on over the edge:\n%s", shown)
				}
				var left []string
				if m := leftOut.FindStringSubmatch(shown); m != nil {
					left = strings.Split(strings.Join(strings.Fields(m[1]), " "), ", ")
				}
				want := view.spare
				if size.width > 80 {
					want = nil
				}
				if len(left) < len(want) || !slices.Equal(left[:len(want)], want) || want == nil && len(left) > 0 {
					t.Errorf("left out %q, want %q:\n%s", left, want, shown)
				}
				lines := strings.Split(strings.TrimRight(piped, "\n"), "\n")
				if want != nil { // values of columns that are left out are looked for at 200
					lines = slices.DeleteFunc(lines, func(line string) bool { return regexp.MustCompile(`^(CARD|JOB|\d+) `).MatchString(line) })
				}
				flat := strings.Join(strings.Fields(shown), "")
				for _, line := range lines {
					for _, word := range plainWord.FindAllString(line, -1) {
						if !strings.Contains(flat, word) {
							t.Errorf("%q of %q is not shown:\n%s", word, line, shown)
						}
					}
				}
			})
		}
	}
	if r := s.As("root", "vgpuctl", "uncordon", "0"); r.Code != 0 {
		t.Fatal(r)
	}
	s.cancel(carol, c)
	s.cancel(alice, a)
	s.cancel(bob, b)
}

// trim takes away blanks at the ends of lines, which tmux keeps when it joins them.
func trim(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n "), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}
