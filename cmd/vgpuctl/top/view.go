// SPDX-License-Identifier: Apache-2.0

// Package top is the live view of a node: its cards and the jobs on them. [View] collects samples,
// [View.Lines] is a pure function of them and of the size of the terminal, and [Run] shows it on one.
package top

import (
	"cmp"
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

// Orders are the words of --sort. The first letter of each is its key.
var Orders = []string{"got", "memory", "throttled", "job", "user"}

// longest is how many samples the history of a row has: as many as the widest
// sparkline shows.
const longest = 60

// View is what is shown. It is for one goroutine.
type View struct {
	Order   string // one of Orders
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

func (r Row) key() rowKey { return rowKey{r.Node, r.Job.JobID, r.Card.UUID} }

// Add takes a new sample of each node.
func (v *View) Add(samples ...Sample) {
	v.samples, v.some, v.Problem = samples, true, ""
	next := map[rowKey][]float64{}
	for _, r := range v.Rows() {
		past := append(slices.Clone(v.history[r.key()]), value(r.Card.GotPercent))
		next[r.key()] = past[max(0, len(past)-longest):]
	}
	v.history = next
}

// Scroll moves the rows by n, as far as there are any.
func (v *View) Scroll(n int) { v.first = max(0, min(v.first+n, len(v.Rows())-1)) }

// Rows are the cards of all jobs, sorted. Unknown values count as 0.
func (v *View) Rows() (rows []Row) {
	for _, s := range v.samples {
		rows = append(rows, Rows(s.Status.Node, s.Jobs)...)
	}
	rows = slices.DeleteFunc(rows, func(r Row) bool { return r.Card == nil })
	slices.SortStableFunc(rows, func(a, b Row) int {
		x, y := a.Card, b.Card
		var by int
		switch v.Order {
		case "memory":
			by = cmp.Compare(value(y.UsedBytes), value(x.UsedBytes))
		case "throttled":
			by = cmp.Compare(value(y.ThrottledPercent), value(x.ThrottledPercent))
		case "user":
			by = cmp.Compare(a.Job.Who(), b.Job.Who())
		case "job":
		default:
			by = cmp.Compare(value(y.GotPercent), value(x.GotPercent))
		}
		by = cmp.Or(by, cmp.Compare(a.Job.JobID, b.Job.JobID), cmp.Compare(a.Node, b.Node), cmp.Compare(x.Index, y.Index))
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

// Silent are the nodes that did not answer. They have no card, and a problem.
func (v *View) Silent() (nodes []Sample) {
	for _, s := range v.samples {
		if len(s.Status.Cards) == 0 && len(s.Status.Problems) > 0 {
			nodes = append(nodes, s)
		}
	}
	return nodes
}
