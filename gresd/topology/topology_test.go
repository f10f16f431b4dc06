// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestNoCardIsAnEmptyTree(t *testing.T) {
	topo := New(Facts{})
	if got := topo.Tree.String(); got != "ROOT:0" || len(topo.Warnings) != 0 || !topo.SameLinks() {
		t.Errorf("got %s, %q", got, topo.Warnings)
	}
}

func TestFactsThatAreMissingAreUnknown(t *testing.T) {
	topo := New(Facts{Cards: []Card{{Index: 1}, {Index: 0}}, Levels: [][]Level{{}}, Unread: []string{"card 0: lost"}})
	if got := topo.Tree.String(); got != "ROOT:2" {
		t.Errorf("got %s", got)
	}
	if got := topo.Pairs[0][1]; got.Level != Unknown || got.NVLinks != 0 || got.P2P.Read.String() != "U" {
		t.Errorf("got %+v", got)
	}
	if topo.Cards[0].Index != 0 || !slices.Equal(topo.Warnings, []string{"card 0: lost"}) {
		t.Errorf("got %+v", topo)
	}
}

func TestSwitchLinksCountWherePeersReachEachOther(t *testing.T) {
	facts := func(status Status, mig bool) Facts {
		f := readFacts(t, "testdata/h200x4.txt")
		f.Cards[0].Links = f.Cards[0].Links[:16] // two are down
		f.Cards[0].MIG = mig
		f.P2P = slices.Repeat([][]P2P{slices.Repeat([]P2P{{NVLink: status}}, 4)}, 4)
		return f
	}
	for _, test := range []struct {
		status   Status
		mig      bool
		cell     string
		warnings int
	}{
		{StatusOK, false, "NV16", 0},
		{StatusUnknown, false, "NV16", 0},
		{StatusNotSupported, false, "PHB", warningsOfAKind + 1}, // for six pairs
		{StatusNotSupported, true, "PHB", 3},                    // not for the card in MIG mode
	} {
		topo := New(facts(test.status, test.mig))
		if got := topo.Pairs[1][0].String(); got != test.cell || len(topo.Warnings) != test.warnings {
			t.Errorf("%s, MIG %v: got %s, %q; want %s and %d warnings", test.status, test.mig, got, topo.Warnings, test.cell, test.warnings)
		}
	}
	if topo := New(facts(StatusOK, false)); topo.SameLinks() || topo.Islands[0].Min != 16 || topo.Islands[0].Max != 18 || !topo.Islands[0].Switched {
		t.Errorf("got %+v", topo.Islands)
	}
}

func TestALinkToNoCardOfThisNodeJoinsNone(t *testing.T) {
	f := readFacts(t, "testdata/dual-socket.txt")
	f.Cards[0].Links = []Link{{Remote: RemoteCard, PCIBusID: "0000:ff:00.0"}, {Remote: RemoteCard}, {Remote: RemoteOther}}
	f.Cards[1].PCIBusID = "" // as of a card that hides its place
	if topo := New(f); len(topo.Islands) != 0 || len(topo.Warnings) != 0 {
		t.Errorf("got %+v, %q", topo.Islands, topo.Warnings)
	}
}

func TestCostsFollowTheLevels(t *testing.T) {
	var costs []int
	for n := 36; n > 0; n-- {
		costs = append(costs, costOf(n, SYS))
	}
	for _, level := range levels {
		costs = append(costs, costOf(0, level))
	}
	costs = append(costs, costOf(0, Unknown))
	for i, c := range costs[1:] {
		if c < costs[i] || c == costs[i] && c > 35 {
			t.Errorf("cost %d after %d in %v", c, costs[i], costs)
		}
	}
}

func TestTheMatrixAnswersForEveryIndex(t *testing.T) {
	m := New(readFacts(t, "testdata/mixed.txt")).Matrix()
	for _, test := range []struct{ i, j, want int }{
		{0, 1, 1000},
		{1, 0, 1000},
		{0, 3, 4000},
		{0, 4, costUnknown},
		{0, 2, costUnknown},
		{0, 99, costUnknown},
		{-1, 0, costUnknown},
		{3, 3, 0},
		{99, 99, 0},
	} {
		if got := m.Cost(test.i, test.j); got != test.want {
			t.Errorf("%d and %d: got %d, want %d", test.i, test.j, got, test.want)
		}
	}
	if got := (Matrix{}).Cost(0, 1); got != costUnknown {
		t.Errorf("the zero matrix: %d", got)
	}
}

func TestLevelsThatNVMLDoesNotHaveAreUnknown(t *testing.T) {
	if LevelOf(30) != PHB || LevelOf(35) != Unknown || LevelOf(-7) != Unknown || LevelOf(int(Root)) != Unknown {
		t.Error("a number was taken for a level")
	}
}

// ultrametric makes the matrix of a random tree, its cards in random order.
func ultrametric(random *rand.Rand, n int) [][]Level {
	matrix := make([][]Level, n)
	for i := range matrix {
		matrix[i] = slices.Repeat([]Level{Unknown}, n)
	}
	var split func(cards []int, farthest int)
	split = func(cards []int, farthest int) {
		if len(cards) < 2 {
			return
		}
		if farthest == 0 {
			farthest = 1
		}
		at := random.IntN(farthest)
		parts := make([][]int, 2+random.IntN(3))
		if at == 0 {
			parts = make([][]int, len(cards)) // nothing is nearer
		}
		for i, c := range cards {
			p := random.IntN(len(parts))
			if at == 0 {
				p = i
			}
			parts[p] = append(parts[p], c)
		}
		for p, part := range parts {
			for q := range p {
				for _, a := range part {
					for _, b := range parts[q] {
						matrix[a][b], matrix[b][a] = levels[at], levels[at]
					}
				}
			}
			if len(part) == len(cards) { // all fell into one part
				split(part, farthest)
			} else {
				split(part, at)
			}
		}
	}
	split(random.Perm(n), len(levels))
	return matrix
}

// met is the level of the smallest node with both cards.
func met(n Node, a, b int) Level {
	for _, c := range n.Children {
		if slices.Contains(c.Cards, a) && slices.Contains(c.Cards, b) {
			return met(c, a, b)
		}
	}
	return n.Level
}

func checkTree(t *testing.T, n Node, parent Level) {
	t.Helper()
	if n.Single() {
		return
	}
	if n.Level >= parent {
		t.Fatalf("%s below %s", n.Level, parent)
	}
	if n.Level != Root && len(n.Children) < 2 {
		t.Fatalf("%s joins %d", n, len(n.Children))
	}
	var cards []int
	for i, c := range n.Children {
		cards = append(cards, c.Cards...)
		if i > 0 && slices.Min(c.Cards) < slices.Min(n.Children[i-1].Cards) {
			t.Fatalf("%s: children are not in order", n)
		}
		checkTree(t, c, n.Level)
	}
	if !slices.Equal(cards, n.Cards) {
		t.Fatalf("%s has %v, its children %v", n, n.Cards, cards)
	}
}

func factsOf(matrix [][]Level) Facts {
	f := Facts{Levels: matrix}
	for i := range matrix {
		f.Cards = append(f.Cards, Card{Index: i})
	}
	return f
}

func TestTheTreeSaysWhatAnUltrametricMatrixSays(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 2))
		matrix := ultrametric(random, 1+random.IntN(48))
		topo := New(factsOf(matrix))
		checkTree(t, topo.Tree, Root+1)
		for i := range matrix {
			for j := range i {
				if got := met(topo.Tree, i, j); got != matrix[i][j] {
					t.Fatalf("seed %d: cards %d and %d meet at %s, want %s", seed, i, j, got, matrix[i][j])
				}
			}
		}
		if len(topo.Warnings) != 0 {
			t.Fatalf("seed %d: %q", seed, topo.Warnings)
		}
	}
}

// Any matrix makes a tree, in which no two cards are farther apart than the
// matrix says; where one is nearer there is a warning.
func TestTheTreeOfAnyMatrix(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 3))
		n := 1 + random.IntN(12)
		matrix := make([][]Level, n)
		for i := range matrix {
			matrix[i] = make([]Level, n)
			for j := range i {
				level := levels[random.IntN(len(levels))]
				matrix[i][j], matrix[j][i] = level, level
			}
		}
		topo := New(factsOf(matrix))
		checkTree(t, topo.Tree, Root+1)
		nearer := false
		for i := range matrix {
			for j := range i {
				got := met(topo.Tree, i, j)
				if got > matrix[i][j] {
					t.Fatalf("seed %d: cards %d and %d meet at %s, want at most %s", seed, i, j, got, matrix[i][j])
				}
				nearer = nearer || got < matrix[i][j]
			}
		}
		if nearer != (len(topo.Warnings) > 0) || len(topo.Warnings) > warningsOfAKind+1 {
			t.Fatalf("seed %d: nearer %v, warnings %q", seed, nearer, topo.Warnings)
		}
	}
}

func TestSixtyFourCards(t *testing.T) {
	matrix := make([][]Level, 64)
	for i := range matrix {
		for j := range matrix {
			level := SYS
			switch {
			case i/4 == j/4:
				level = PIX
			case i/16 == j/16:
				level = NODE
			}
			matrix[i] = append(matrix[i], level)
		}
	}
	topo := New(factsOf(matrix))
	quad := "NODE:16 -> {PIX:4, PIX:4, PIX:4, PIX:4}"
	if want := "ROOT:64 -> SYS:64 -> {" + strings.Join(slices.Repeat([]string{quad}, 4), ", ") + "}"; topo.Tree.String() != want {
		t.Errorf("got %s", topo.Tree)
	}
	if got := topo.Matrix().Cost(63, 60); got != 1000 {
		t.Errorf("cost %d", got)
	}
}

func TestTheOrderOfTheFactsDoesNotMatter(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txt")
	for _, file := range files {
		f := readFacts(t, file)
		want := New(f)
		perm := rand.New(rand.NewPCG(1, 4)).Perm(len(f.Cards))
		mixed := Facts{}
		for _, i := range perm {
			mixed.Cards = append(mixed.Cards, f.Cards[i])
			var row []Level
			for _, j := range perm {
				row = append(row, f.Levels[i][j])
			}
			mixed.Levels = append(mixed.Levels, row)
		}
		if got := New(mixed); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got\n%swant\n%s", file, describe(got), describe(want))
		}
	}
}

func TestSets(t *testing.T) {
	for text, want := range map[string]Set{
		"": nil, "3": {3}, "0-3,8": {0, 1, 2, 3, 8}, "8,0-2,1\n": {0, 1, 2, 8}, "0-0": {0},
	} {
		got, err := ParseSet(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
		if again, err := ParseSet(got.String()); err != nil || !slices.Equal(again, got) {
			t.Errorf("%q: written %q, read %v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"a", "1-", "-1", "3-1", "0-99999999", "1,,2", "1 2", "0x1", "0-65535,0-65535"} {
		if got, err := ParseSet(text); err == nil {
			t.Errorf("%q: got %v", text, got)
		}
	}
	if got := (Set{1, 2, 5, 9}).And(Set{2, 3, 9}); !slices.Equal(got, Set{2, 9}) {
		t.Errorf("both: %v", got)
	}
}

func FuzzParseSet(f *testing.F) {
	for _, text := range []string{"0-3,8", "", "1,,2", "65535", "7-"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		set, err := ParseSet(text)
		if err != nil {
			return
		}
		if again, err := ParseSet(set.String()); err != nil || !slices.Equal(again, set) {
			t.Fatalf("%q: written %q, read %v, %v", text, set, again, err)
		}
	})
}

// Two sockets of three cores with two threads, in the ways that Linux counts.
func TestCoresAreCountedAsSlurmDoes(t *testing.T) {
	blocks, turns := []CPU{}, []CPU{} // socket by socket; the sockets in turn
	for id := range 12 {
		blocks = append(blocks, CPU{id, id % 6 / 3, id % 3 * 4})
		turns = append(turns, CPU{id, id % 2, id % 6 / 2 * 4})
	}
	for name, test := range map[string]struct {
		cpus []CPU
		near Set
		want Set
	}{
		"second socket, in blocks":     {blocks, Set{3, 4, 5, 9, 10, 11}, Set{3, 4, 5}},
		"second socket, in turn":       {turns, Set{1, 3, 5, 7, 9, 11}, Set{3, 4, 5}},
		"first socket, in turn":        {turns, Set{0, 2, 4, 6, 8, 10}, Set{0, 1, 2}},
		"half a core is no core":       {blocks, Set{3, 4, 9}, Set{3}},
		"all":                          {blocks, Set{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, Set{0, 1, 2, 3, 4, 5}},
		"none":                         {blocks, nil, nil},
		"a processor of somebody else": {blocks, Set{0, 6, 12}, nil},
		"an empty map":                 {nil, Set{0}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewCoreMap(test.cpus)
			if got := m.Cores(test.near); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			if len(test.cpus) > 0 && m.Len() != 6 {
				t.Errorf("%d cores", m.Len())
			}
		})
	}
	if got := fmt.Sprint(NewCoreMap(turns).Cores(Set{1, 7})); got != "3" {
		t.Errorf("got %s", got)
	}
}
