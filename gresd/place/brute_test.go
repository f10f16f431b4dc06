// SPDX-License-Identifier: Apache-2.0

package place

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// bruteForce goes through all subsets of the node's cards and compares them by
// the definition of the policies alone.
func bruteForce(cards []gpu.Card, inUse InUse, req request.Request, t Table) []int {
	var best, bestRank []int
	for set := range uint(1) << len(cards) {
		if bits.OnesCount(set) != max(1, req.Cards) {
			continue
		}
		var members []int
		fits, left, memory, nodes := true, 0, 0, map[int]bool{}
		for i, c := range cards {
			if set&(1<<i) == 0 {
				continue
			}
			units := req.DominantOnCard(c.Memory)
			grant, err := req.OnCard(min(units, gpu.FullCard), c)
			use := inUse[c.UUID]
			fits = fits && err == nil && c.Healthy && use.Units+units <= gpu.FullCard && use.Memory+grant.Memory <= c.Memory
			if !fits {
				break
			}
			members = append(members, i)
			left += int(gpu.FullCard - use.Units - units)
			memory += int(float64(c.Memory-use.Memory-grant.Memory) / float64(c.Memory) * 10000)
			if c.NUMANode < 0 {
				nodes[-1-i] = true // equal to no other
			} else {
				nodes[c.NUMANode] = true
			}
		}
		if !fits {
			continue
		}
		farthest := 0
		for i := range cards {
			for j := range i {
				farthest = max(farthest, t.Cost(i, j))
			}
		}
		weakest, sum, rest := 0, 0, 0
		for i := range cards {
			for j := range i {
				cost := t.Cost(i, j)
				if cost < 0 {
					cost = farthest
				}
				in := slices.Contains(members, i)
				if in && slices.Contains(members, j) {
					weakest, sum = max(weakest, cost), sum+cost
				}
				idle := func(k int) bool { return cards[k].Healthy && inUse[cards[k].UUID].Jobs == 0 }
				switch {
				case !idle(i) || !idle(j):
				case in || slices.Contains(members, j):
					rest += farthest
				default:
					rest += cost
				}
			}
		}
		near := []int{weakest, sum, rest, len(nodes)}
		var rank []int
		switch req.Policy {
		case gpu.Topology, gpu.Exclusive:
			rank = append(near, left, memory)
		case gpu.Spread:
			rank = append([]int{-left, -memory}, near...)
		default:
			rank = append([]int{left, memory}, near...)
		}
		for _, i := range slices.Backward(members) { // the highest indexes
			rank = append(rank, -i)
		}
		if best == nil || slices.Compare(rank, bestRank) < 0 {
			best, bestRank = members, rank
		}
	}
	return best
}

func randomNode(random *rand.Rand) ([]gpu.Card, InUse, Table) {
	cards := node(1 + random.IntN(8))
	inUse, table := InUse{}, make(Table, len(cards))
	for i := range cards {
		cards[i].NUMANode = random.IntN(3) - 1
		cards[i].Healthy = random.IntN(12) != 0
		cards[i].Memory = []gpu.Bytes{80 * gpu.GiB, 40 * gpu.GiB}[random.IntN(4)/3]
		if random.IntN(2) == 0 {
			units := gpu.Share(random.IntN(80))
			inUse[cards[i].UUID] = Use{Units: units, Memory: cards[i].MemoryShare(units) / 2, Jobs: 1}
		}
	}
	for i := range cards {
		table[i] = make([]int, len(cards))
		for j := range i {
			table[i][j] = random.IntN(5)*10 - random.IntN(2)*random.IntN(2)*50 // some are not known
			table[j][i] = table[i][j]
		}
	}
	return cards, inUse, table
}

func TestSetsAreThoseOfBruteForce(t *testing.T) {
	placed := 0
	for seed := range uint64(10000) {
		random := rand.New(rand.NewPCG(seed, 2))
		cards, inUse, table := randomNode(random)
		req := randomRequest(random)
		req.Cards = 1 + random.IntN(len(cards))
		req.Share = gpu.Share(req.Cards * (1 + random.IntN(100)))
		if random.IntN(3) == 0 {
			req.Share = gpu.Share(req.Cards) * gpu.FullCard
		}
		want := bruteForce(cards, inUse, req, table)
		shuffled := slices.Clone(cards)
		random.Shuffle(len(cards), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		got, err := Choose(shuffled, inUse, req, table)
		if !reflect.DeepEqual(indexes(got), want) {
			t.Fatalf("seed %d: %+v of %d cards: got %v, %v; want %v", seed, req, len(cards), indexes(got), err, want)
		}
		if (err == nil) != (want != nil) {
			t.Fatalf("seed %d: error is %v, brute force found %v", seed, err, want)
		}
		if err == nil && len(want) > 1 {
			placed++
		}
	}
	if placed < 500 {
		t.Errorf("only %d sets of several cards were compared", placed)
	}
}

// Above the number of sets that are all looked at, the set must at least be one
// that no exchange of a single card makes better.
func TestNoExchangeImprovesALargeSet(t *testing.T) {
	for seed := range uint64(5) {
		random := rand.New(rand.NewPCG(seed, 3))
		cards := node(24)
		table := make(Table, len(cards))
		for i := range cards {
			table[i] = make([]int, len(cards))
			for j := range i {
				table[i][j] = random.IntN(1000)
				table[j][i] = table[i][j]
			}
		}
		d, err := Choose(cards, nil, share(1000, 10), table)
		if err != nil || len(d.Placement.Cards) != 10 {
			t.Fatalf("got %v, %v", indexes(d), err)
		}
		_, fitting, _ := assess(cards, nil, share(1000, 10))
		s := newSearch(cards, nil, fitting, 10, "", table)
		set := indexes(d)
		for i := range cards {
			if slices.Contains(set, i) {
				continue
			}
			if _, r := s.swap(set, i); r.compare(s.rankOf(set)) < 0 {
				t.Errorf("seed %d: %v is better with card %d", seed, set, i)
			}
		}
	}
}

func BenchmarkEightOfSixteenCards(b *testing.B) {
	cards := node(16)
	table := make(Table, 16)
	for i := range table {
		for j := range 16 {
			table[i] = append(table[i], max(0, 10*bits.Len(uint(i^j))))
		}
	}
	for _, n := range []int{4, 8, 12} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, err := Choose(cards, nil, share(gpu.Share(n)*100, n), table); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
