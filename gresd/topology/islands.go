// SPDX-License-Identifier: Apache-2.0

package topology

// islandsOf finds the sets of cards that NVLink joins, directly or through
// other cards, by their lowest index.
func islandsOf(t *Topology) []Island {
	var islands []Island
	seen := make([]bool, len(t.Cards))
	for first := range t.Cards {
		if seen[first] {
			continue
		}
		rows := []int{first}
		seen[first] = true
		for next := 0; next < len(rows); next++ {
			for j, pair := range t.Pairs[rows[next]] {
				if pair.NVLinks > 0 && !seen[j] {
					seen[j] = true
					rows = append(rows, j)
				}
			}
		}
		if len(rows) > 1 {
			islands = append(islands, t.island(rows))
		}
	}
	return islands
}

func (t *Topology) island(rows []int) Island {
	in := make([]bool, len(t.Cards))
	for _, row := range rows {
		in[row] = true
	}
	island := Island{Switched: true, All: true}
	for i, c := range t.Cards {
		if !in[i] {
			continue
		}
		island.Cards = append(island.Cards, c.Index)
		for j, pair := range t.Pairs[i][:i] {
			switch {
			case !in[j]:
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
