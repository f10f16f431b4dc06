// SPDX-License-Identifier: Apache-2.0

package place

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// node returns n healthy cards of 80 GiB; the first half is on NUMA node 0.
func node(n int) []gpu.Card {
	cards := make([]gpu.Card, n)
	for i := range cards {
		cards[i] = gpu.Card{
			UUID: gpu.UUID(fmt.Sprintf("GPU-%02d", i)), Index: i, Minor: i,
			Memory: 80 * gpu.GiB, NUMANode: i * 2 / n, Healthy: true,
		}
	}
	return cards
}

// used returns the use of cards in hundredths, memory alike.
func used(cards []gpu.Card, units ...gpu.Share) InUse {
	inUse := InUse{}
	for i, n := range units {
		if n != 0 {
			inUse[cards[i].UUID] = Use{Units: n, Memory: cards[i].MemoryShare(n), Jobs: 1}
		}
	}
	return inUse
}

func share(n gpu.Share, cards int) request.Request {
	return request.Request{Share: n, Cards: cards}
}

func indexes(d Decision) []int {
	var all []int
	for _, c := range d.Placement.Cards {
		all = append(all, c.Index)
	}
	return all
}

func TestTheChoiceOfSlurmctldIsTakenWhereItFits(t *testing.T) {
	cards := node(4)
	got, err := Check(cards, used(cards, 0, 70), share(30, 1), []CardChoice{{1, 30}})
	want := Placement{Cards: []CardShare{{UUID: "GPU-01", Index: 1, Share: 30, Cores: 30, Memory: 24 * gpu.GiB}}}
	if err != nil || !reflect.DeepEqual(got.Placement, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	// Two whole cards, named in the other order; the caller's slice stays.
	choice := []CardChoice{{3, 100}, {0, 100}}
	got, err = Check(cards, used(cards, 0, 70), share(200, 2), choice)
	if err != nil || !reflect.DeepEqual(indexes(got), []int{0, 3}) || choice[0].Index != 3 {
		t.Errorf("got %+v, %v; choice is %v", got, err, choice)
	}
	// A share that is not known is what the shards say, on each card its own.
	got, err = Check(cards, nil, request.Request{}, []CardChoice{{0, 10}, {2, 40}})
	if err != nil || got.Placement.Cards[0].Cores != 10 || got.Placement.Cards[1].Cores != 40 || got.Placement.Cards[1].Memory != 32*gpu.GiB {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestTheChoiceOfSlurmctldIsRefusedWhereItIsWrong(t *testing.T) {
	cards := node(4)
	cards[2].Healthy = false
	cards[3].MIG = true
	tight := used(cards, 50)
	tight["GPU-00"] = Use{Units: 50, Memory: 60 * gpu.GiB, Jobs: 1}
	for name, test := range map[string]struct {
		request request.Request
		inUse   InUse
		chosen  []CardChoice
		kind    error
		want    string
	}{
		"no card":                  {share(30, 1), nil, nil, ErrNoCard, "slurmctld chose no card"},
		"a card that is not there": {share(30, 1), nil, []CardChoice{{4, 30}}, ErrNoCard, "card 4 is not on this node, which has 4 cards"},
		"an index below zero":      {share(30, 1), nil, []CardChoice{{-1, 30}}, ErrNoCard, "card -1 is not on this node"},
		"a card that is sick":      {share(30, 1), nil, []CardChoice{{2, 30}}, ErrNoCard, "card 2 (GPU-02) is not healthy"},
		"a card in MIG mode":       {share(30, 1), nil, []CardChoice{{3, 30}}, ErrNoCard, "card 3 (GPU-03) is in MIG mode"},
		"no shards":                {request.Request{}, nil, []CardChoice{{0, 0}}, ErrNoCard, "want 1 to 100 shards on one card, slurmctld gave 0"},
		"too many shards":          {request.Request{}, nil, []CardChoice{{0, 150}}, ErrNoCard, "want 1 to 100 shards on one card, slurmctld gave 150"},
		"a card twice":             {share(60, 2), nil, []CardChoice{{1, 30}, {1, 30}}, ErrNoCard, "card 1 was chosen twice"},
		"a card that is full": {
			share(60, 1), tight,
			[]CardChoice{{0, 60}},
			ErrNoRoom,
			"want 60 % and 48 GiB on one card: card 0 has 50 % and 20 GiB free",
		},
		"a card without memory": {
			share(30, 1), tight,
			[]CardChoice{{0, 30}},
			ErrNoRoom,
			"want 30 % and 24 GiB on one card: card 0 has 50 % and 20 GiB free",
		},
		"a second card that is full": {share(120, 2), tight, []CardChoice{{1, 60}, {0, 60}}, ErrNoRoom, "card 0 has 50 %"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Check(cards, test.inUse, test.request, test.chosen)
			if errors.Is(err, ErrChoice) != (test.kind == ErrNoCard) {
				t.Errorf("error %v: a choice that no request can change: %v", err, errors.Is(err, ErrChoice))
			}
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %+v, error\n\t%v\nwant\n\t…%s", got, err, test.want)
			}
			if len(got.Placement.Cards) != 0 {
				t.Errorf("a placement came with the error: %+v", got)
			}
		})
	}
}

func TestAMistakeOfTheUserIsNeitherSentinel(t *testing.T) {
	cards := node(2)
	for name, test := range map[string]struct {
		request request.Request
		chosen  []CardChoice
	}{
		"memory above the shards": {request.Request{Memory: request.Memory{Bytes: 30 * gpu.GiB}}, []CardChoice{{0, 30}}},
		"cards that were not got": {share(60, 2), []CardChoice{{0, 60}}},
	} {
		_, err := Check(cards, nil, test.request, test.chosen)
		var mistake *request.Error
		if !errors.As(err, &mistake) || errors.Is(err, ErrNoRoom) || errors.Is(err, ErrNoCard) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	// What a component of a het job inherits is lowered, not refused.
	clamped := share(60, 2)
	clamped.Clamp = true
	if _, err := Check(cards, nil, clamped, []CardChoice{{0, 60}}); err != nil {
		t.Errorf("het: %v", err)
	}
}

// A ledger from before a card was exchanged for a smaller one.
func TestUseAboveTheCardIsNoRoomRatherThanEndlessRoom(t *testing.T) {
	cards := node(1)
	inUse := InUse{"GPU-00": {Units: 130, Memory: 100 * gpu.GiB, Jobs: 2}}
	if got, err := Check(cards, inUse, share(1, 1), []CardChoice{{0, 1}}); !errors.Is(err, ErrNoRoom) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := Choose(cards, inUse, share(1, 1), nil); !errors.Is(err, ErrNoRoom) {
		t.Errorf("Choose: got %+v, %v", got, err)
	}
}

// Table is Distances of plain numbers: Table[i][j] for the cards at Index i and
// j. Rows may be short; what is absent is not known.
type Table [][]int

func (t Table) Cost(i, j int) int {
	if i < 0 || j < 0 || i >= len(t) || j >= len(t[i]) {
		return -1
	}
	return t[i][j]
}

// pairs is the cost of eight cards: neighbours (0,1), (2,3)… share a switch,
// halves share a socket.
func pairs() Table {
	cost := make(Table, 8)
	for i := range cost {
		cost[i] = make([]int, 8)
		for j := range cost[i] {
			switch {
			case i == j:
			case i/2 == j/2:
				cost[i][j] = 10
			case i/4 == j/4:
				cost[i][j] = 30
			default:
				cost[i][j] = 50
			}
		}
	}
	return cost
}

func TestChoices(t *testing.T) {
	four, eight := node(4), node(8)
	sick := node(4)
	sick[0].Healthy, sick[1].MIG = false, true
	mixed := node(2)
	mixed[1].Memory = 40 * gpu.GiB
	with := func(r request.Request, p gpu.Policy) request.Request {
		r.Policy = p
		return r
	}
	for name, test := range map[string]struct {
		cards   []gpu.Card
		inUse   InUse
		request request.Request
		cost    Distances
		want    []int
	}{
		"an empty node gives the last card":       {four, nil, share(30, 1), nil, []int{3}},
		"binpack fills the fullest that fits":     {four, used(four, 0, 40, 70, 80), share(30, 1), nil, []int{2}},
		"binpack is the default and the name":     {four, used(four, 0, 40, 70, 80), with(share(30, 1), gpu.Binpack), nil, []int{2}},
		"spread takes the emptiest":               {four, used(four, 10, 40, 5, 80), with(share(30, 1), gpu.Spread), nil, []int{2}},
		"equals go to the highest index":          {four, used(four, 50, 50, 50, 20), share(30, 1), nil, []int{2}},
		"sick and MIG cards are passed over":      {sick, nil, share(30, 1), nil, []int{3}},
		"memory decides where units are equal":    {mixed, nil, request.Request{Share: 30, Cards: 1, Memory: request.Memory{Bytes: 10 * gpu.GiB}}, nil, []int{1}},
		"a whole card needs an idle one":          {four, used(four, 1, 0, 1, 1), share(100, 1), nil, []int{1}},
		"two whole cards on one switch":           {eight, used(eight, 30), share(200, 2), pairs(), []int{2, 3}},
		"four whole cards on one socket":          {eight, used(eight, 30), share(400, 4), pairs(), []int{4, 5, 6, 7}},
		"five cards, as few across as can be":     {eight, used(eight, 1, 0, 1), share(500, 5), pairs(), []int{3, 4, 5, 6, 7}},
		"one whole card leaves pairs whole":       {eight, used(eight, 30), share(100, 1), pairs(), []int{1}},
		"topology prefers a switch to full cards": {eight, used(eight, 50, 0, 50), with(share(40, 2), gpu.Topology), pairs(), []int{2, 3}},
		"binpack prefers full cards to a switch":  {eight, used(eight, 50, 0, 50), with(share(40, 2), gpu.Binpack), pairs(), []int{0, 2}},
		"spread over two prefers idle cards":      {eight, used(eight, 50, 0, 50), with(share(40, 2), gpu.Spread), pairs(), []int{6, 7}},
		"without costs NUMA nodes decide":         {four, used(four, 1), share(200, 2), nil, []int{2, 3}},
		"all cards":                               {four, nil, share(400, 4), nil, []int{0, 1, 2, 3}},
		"exclusive takes an idle card":            {four, used(four, 10, 0, 20), with(share(30, 1), gpu.Exclusive), nil, []int{3}},
		"exclusive cards are near each other":     {eight, used(eight, 1, 0, 1), with(share(60, 2), gpu.Exclusive), pairs(), []int{6, 7}},
		"one idle card of a pair that is broken":  {eight, used(eight, 0, 0, 0, 0, 0, 30), share(100, 1), pairs(), []int{4}},
		"distances that are not known are far":    {four, nil, share(200, 2), Table{nil, nil, {}, {50, 50, 40}}, []int{2, 3}},
		"the dominant share is what must fit":     {four, used(four, 60), request.Request{Share: 10, Cards: 1, Memory: request.Memory{Percent: 50}}, nil, []int{3}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Choose(test.cards, test.inUse, test.request, test.cost)
			if err != nil || !reflect.DeepEqual(indexes(got), test.want) {
				t.Errorf("got %v, %v; want %v", indexes(got), err, test.want)
			}
		})
	}
}

func TestAChoiceTakesTheDominantShare(t *testing.T) {
	got, err := Choose(node(1), nil, request.Request{Share: 10, Cards: 1, Cores: 40, Memory: request.Memory{Bytes: 4 * gpu.GiB}}, nil)
	want := Placement{Cards: []CardShare{{UUID: "GPU-00", Share: 40, Cores: 40, Memory: 4 * gpu.GiB}}}
	if err != nil || !reflect.DeepEqual(got.Placement, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestChoicesThatCannotBeMade(t *testing.T) {
	cards := node(4)
	for name, test := range map[string]struct {
		inUse   InUse
		request request.Request
		kind    error
		want    string
	}{
		"every card is too full": {
			used(cards, 80, 75, 90, 80), share(30, 1), ErrNoRoom,
			"want 30 % and 24 GiB on one card: largest free share 25 % (card 1), largest free memory 20 GiB (card 1)",
		},
		"free in sum, but not on one card": {used(cards, 30, 30, 30, 30), share(80, 1), ErrNoRoom, "largest free share 70 %"},
		"too few idle cards":               {used(cards, 1, 1, 1), share(200, 2), ErrNoRoom, "want 100 % and 80 GiB on each of 2 cards: largest free share 100 % (card 3)"},
		"more cards than there are":        {nil, share(500, 5), ErrNoCard, "want 5 cards, this node can share 4 of its 4"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Choose(cards, test.inUse, test.request, nil)
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, error\n\t%v\nwant\n\t…%s", indexes(got), err, test.want)
			}
		})
	}
	var mistake *request.Error
	if _, err := Choose(cards, nil, request.Request{Share: 10, Cards: 1, Memory: request.Memory{Bytes: 100 * gpu.GiB}}, nil); !errors.As(err, &mistake) {
		t.Errorf("memory above every card: %v", err)
	}
	if _, err := Choose(cards, nil, request.Request{}, nil); !errors.As(err, &mistake) {
		t.Errorf("no share at all: %v", err)
	}
	if _, err := Choose(nil, nil, share(30, 1), nil); !errors.Is(err, ErrNoCard) {
		t.Errorf("no card at all: %v", err)
	}
	// Only a card that is out of use is large enough.
	mixed := node(2)
	mixed[0].Memory, mixed[1].Healthy = 40*gpu.GiB, false
	for memory, ofUser := range map[gpu.Bytes]bool{60 * gpu.GiB: false, 100 * gpu.GiB: true} {
		_, err := Choose(mixed, nil, request.Request{Share: 10, Cards: 1, Memory: request.Memory{Bytes: memory}}, nil)
		if errors.As(err, &mistake) != ofUser || errors.Is(err, ErrNoCard) == ofUser {
			t.Errorf("%s beside a sick card: %v", memory, err)
		}
	}
}

func TestMoreCardsThanEverySetCanBeLookedAt(t *testing.T) {
	cards := node(24)
	cost := make(Table, 24)
	for i := range cost {
		cost[i] = make([]int, 24)
		for j := range cost[i] {
			if i/4 != j/4 {
				cost[i][j] = 50
			}
		}
	}
	got, err := Choose(cards, used(cards, 1, 0, 0, 0, 0, 1), share(400, 4), cost)
	if err != nil || !reflect.DeepEqual(indexes(got), []int{20, 21, 22, 23}) {
		t.Errorf("got %v, %v", indexes(got), err)
	}
}

// stream places and releases jobs at random and holds after each step that no
// card is given out twice. It returns all that was decided.
func stream(t *testing.T, seed uint64, slurm bool) string {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	cards := node(1 + random.IntN(8))
	for i := range cards {
		cards[i].Memory = gpu.Bytes(1000+random.IntN(200000)) * gpu.MiB / 7
		cards[i].Healthy = random.IntN(10) != 0
		if random.IntN(2) == 0 {
			cards[i] = cards[i].Scaled(1 + 2*random.Float64())
		}
	}
	var log strings.Builder
	var live []Placement
	for step := range 400 {
		if len(live) > 0 && random.IntN(3) == 0 {
			i := random.IntN(len(live))
			live = append(live[:i], live[i+1:]...)
			continue
		}
		inUse := InUse{}
		for _, p := range live {
			inUse.Add(p)
		}
		var d Decision
		var err error
		req := randomRequest(random)
		if slurm {
			var chosen []CardChoice
			for range max(1, req.Cards) {
				chosen = append(chosen, CardChoice{random.IntN(len(cards) + 1), gpu.Share(random.IntN(110))})
			}
			d, err = Check(cards, inUse, req, chosen)
		} else {
			d, err = Choose(cards, inUse, req, pairs())
		}
		fmt.Fprintln(&log, step, d.Placement, reasonsOf(d), err)
		checkVerdicts(t, cards, d, err)
		if err != nil {
			var mistake *request.Error
			if !errors.Is(err, ErrNoRoom) && !errors.Is(err, ErrNoCard) && !errors.As(err, &mistake) {
				t.Fatalf("seed %d step %d: error is %v", seed, step, err)
			}
			continue
		}
		live = append(live, d.Placement)
		checkCards(t, cards, live)
	}
	return log.String()
}

func randomRequest(random *rand.Rand) request.Request {
	r := request.Request{Cards: 1 + random.IntN(3)}
	r.Share = gpu.Share(r.Cards * (1 + random.IntN(100)))
	switch random.IntN(4) {
	case 0:
		r.Memory.Percent = gpu.Percent(1 + random.IntN(100))
	case 1:
		r.Memory.Bytes = gpu.Bytes(1 + random.Int64N(40<<30))
	case 2:
		r.Cores = gpu.Share(1 + random.IntN(100))
	}
	r.Policy = []gpu.Policy{"", gpu.Binpack, gpu.Spread, gpu.Topology, gpu.Exclusive}[random.IntN(5)]
	r.Clamp = random.IntN(4) == 0
	return r
}

func checkCards(t *testing.T, cards []gpu.Card, live []Placement) {
	t.Helper()
	inUse := InUse{}
	cores, physical, alone := map[gpu.UUID]gpu.Share{}, map[gpu.UUID]gpu.Bytes{}, map[gpu.UUID]bool{}
	for _, p := range live {
		inUse.Add(p)
		for i, c := range p.Cards {
			cores[c.UUID] += c.Cores
			physical[c.UUID] += cmp.Or(c.Physical, c.Memory)
			alone[c.UUID] = alone[c.UUID] || c.Share == gpu.FullCard
			if c.Cores < 1 || c.Cores > c.Share || c.Memory < 1 {
				t.Fatalf("granted %+v", c)
			}
			if i > 0 && p.Cards[i-1].Index >= c.Index {
				t.Fatalf("cards are not in order: %+v", p)
			}
		}
	}
	for _, c := range cards {
		use := inUse[c.UUID]
		own := cmp.Or(c.Physical, c.Memory)
		if use.Units > gpu.FullCard || cores[c.UUID] > gpu.FullCard || use.Memory > c.Memory || physical[c.UUID] > own {
			t.Fatalf("card %d of %s is over-committed: %+v, cores %d, %s of its own %s",
				c.Index, c.Memory, use, cores[c.UUID], physical[c.UUID], own)
		}
		if alone[c.UUID] && use.Jobs > 1 {
			t.Fatalf("card %d is held whole, by %d jobs", c.Index, use.Jobs)
		}
		if !c.Healthy && use.Jobs != 0 {
			t.Fatalf("card %d is sick and was granted", c.Index)
		}
	}
}

func TestNoStreamOfJobsOverCommitsACard(t *testing.T) {
	for seed := range uint64(150) {
		for _, slurm := range []bool{false, true} {
			log := stream(t, seed, slurm)
			if again := stream(t, seed, slurm); again != log {
				t.Fatalf("seed %d: the same stream was decided in two ways", seed)
			}
		}
	}
}

func TestOversubscribedCards(t *testing.T) {
	cards := node(2)
	for i := range cards {
		cards[i] = cards[i].Scaled(1.5) // 120 of 80 GiB
	}
	got, err := Check(cards, used(cards, 50), share(50, 1), []CardChoice{{0, 50}})
	want := CardShare{UUID: "GPU-00", Index: 0, Share: 50, Cores: 50, Memory: 60 * gpu.GiB, Physical: 40 * gpu.GiB}
	if err != nil || got.Placement.Cards[0] != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	tiny := request.Request{Share: 1, Memory: request.Memory{Bytes: 1}}
	if got, err = Check(cards, nil, tiny, []CardChoice{{0, 1}}); err != nil || got.Placement.Cards[0].Physical != 1 || got.Placement.Cards[0].Memory != 1 {
		t.Errorf("a limit of one byte: %+v, %v", got, err)
	}
	// Memory beyond the card's own is a larger dominant share than before.
	big := request.Request{Share: 10, Memory: request.Memory{Bytes: 100 * gpu.GiB}}
	if got, err = Choose(cards, nil, big, nil); err != nil || got.Placement.Cards[0].Share != 84 || got.Placement.Cards[0].Physical >= 80*gpu.GiB {
		t.Errorf("100 GiB of a card of 80: %+v, %v", got, err)
	}
}
