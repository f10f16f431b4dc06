// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/page"
)

// level is what stops an attack; docs/security.md explains them.
type level string

const (
	kernel    level = "kernel"       // rights between users, which nothing of ours may weaken
	slurm     level = "Slurm"        // its credentials and device cgroup
	library   level = "library"      // what libvgpu itself refuses to do
	namespace level = "2 namespaced" // mounts of the SPANK plugin
	rights    level = "gresd"        // rights of its files, who may ask for what, bounds of what it takes
	audited   level = "3 audited"    // not prevented: found within seconds, and by policy killed
	nothing   level = "**not stopped**"
)

var levels = []level{kernel, slurm, library, namespace, rights, audited, nothing}

// attack is one row of the table.
type attack struct {
	name string // what is tried
	by   level
	left string // what stays possible, in words of the page; "" for nothing
	run  func(s *siege) tally
}

// tally is what came of an attack, as an agent reports it.
type tally struct {
	Tried   int      `json:"tried"`
	Stopped int      `json:"stopped"`
	Through []string `json:"through,omitempty"` // what was not stopped, the first of them
	Said    string   `json:"said,omitempty"`    // measured besides
}

const mostThrough = 20

// note counts one try. What got through is named.
func (t *tally) note(stopped bool, format string, args ...any) {
	t.Tried++
	if stopped {
		t.Stopped++
	} else if len(t.Through) < mostThrough {
		t.Through = append(t.Through, fmt.Sprintf(format, args...))
	}
}

// denied counts a try that must end with an error.
func (t *tally) denied(err error, format string, args ...any) { t.note(err != nil, format, args...) }

func (t *tally) add(o tally) {
	t.Tried, t.Stopped = t.Tried+o.Tried, t.Stopped+o.Stopped
	t.Through = append(t.Through, o.Through...)
	t.Said = strings.TrimPrefix(t.Said+"; "+o.Said, "; ")
}

// attacks in the order in which they are tried; those of jobAttacks at once, because
// they mostly wait for Slurm.
func attacks() []attack {
	return slices.Concat(fileAttacks, processAttacks, socketAttacks, cacheAttacks, jobAttacks, floodAttacks, pathAttacks)
}

// TestHostileUser tries every attack on one node, with jobs of others on it. After
// each, gresd must be the same process and answer root at once, the attacked
// job must have what it had, and the node must take jobs.
func TestHostileUser(t *testing.T) {
	s := besiege(t)
	sum := map[level]tally{}
	var mu sync.Mutex
	try := func(t *testing.T, a attack) {
		began, s := time.Now(), s.of(t)
		got := a.run(s)
		s.unharmed()
		judge(t, a, got)
		mu.Lock()
		all := sum[a.by]
		all.Tried, all.Stopped = all.Tried+got.Tried, all.Stopped+got.Stopped
		sum[a.by] = all
		mu.Unlock()
		t.Logf("%s: %d tried, %d stopped, %.1f s; %s", a.by, got.Tried, got.Stopped, time.Since(began).Seconds(), got.Said)
	}
	one := func(attacks []attack) {
		for _, a := range attacks {
			t.Run(a.name, func(t *testing.T) { try(t, a) })
		}
	}
	one(slices.Concat(fileAttacks, processAttacks, socketAttacks, cacheAttacks))
	t.Run("jobs", func(t *testing.T) {
		for _, a := range jobAttacks {
			t.Run(a.name, func(t *testing.T) { t.Parallel(); try(t, a) })
		}
	})
	one(slices.Concat(floodAttacks, pathAttacks))
	s.honestJob()
	tried, stopped := 0, 0
	for _, l := range levels {
		t.Logf("%-16s %6d tried, %6d stopped", strings.Trim(string(l), "*"), sum[l].Tried, sum[l].Stopped)
		tried, stopped = tried+sum[l].Tried, stopped+sum[l].Stopped
	}
	t.Logf("%d attacks, %d tries: %d stopped, %d not", len(attacks()), tried, stopped, tried-stopped)
	page.Check(t, "../../../docs/security.md", "attacks", "go test ./tests/e2e/hostile -update", table(), *update)
}

// judge holds what came out against what the page says.
func judge(t *testing.T, a attack, got tally) {
	t.Helper()
	switch {
	case got.Tried == 0:
		t.Error("nothing was tried")
	case a.by == nothing && got.Stopped == got.Tried:
		t.Errorf("all %d tries were stopped: want the page to say by what", got.Tried)
	case a.by != nothing && got.Stopped != got.Tried:
		t.Errorf("%d of %d tries were not stopped by %q:\n%s", got.Tried-got.Stopped, got.Tried, a.by, strings.Join(got.Through, "\n"))
	}
}

// table is that of docs/security.md. An attack without a row, or a row without an
// attack, fails the test.
func table() string {
	var b strings.Builder
	b.WriteString("| attack | stopped by | what is left |\n|---|---|---|\n")
	for _, a := range attacks() {
		left := a.left
		if left == "" {
			left = "–"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", a.name, a.by, left)
	}
	return b.String()
}

// agentName is what the test program is called where users run it.
const agentName = "vgpu-hostile"

// agents are the attackers, by the first argument of the program.
var agents = map[string]func(args []string) tally{}

func agent(args []string) {
	run := agents[args[0]]
	if run == nil {
		fmt.Fprintf(os.Stderr, "%s: no such attack\n", args[0])
		os.Exit(2)
	}
	if err := json.NewEncoder(os.Stdout).Encode(run(args[1:])); err != nil {
		os.Exit(1)
	}
}
