// SPDX-License-Identifier: Apache-2.0

package topology

// NoNUMANode stands for an unknown NUMA node. It is equal
// to no node, not even to that of another such card.
const NoNUMANode = -1

// Matrix is how near the cards of a node are to each other, for whoever chooses
// sets of them. Cards are named by gpu.Card.Index, and all answers are defined
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
