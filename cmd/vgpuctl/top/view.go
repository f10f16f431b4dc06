// SPDX-License-Identifier: Apache-2.0

// Package top is the live view of a node: what its cards and the jobs on them do.
// [View] collects samples, [View.Lines] is a pure function of them and of the size
// of the terminal, and [Run] shows it on one.
package top

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Sample is one answer of gresd. Its tags are those of vgpuctl top --once --json.
type Sample struct {
	At     time.Time   `json:"time"`
	Status wire.Status `json:"status"`
	Jobs   []wire.Job  `json:"jobs"`
}

// Order is what rows are sorted by.
type Order int

// Orders, in the order in which the key for the next one goes.
const (
	ByCompute Order = iota // what it got of the card
	ByMemory
	ByWait
	ByJob
	ByUser
	orders
)

func (o Order) String() string { return [orders]string{"compute", "memory", "wait", "job", "user"}[o] }

// ParseOrder reads a word of [Orders].
func ParseOrder(word string) (Order, bool) {
	i := slices.Index(Orders(), word)
	return Order(max(i, 0)), i >= 0
}

// Orders are the words for orders.
func Orders() []string {
	var words []string
	for o := range orders {
		words = append(words, o.String())
	}
	return words
}

// longest is how many samples the history of a row has: as many as the widest
// sparkline shows.
const longest = 60

// View is what is shown. It is for one goroutine.
type View struct {
	Order   Order
	Reverse bool
	Problem string // why there is no newer sample
	ASCII   bool   // the terminal shows no other characters
	Nodes   bool   // of several nodes, each of which is named

	samples []Sample
	some    bool
	first   int // row at the top
	history map[rowKey][]float64
}

type rowKey struct {
	node string
	job  uint32
	card string
}

// row is one job on one card.
type row struct {
	node string
	job  wire.Job
	card wire.JobCard
}

func (r row) key() rowKey { return rowKey{r.node, r.job.JobID, r.card.UUID} }

// Add takes a new sample of each node.
func (v *View) Add(samples ...Sample) {
	v.samples, v.some, v.Problem = samples, true, ""
	next := map[rowKey][]float64{}
	for _, r := range v.rows() {
		past := append(slices.Clone(v.history[r.key()]), value(r.card.ComputePercent))
		next[r.key()] = past[max(0, len(past)-longest):]
	}
	v.history = next
}

// Scroll moves the rows by n, as far as there are any.
func (v *View) Scroll(n int) { v.first = max(0, min(v.first+n, len(v.rows())-1)) }

// rows are the cards of all jobs, sorted. What is not known counts as nothing.
func (v *View) rows() []row {
	var rows []row
	for _, s := range v.samples {
		for _, j := range s.Jobs {
			for _, c := range j.Cards {
				rows = append(rows, row{s.Status.Node, j, c})
			}
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		var by int
		switch v.Order {
		case ByCompute:
			by = cmp.Compare(value(b.card.ComputePercent), value(a.card.ComputePercent))
		case ByMemory:
			by = cmp.Compare(value(b.card.UsedBytes), value(a.card.UsedBytes))
		case ByWait:
			by = cmp.Compare(value(b.card.WaitPercent), value(a.card.WaitPercent))
		case ByUser:
			by = cmp.Compare(a.job.Who(), b.job.Who())
		}
		by = cmp.Or(by, cmp.Compare(a.job.JobID, b.job.JobID), cmp.Compare(a.node, b.node), cmp.Compare(a.card.Index, b.card.Index))
		if v.Reverse {
			return -by
		}
		return by
	})
	return rows
}

func value[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}

// Table is the newest sample for scripts: fixed columns, one row a line.
func (v *View) Table() [][]string {
	rows := [][]string{{"JOB", "USER", "CARD", "ASKED", "GOT", "WAIT", "USED/LIMIT", "PROCS", "MODE"}}
	if v.Nodes {
		rows[0][1] = "NODE" // the user is always the same
		for _, s := range v.silent() {
			rows = append(rows, []string{"-", s.Status.Node, s.Status.Problems[0]})
		}
	}
	for _, r := range v.rows() {
		cells := []string{
			fmt.Sprint(r.job.JobID), r.job.Who(), fmt.Sprint(r.card.Index), fmt.Sprintf("%d%%", r.card.Cores),
			Percent(r.card.ComputePercent), Percent(r.card.WaitPercent), used(r),
			Known(r.card.Processes, func(n int) string { return fmt.Sprint(n) }), Mode(r.job),
		}
		if v.Nodes {
			cells[1] = r.node
		}
		rows = append(rows, cells)
	}
	return rows
}

// silent are the nodes that did not answer: they know of no card, and say why.
func (v *View) silent() (nodes []Sample) {
	for _, s := range v.samples {
		if len(s.Status.Cards) == 0 && len(s.Status.Problems) > 0 {
			nodes = append(nodes, s)
		}
	}
	return nodes
}
