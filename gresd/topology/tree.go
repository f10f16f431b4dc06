// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"slices"
	"strings"
)

// Root is the Level of the root of a tree, which joins all cards of the node.
const Root Level = 1000

// Node is a part of the tree: cards that are all within Level of each other.
// Every child is nearer within itself than its parent is.
type Node struct {
	Level Level // Root, or the level that joined the children
	Cards []int // indexes, in the order of the tree
	// Children have two cards or more, or are single cards (Single), by their
	// lowest index. A single card and the empty node have none.
	Children []Node
}

// Single says that the node is one card and not a level.
func (n Node) Single() bool { return n.Level != Root && len(n.Cards) == 1 }

// Label is the level's name, "ROOT", or "GPU3" for a single card.
func (n Node) Label() string {
	switch {
	case n.Level == Root:
		return "ROOT"
	case n.Single():
		return fmt.Sprintf("GPU%d", n.Cards[0])
	}
	return n.Level.String()
}

// String writes the tree in one line: "ROOT:7 -> PHB:7 -> {PIX:3, PIX:4}".
// Single cards are named only beside something larger.
func (n Node) String() string {
	text := n.Label()
	if !n.Single() {
		text += fmt.Sprintf(":%d", len(n.Cards))
	}
	var below []string
	for _, c := range n.Children {
		below = append(below, c.String())
	}
	switch {
	case !slices.ContainsFunc(n.Children, func(c Node) bool { return !c.Single() }):
		return text
	case len(below) == 1:
		return text + " -> " + below[0]
	}
	return text + " -> {" + strings.Join(below, ", ") + "}"
}

// treeOf joins cards level by level, the nearest first. Each set that a level
// makes larger becomes a node. Cards that no known level joins meet at the root.
func treeOf(t *Topology, w *warnings) Node {
	sets := newSets(len(t.Cards))
	nodes := make([]Node, len(t.Cards))     // the node of each set, at its first card
	joined := make([][]Level, len(t.Cards)) // the level at which a pair met
	for i, c := range t.Cards {
		nodes[i] = Node{Cards: []int{c.Index}}
		joined[i] = slices.Repeat([]Level{Unknown}, len(t.Cards))
	}
	for _, level := range levels {
		before := sets.all()
		for i := range sets {
			for j := range i {
				if t.Pairs[i][j].Level == level {
					sets.join(i, j)
				}
			}
		}
		grown := map[int][]Node{} // by the new set: the sets that it is made of
		for i, after := range sets.all() {
			if before[i] == i {
				grown[after] = append(grown[after], nodes[i])
			}
			for j := range i {
				if before[i] != before[j] && after == sets.find(j) {
					joined[i][j] = level
				}
			}
		}
		for set, children := range grown {
			if len(children) > 1 {
				nodes[set] = nodeOf(level, children)
			}
		}
	}
	warnOfChains(t, joined, w)

	var tops []Node
	for i, set := range sets.all() {
		if set == i {
			tops = append(tops, nodes[i])
		}
	}
	return nodeOf(Root, tops)
}

// unionFind is disjoint sets of rows; a set is named by its first row.
type unionFind []int

// newSets returns n sets of one card each.
func newSets(n int) unionFind {
	sets := make(unionFind, n)
	for i := range sets {
		sets[i] = i
	}
	return sets
}

func (u unionFind) find(i int) int {
	for u[i] != i {
		u[i] = u[u[i]]
		i = u[i]
	}
	return i
}

func (u unionFind) join(i, j int) {
	a, b := u.find(i), u.find(j)
	u[max(a, b)] = min(a, b)
}

func (u unionFind) all() []int {
	names := make([]int, len(u))
	for i := range u {
		names[i] = u.find(i)
	}
	return names
}

func nodeOf(level Level, children []Node) Node {
	n := Node{Level: level, Children: children}
	for _, c := range children {
		n.Cards = append(n.Cards, c.Cards...)
	}
	return n
}

// warnOfChains names pairs that met at a nearer level than they are apart: both
// are near a third card, but are said not to be near each other. No tree can
// show that; the matrix still does.
func warnOfChains(t *Topology, joined [][]Level, w *warnings) {
	for i, row := range joined {
		for j, met := range row[:i] {
			if apart := t.Pairs[i][j].Level; met != apart && apart != Unknown {
				w.add("no tree", fmt.Sprintf("cards %d and %d: %s apart, yet cards between them join them at %s: the tree shows them nearer than they are",
					t.Cards[j].Index, t.Cards[i].Index, apart, met))
			}
		}
	}
}

// Level is the way between two different cards over PCIe, named after their
// closest common ancestor, in NVML's own numbers: smaller is nearer.
type Level int

// Levels. nvidia-smi has the same names, but for INT, which it calls PIX.
const (
	Unknown Level = -1 // the driver does not say
	INT     Level = 0  // one board
	PIX     Level = 10 // at most one PCIe switch
	PXB     Level = 20 // several PCIe switches, no host bridge
	PHB     Level = 30 // one host bridge
	NODE    Level = 40 // several host bridges of one NUMA node
	SYS     Level = 50 // the link between NUMA nodes
)

// levels are all known ones, the nearest first.
var levels = []Level{INT, PIX, PXB, PHB, NODE, SYS}

var levelNames = map[Level]string{
	Unknown: "?", INT: "INT", PIX: "PIX", PXB: "PXB", PHB: "PHB", NODE: "NODE", SYS: "SYS",
}

func (l Level) String() string {
	if name, ok := levelNames[l]; ok {
		return name
	}
	return fmt.Sprintf("Level(%d)", int(l))
}

// LevelOf takes NVML's number. A number without a level gives Unknown.
func LevelOf(nvml int) Level {
	if _, ok := levelNames[Level(nvml)]; ok {
		return Level(nvml)
	}
	return Unknown
}

// Costs of a pair without NVLink. An unknown way must not win against a known way.
const (
	costINT     = 900
	costPCIe    = 100 // for each unit of Level: PIX 1000 to SYS 5000
	costUnknown = 6000
	costNVLink  = 1000 // of a way that is one link wide, if there were one as slow as PIX
)

// costOf is how far apart two cards are: below 1000 for NVLink, the less the
// more links there are, as the time for a byte is; then by level.
func costOf(nvlinks int, level Level) int {
	switch {
	case nvlinks > 0:
		return min(costINT-1, costNVLink/(nvlinks+1))
	case level == INT:
		return costINT
	case level == Unknown:
		return costUnknown
	}
	return costPCIe * int(level)
}
