// SPDX-License-Identifier: Apache-2.0

// Package topology describes the connections of a node's cards: a tree of PCIe levels, NVLink over
// it, NUMA nodes and processors. It is pure: [Facts] from the driver give a [Topology]. Packages
// that only need the distances take a [Matrix].
//
// Anything may be unknown. A driver that does not know a call, or does not
// answer, makes the picture poorer and never an error.
package topology

import (
	"fmt"
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// Topology is what follows from the facts. It is never changed.
type Topology struct {
	Cards []Card   // by rising Index
	Pairs [][]Pair // Pairs[i][j] for the rows i and j of Cards, the same both ways but for P2P
	Tree  Node
	// Islands are the cards that NVLink joins. They are no part of the tree:
	// NVLink goes across PCIe.
	Islands []Island
	// Warnings are for people: what was not read, and what contradicts itself.
	Warnings []string
}

// Pair is the way between two different cards.
type Pair struct {
	Level    Level // over PCIe
	NVLinks  int   // 0: none
	Switched bool  // the NVLinks go through NVSwitch
	P2P      P2P
}

// String is the cell of nvidia-smi topo -m: "NV18", "PHB".
func (p Pair) String() string {
	if p.NVLinks > 0 {
		return fmt.Sprintf("NV%d", p.NVLinks)
	}
	return p.Level.String()
}

// Island is a set of cards that NVLink joins.
type Island struct {
	Cards    []int // indexes
	Switched bool
	// Min and Max are the links of the pairs of the island that have any; All
	// says that every pair has.
	Min, Max int
	All      bool
}

// New judges the facts. Rows that the facts lack are not known.
func New(f Facts) *Topology {
	rows := make([]int, len(f.Cards))
	for i := range rows {
		rows[i] = i
	}
	slices.SortStableFunc(rows, func(a, b int) int { return f.Cards[a].Index - f.Cards[b].Index })

	t := &Topology{Pairs: make([][]Pair, len(rows))}
	w := warnings{}
	w.add("not read", f.Unread...)
	for _, row := range rows {
		t.Cards = append(t.Cards, f.Cards[row])
	}
	for i := range rows {
		t.Pairs[i] = make([]Pair, len(rows))
	}
	for i, a := range rows {
		for j, b := range rows {
			t.Pairs[i][j].P2P = at(f.P2P, a, b, P2P{})
			if i < j {
				level := t.level(&w, i, j, at(f.Levels, a, b, Unknown), at(f.Levels, b, a, Unknown))
				t.Pairs[i][j].Level, t.Pairs[j][i].Level = level, level
			}
		}
	}
	t.countLinks(&w)
	t.Tree = treeOf(t, &w)
	t.Islands = islandsOf(t)
	t.Warnings = w.lines()
	return t
}

func at[T any](matrix [][]T, i, j int, missing T) T {
	if i >= len(matrix) || j >= len(matrix[i]) {
		return missing
	}
	return matrix[i][j]
}

// level decides where the two directions differ: the farther one, as nothing
// nearer was promised.
func (t *Topology) level(w *warnings, i, j int, there, back Level) Level {
	switch {
	case there == back:
		return there
	case there == Unknown:
		return back
	case back == Unknown:
		return there
	}
	farther := max(there, back)
	w.add("asymmetric", fmt.Sprintf("cards %d and %d: %s one way and %s the other: taken as %s",
		t.Cards[i].Index, t.Cards[j].Index, there, back, farther))
	return farther
}

// countLinks fills in the NVLinks of each pair: those that lead from one to the
// other, or for two cards at NVSwitch as many as both have.
func (t *Topology) countLinks(w *warnings) {
	for i := range t.Cards {
		for j := range t.Cards[:i] {
			a, b := &t.Cards[j], &t.Cards[i]
			there, back := linksTo(a, b), linksTo(b, a)
			if there != back {
				w.add("asymmetric", fmt.Sprintf("cards %d and %d: NV%d one way and NV%d the other: taken as NV%d",
					a.Index, b.Index, there, back, min(there, back)))
			}
			links, switched := min(there, back), false
			if n := min(a.switchLinks(), b.switchLinks()); links == 0 && n > 0 {
				if s := t.Pairs[j][i].P2P.NVLink; s == StatusUnknown || s == StatusOK {
					links, switched = n, true
				} else if !a.MIG && !b.MIG {
					w.add("nvswitch", fmt.Sprintf("cards %d and %d: both have links to NVSwitch, but peer access over NVLink is %s: "+
						"is nvidia-fabricmanager running?", a.Index, b.Index, s))
				}
			}
			for _, p := range []*Pair{&t.Pairs[i][j], &t.Pairs[j][i]} {
				p.NVLinks, p.Switched = links, switched
			}
		}
	}
}

func linksTo(from, to *Card) int {
	n := 0
	if to.Instance { // links are its GPU's, at the same place
		return n
	}
	for _, l := range from.Links {
		if l.Remote != RemoteSwitch && l.PCIBusID != "" && l.PCIBusID == to.PCIBusID {
			n++
		}
	}
	return n
}

func (c *Card) switchLinks() int {
	n := 0
	for _, l := range c.Links {
		if l.Remote == RemoteSwitch {
			n++
		}
	}
	return n
}

// Matrix returns what others need to choose sets of cards.
func (t *Topology) Matrix() Matrix {
	size := 0
	for _, c := range t.Cards {
		size = max(size, c.Index+1)
	}
	m := Matrix{cost: make([][]int, size)}
	for i := range size {
		m.cost[i] = slices.Repeat([]int{costUnknown}, size)
	}
	for i, a := range t.Cards {
		for j, b := range t.Cards {
			if i != j {
				m.cost[a.Index][b.Index] = costOf(t.Pairs[i][j].NVLinks, t.Pairs[i][j].Level)
			}
		}
	}
	return m
}

// SameLinks says whether all pairs of cards have equally many NVLinks.
func (t *Topology) SameLinks() bool {
	for i, row := range t.Pairs {
		for j := range row[:i] {
			if row[j].NVLinks != t.Pairs[1][0].NVLinks {
				return false
			}
		}
	}
	return true
}

// warnings keeps the first few of each kind: the pairs of many cards are many.
type warnings struct {
	kinds []string
	texts map[string][]string
}

const warningsOfAKind = 4

func (w *warnings) add(kind string, texts ...string) {
	if w.texts == nil {
		w.texts = map[string][]string{}
	}
	if len(texts) > 0 && !slices.Contains(w.kinds, kind) {
		w.kinds = append(w.kinds, kind)
	}
	w.texts[kind] = append(w.texts[kind], texts...)
}

func (w *warnings) lines() []string {
	var all []string
	for _, kind := range w.kinds {
		texts := w.texts[kind]
		if n := len(texts) - warningsOfAKind; n > 1 {
			texts = append(slices.Clone(texts[:warningsOfAKind]), fmt.Sprintf("%s: and %d more", kind, n))
		}
		all = append(all, texts...)
	}
	return all
}

// NoNUMANode stands for an unknown NUMA node. It is equal
// to no node, not even to that of another such card.
const NoNUMANode = -1

// Matrix has the distances between the cards of a node, for code that chooses sets of cards. Cards
// are named by gpu.Card.Index, and all answers are defined
// for every index, also of a card that is not there. The zero Matrix knows
// nothing: all cards are equally far from each other. It is never changed.
type Matrix struct {
	cost [][]int
}

// Cost is the distance of two cards: lower is closer, 0 only for i == j, and
// the same both ways. NV# < INT < PIX <
// PXB < PHB < NODE < SYS < not known; more NVLinks are closer than fewer. A sum
// of costs is of use to compare sets of the same size.
func (m Matrix) Cost(i, j int) int {
	switch {
	case i == j:
		return 0
	case i < 0 || j < 0 || i >= len(m.cost) || j >= len(m.cost[i]):
		return costUnknown
	}
	return m.cost[i][j]
}

// islandsOf finds the sets of cards that NVLink joins, directly or through
// other cards, by their lowest index.
func islandsOf(t *Topology) []Island {
	sets := newSets(len(t.Cards))
	for i := range sets {
		for j := range i {
			if t.Pairs[i][j].NVLinks > 0 {
				sets.join(i, j)
			}
		}
	}
	var islands []Island
	names := sets.all()
	for set := range names {
		if island := t.island(names, set); len(island.Cards) > 1 {
			islands = append(islands, island)
		}
	}
	return islands
}

// island describes the cards of one set. names has the set of each card.
func (t *Topology) island(names []int, set int) Island {
	island := Island{Switched: true, All: true}
	for i, c := range t.Cards {
		if names[i] != set {
			continue
		}
		island.Cards = append(island.Cards, c.Index)
		for j, pair := range t.Pairs[i][:i] {
			switch {
			case names[j] != set:
			case pair.NVLinks == 0:
				island.All = false
			default:
				island.Switched = island.Switched && pair.Switched
				island.Max = max(island.Max, pair.NVLinks)
				if island.Min == 0 || pair.NVLinks < island.Min {
					island.Min = pair.NVLinks
				}
			}
		}
	}
	return island
}

// Facts describe the cards of a node, as the driver and the kernel report them. A row is a place in
// Cards.
type Facts struct {
	Cards []Card
	// Levels[i][j] is the reported level of the way from the i-th to the j-th card.
	Levels [][]Level
	// P2P[i][j] is the access of the i-th card to the memory of the j-th.
	P2P [][]P2P
	// Unread are the questions that were not answered, in words for people.
	// A feature that a card or a driver does not have is not among them.
	Unread []string
}

// Card is one card with its NUMA node, processors and links.
type Card struct {
	Index    int // gpu.Card.Index: may have holes, and is not the row
	UUID     gpu.UUID
	PCIBusID string // as sysfs writes it, "0000:1b:00.0"
	NUMANode int    // NoNUMANode: not known
	CPUs     Set    // near the card; nil: not known
	// MIG: the card is in MIG mode, and gresd does not share it. Instance: it is a MIG instance, at
	// the place of its GPU.
	MIG, Instance bool

	Links []Link // NVLinks that are up
}

// Remote is the kind of device at the other end of an NVLink.
type Remote int

// Ends of an NVLink. RemoteOther is also an end that the driver does not name.
const (
	RemoteOther Remote = iota
	RemoteCard
	RemoteSwitch
)

// Link is one NVLink of a card.
type Link struct {
	Remote   Remote
	PCIBusID string // of the card at the other end; "": not known, or no card
}

// Status is an answer about peer access, in the words of nvidia-smi topo -p2p.
type Status string

// Statuses.
const (
	StatusUnknown      Status = ""    // written as "U"
	StatusOK           Status = "OK"  // it works
	StatusNoChipset    Status = "CNS" // the chipset does not do it
	StatusNoCard       Status = "GNS" // the card does not do it
	StatusNoWay        Status = "TNS" // not on the way between these two
	StatusDisabled     Status = "DR"  // switched off for the driver
	StatusNotSupported Status = "NS"
)

func (s Status) String() string {
	if s == StatusUnknown {
		return "U"
	}
	return string(s)
}

// P2P is the access of one card to another card's memory. The zero value is not known.
type P2P struct {
	Read, Write, NVLink, Atomics Status
}
