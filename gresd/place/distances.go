// SPDX-License-Identifier: Apache-2.0

package place

import "github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"

// Distances tells how far cards are from each other, by gpu.Card.Index. Nil
// means that nothing is known: all pairs are then alike.
type Distances interface {
	// Cost is the same both ways; smaller is nearer. Costs are summed up, so
	// they should fit well into 32 bits. Below 0: not known, which counts as
	// much as the farthest pair of the node.
	Cost(i, j int) int
}

// matrix is the cost of each pair of some cards, by position.
type matrix struct {
	cost     [][]int
	farthest int
}

func newMatrix(cards []gpu.Card, d Distances) matrix {
	m := matrix{cost: make([][]int, len(cards))}
	for i := range cards {
		m.cost[i] = make([]int, len(cards))
		for j := range i {
			c := -1
			if d != nil {
				c = d.Cost(cards[i].Index, cards[j].Index)
			}
			m.cost[i][j], m.cost[j][i] = c, c
			m.farthest = max(m.farthest, c)
		}
	}
	for i := range cards {
		for j := range cards {
			if m.cost[i][j] < 0 {
				m.cost[i][j] = m.farthest
			}
		}
	}
	return m
}
