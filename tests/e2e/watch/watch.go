// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/records"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
)

// Paths are where the sources of a node are.
type Paths struct {
	Ledger string // gresd's durable record
	Jobs   string // folder of job folders
	Cards  string // state of the simulated cards
}

// Watcher takes looks at a node until it is stopped, and judges each.
type Watcher struct {
	paths Paths
	cards cards
	node  Node
	sim   *simgpu.Machine
	began time.Time

	mu    sync.Mutex
	names map[int]string // of jobs
	wrong []string       // in the order in which they were first seen
	seen  map[string]bool
	busy  int // looks with at least one process on a card
	looks int
	most  int // processes in one look

	stop chan struct{}
	done sync.WaitGroup
}

// Start begins to look. asked tells what a job asked for, by its name.
func Start(paths Paths, every time.Duration, asked func(name string) (Ask, bool)) (*Watcher, error) {
	sim, err := simgpu.Open(paths.Cards)
	if err != nil {
		return nil, err
	}
	w := &Watcher{
		paths: paths, sim: sim, cards: cards{}, began: time.Now(),
		names: map[int]string{}, seen: map[string]bool{}, stop: make(chan struct{}),
	}
	w.node.Asked = func(job int) (Ask, bool) { return asked(w.name(job)) }
	for _, card := range sim.Status() {
		w.cards[card.UUID] = card.Index
		w.node.Memory = append(w.node.Memory, card.Memory)
	}
	w.done.Go(func() {
		for {
			select {
			case <-w.stop:
				return
			case <-time.After(every):
				w.look()
			}
		}
	})
	return w, nil
}

// Result is what a watcher has seen.
type Result struct {
	Looks, Busy int // all, and those with a process on a card
	Most        int // processes on the cards at once
	Wrong       []string
}

// Stop takes the last look and returns what was seen.
func (w *Watcher) Stop() Result {
	close(w.stop)
	w.done.Wait()
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	return Result{Looks: w.looks, Busy: w.busy, Most: w.most, Wrong: w.wrong}
}

// Processes are those on the cards now that belong to a job.
func (w *Watcher) Processes() []Process {
	var all []Process
	for _, p := range w.processes() {
		if p.Job != 0 {
			all = append(all, p)
		}
	}
	return all
}

func (w *Watcher) name(job int) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.names[job]
}

func (w *Watcher) look() {
	l := Look{At: time.Since(w.began)}
	var errs []error
	note := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	// slurmctld may be away; everything else is a file.
	if out, err := exec.Command("scontrol", "show", "job", "-d", "-o").Output(); err == nil {
		claims, names, err := ParseJobs(string(out))
		note("scontrol", err)
		l.Slurm = claims
		w.mu.Lock()
		for job, name := range names {
			w.names[job] = name
		}
		w.mu.Unlock()
	}
	if out, err := exec.Command("scontrol", "show", "node", "-o").Output(); err == nil {
		l.Node, l.Reason = nodeOf(string(out))
	}
	var err error
	l.Ledger, err = w.ledger()
	note("before", err)
	l.Cards = w.processes()
	l.After, err = w.ledger()
	note("after", err)
	l.Grants, err = w.cards.grants(w.paths.Jobs)
	note("grants", err)
	wrong := w.node.Check(l)
	if err := errors.Join(errs...); err != nil {
		wrong = append(wrong, err.Error())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	w.most = max(w.most, len(l.Cards))
	if len(l.Cards) > 0 {
		w.busy++
	}
	for _, what := range wrong {
		if !w.seen[what] {
			w.seen[what] = true
			w.wrong = append(w.wrong, fmt.Sprintf("after %s: %s", l.At.Round(time.Millisecond), what))
		}
	}
}

func (w *Watcher) ledger() ([]Claim, error) {
	all, err := records.Read(w.paths.Ledger)
	if err != nil {
		return nil, err
	}
	return w.cards.claims(all)
}

// processes are the entries of the cards' own table. A process that is gone when
// its job is looked for is left out.
func (w *Watcher) processes() []Process {
	var all []Process
	for _, card := range w.sim.Status() {
		for _, context := range card.Contexts {
			text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(context.PID), "environ"))
			if err != nil || len(text) == 0 {
				continue
			}
			p := Process{PID: context.PID, Card: card.Index, Used: context.MemUsed}
			values := map[string]string{}
			for _, entry := range strings.Split(string(text), "\x00") {
				name, value, _ := strings.Cut(entry, "=")
				values[name] = value
			}
			if p.Job, err = strconv.Atoi(values["SLURM_JOB_ID"]); err == nil {
				w.learn(p.Job, values["SLURM_JOB_NAME"])
			}
			all = append(all, p)
		}
	}
	return all
}

// learn takes a name from a process, where slurmctld has not told one yet.
func (w *Watcher) learn(job int, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.names[job]; !known {
		w.names[job] = name
	}
}

var nodeState = regexp.MustCompile(` State=(\S+) `)

func nodeOf(text string) (state, reason string) {
	if m := nodeState.FindStringSubmatch(text); m != nil {
		state = m[1]
	}
	_, reason, _ = strings.Cut(strings.TrimSpace(text), " Reason=")
	return state, reason
}

func inode(info os.FileInfo) uint64 {
	if stat, is := info.Sys().(*syscall.Stat_t); is {
		return stat.Ino
	}
	return 0
}
