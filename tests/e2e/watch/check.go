// SPDX-License-Identifier: Apache-2.0

// Package watch looks at a cluster from outside of slurm-vgpu while jobs run.
// It asks slurmctld, reads gresd's files and the cards' own table of processes,
// with readers of its own, and holds every look against what was asked for.
// Judging is pure: a bad history is told as one (check_test.go).
package watch

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// full is one card, in hundredths.
const full = 100

// Claim is what one source says that a job holds of one card.
type Claim struct {
	Job    int
	Card   int    // -1: the source tells a count for the node, and no card
	Units  int    // hundredths of the card
	Memory uint64 // bytes; 0: the source does not tell
}

// Process is one entry of a card's own table, with the job that it belongs to.
type Process struct {
	PID  int
	Job  int // 0: of no job
	Card int
	Used uint64 // bytes
}

// Ask is what the submitter asked for, of each card.
type Ask struct {
	Units  int
	Memory uint64
}

// Look is one sample. Claims within a source were there at one moment; sources
// were read one after another.
type Look struct {
	At     time.Duration
	Slurm  []Claim
	Ledger []Claim // on disk, before the cards were looked at
	After  []Claim // on disk, after that
	Grants []Claim
	Cards  []Process
	Node   string // state of the node, "" when slurmctld did not answer
	Reason string // of a drain
}

// Node is what there is to give out.
type Node struct {
	Memory []uint64 // bytes of each card
	Asked  func(job int) (Ask, bool)
}

// Check returns what is wrong in one look, in words; nil for nothing.
func (n Node) Check(l Look) []string {
	var wrong []string
	for _, source := range []struct {
		name   string
		claims []Claim
	}{{"slurmctld", l.Slurm}, {"ledger", l.Ledger}, {"ledger", l.After}, {"grants", l.Grants}} {
		for _, w := range n.claims(source.claims) {
			wrong = append(wrong, source.name+": "+w)
		}
	}
	wrong = append(wrong, n.processes(l)...)
	if strings.Contains(l.Node, "DRAIN") || strings.Contains(l.Node, "FAIL") {
		wrong = append(wrong, fmt.Sprintf("node %s: %s", l.Node, l.Reason))
	}
	slices.Sort(wrong)
	return slices.Compact(wrong)
}

// claims adds up what a source has given of each card.
func (n Node) claims(claims []Claim) []string {
	var wrong []string
	units, memory, jobs := map[int]int{}, map[int]uint64{}, map[int][]int{}
	for _, c := range claims {
		if c.Card >= 0 && slices.Contains(jobs[c.Card], c.Job) {
			wrong = append(wrong, fmt.Sprintf("job %d has card %d twice", c.Job, c.Card))
		}
		units[c.Card] += c.Units
		memory[c.Card] += c.Memory
		jobs[c.Card] = append(jobs[c.Card], c.Job)
	}
	for _, card := range slices.Sorted(maps.Keys(jobs)) {
		switch {
		case card == -1 && units[card] > full*len(n.Memory):
			wrong = append(wrong, fmt.Sprintf("%d units of %d cards given to jobs %v", units[card], len(n.Memory), jobs[card]))
		case card == -1:
		case card >= len(n.Memory):
			wrong = append(wrong, fmt.Sprintf("card %d of jobs %v is none of %d", card, jobs[card], len(n.Memory)))
		case units[card] > full:
			wrong = append(wrong, fmt.Sprintf("card %d: %d %% given to jobs %v", card, units[card], jobs[card]))
		case memory[card] > n.Memory[card]:
			wrong = append(wrong, fmt.Sprintf("card %d: %d of %d bytes given to jobs %v", card, memory[card], n.Memory[card], jobs[card]))
		}
	}
	return wrong
}

// processes holds what runs on the cards against what was asked for and what
// the sources say.
func (n Node) processes(l Look) []string {
	var wrong []string
	asked, used := make([]Ask, len(n.Memory)), make([]uint64, len(n.Memory))
	seen := map[[2]int]bool{}
	for _, p := range l.Cards {
		used[p.Card] += p.Used
		key := [2]int{p.Job, p.Card}
		if seen[key] || p.Job == 0 {
			continue
		}
		seen[key] = true
		ask, known := n.Asked(p.Job)
		if !known {
			wrong = append(wrong, fmt.Sprintf("card %d: process %d of job %d, which asked for nothing", p.Card, p.PID, p.Job))
		}
		asked[p.Card].Units += ask.Units
		asked[p.Card].Memory += ask.Memory
		// A job that has a whole card from Slurm needs no grant to be alone there.
		if !holds(l.Ledger, p.Job, p.Card) && !holds(l.After, p.Job, p.Card) && !slices.Contains(l.Slurm, Claim{Job: p.Job, Card: p.Card, Units: full}) {
			wrong = append(wrong, fmt.Sprintf("card %d: process %d of job %d, to which gresd gave %v", p.Card, p.PID, p.Job, cardsOf(l.After, p.Job)))
		}
		if cards := cardsOf(l.Slurm, p.Job); len(cards) > 0 && !slices.Contains(cards, -1) && !slices.Contains(cards, p.Card) {
			wrong = append(wrong, fmt.Sprintf("card %d: process %d of job %d, to which slurmctld gave %v", p.Card, p.PID, p.Job, cards))
		}
	}
	for card, memory := range n.Memory {
		if asked[card].Units > full {
			wrong = append(wrong, fmt.Sprintf("card %d: processes of jobs that asked for %d %%", card, asked[card].Units))
		}
		if asked[card].Memory > memory {
			wrong = append(wrong, fmt.Sprintf("card %d: processes of jobs that asked for %d of %d bytes", card, asked[card].Memory, memory))
		}
		if used[card] > memory {
			wrong = append(wrong, fmt.Sprintf("card %d: %d of %d bytes used", card, used[card], memory))
		}
	}
	return wrong
}

func holds(claims []Claim, job, card int) bool {
	return slices.Contains(cardsOf(claims, job), card)
}

func cardsOf(claims []Claim, job int) []int {
	var cards []int
	for _, c := range claims {
		if c.Job == job {
			cards = append(cards, c.Card)
		}
	}
	return cards
}

// Job is one submitted job, or a task of an array.
type Job struct {
	Name string
	Ends []string // states in which it may end; "": it may be unknown
	Ran  bool     // a job that COMPLETED must have said so
}

// Lost returns what is wrong at the end: jobs that did not end, that ended in
// another state than they may, or whose program did not run. ended has the final
// state by name, ran the names that programs wrote.
func Lost(jobs []Job, ended map[string]string, ran map[string]bool) []string {
	var wrong []string
	for _, j := range jobs {
		state, known := ended[j.Name]
		switch {
		case !known && slices.Contains(j.Ends, ""):
		case !known:
			wrong = append(wrong, fmt.Sprintf("job %s has no end", j.Name))
		case !slices.Contains(j.Ends, state):
			wrong = append(wrong, fmt.Sprintf("job %s ended %s, want %s", j.Name, state, strings.Join(j.Ends, " or ")))
		case j.Ran && state == "COMPLETED" && !ran[j.Name]:
			wrong = append(wrong, fmt.Sprintf("job %s is COMPLETED, and its program never ran", j.Name))
		}
	}
	return wrong
}
