// SPDX-License-Identifier: Apache-2.0

package status

import (
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Topology tells how the cards are joined, and what is in use of them.
func (r *Reporter) Topology() wire.Reply {
	t := r.Cards.Now().Topology
	if t == nil {
		return wire.NodeError("vgpu: gresd: topo: the driver has not told how the cards are joined: see gresd's log")
	}
	return wire.Reply{OK: true, Topology: topologyOf(t, r.cardList())}
}

// topologyOf writes a topology for the wire, with the use of its cards.
func topologyOf(t *topology.Topology, use []wire.Card) *wire.Topology {
	out := &wire.Topology{
		Cards:  []wire.TopologyCard{},
		Matrix: cells(t, topology.Pair.String),
		Levels: cells(t, func(p topology.Pair) string { return p.Level.String() }),
		P2P: map[string][][]string{
			"read":    cells(t, func(p topology.Pair) string { return p.P2P.Read.String() }),
			"write":   cells(t, func(p topology.Pair) string { return p.P2P.Write.String() }),
			"nvlink":  cells(t, func(p topology.Pair) string { return p.P2P.NVLink.String() }),
			"atomics": cells(t, func(p topology.Pair) string { return p.P2P.Atomics.String() }),
		},
		Tree: nodeOf(t.Tree), TreeText: t.Tree.String(),
		Islands: []wire.TopologyIsland{}, Warnings: append([]string{}, t.Warnings...),
	}
	for _, c := range t.Cards {
		card := wire.TopologyCard{
			PCIBusID: c.PCIBusID, MIG: c.MIG, CPUs: c.CPUs.String(), NVLinks: len(c.Links),
			Card: wire.Card{UUID: string(c.UUID), Index: c.Index}, // all there is of one that was lost since
		}
		if i := slices.IndexFunc(use, func(u wire.Card) bool { return u.UUID == string(c.UUID) }); i >= 0 {
			card.Card = use[i]
		}
		if c.NUMANode != topology.NoNUMANode {
			card.NUMANode = &c.NUMANode
		}
		out.Cards = append(out.Cards, card)
	}
	for _, i := range t.Islands {
		out.Islands = append(out.Islands, wire.TopologyIsland{
			Cards: i.Cards, NVSwitch: i.Switched, AllToAll: i.All, MinLinks: i.Min, MaxLinks: i.Max,
		})
	}
	return out
}

func cells(t *topology.Topology, cell func(topology.Pair) string) [][]string {
	matrix := make([][]string, len(t.Pairs))
	for i, row := range t.Pairs {
		for j, pair := range row {
			if i == j {
				matrix[i] = append(matrix[i], "X")
			} else {
				matrix[i] = append(matrix[i], cell(pair))
			}
		}
	}
	return matrix
}

func nodeOf(n topology.Node) wire.TopologyNode {
	node := wire.TopologyNode{Cards: append([]int{}, n.Cards...)}
	if !n.Single() {
		node.Level = n.Label()
	}
	for _, c := range n.Children {
		node.Children = append(node.Children, nodeOf(c))
	}
	return node
}
