// SPDX-License-Identifier: Apache-2.0

package place

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// checkVerdicts holds what every decision must keep: a verdict on each card,
// and "taken" on exactly the cards of the placement.
func checkVerdicts(t *testing.T, cards []gpu.Card, d Decision, err error) {
	t.Helper()
	if len(d.Verdicts) != len(cards) {
		t.Fatalf("%d verdicts on %d cards", len(d.Verdicts), len(cards))
	}
	if (err == nil) != (len(d.Placement.Cards) > 0) {
		t.Fatalf("placement %+v came with error %v", d.Placement, err)
	}
	for i, v := range d.Verdicts {
		if i > 0 && d.Verdicts[i-1].Index >= v.Index {
			t.Fatalf("verdicts are not in order: %+v", d.Verdicts)
		}
		if !slices.Contains(Reasons(), v.Reason) || v.Reason == Fits {
			t.Fatalf("card %d: reason %q of a decision", v.Index, v.Reason)
		}
		taken := slices.ContainsFunc(d.Placement.Cards, func(c CardShare) bool { return c.UUID == v.UUID })
		if taken != (v.Reason == Taken) {
			t.Fatalf("card %d is %q; placement %+v", v.Index, v.Reason, d.Placement)
		}
	}
}

func TestEveryReasonHasWordsAndIsALabel(t *testing.T) {
	label, seen := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`), map[string]bool{}
	for _, r := range Reasons() {
		if !label.MatchString(string(r)) || r.Words() == string(r) || seen[r.Words()] {
			t.Errorf("%q: words %q", r, r.Words())
		}
		seen[r.Words()] = true
	}
	for _, order := range criteria {
		for _, c := range order {
			if !slices.Contains(Reasons(), worseBy[c]) {
				t.Errorf("criterion %d: reason %q", c, worseBy[c])
			}
		}
	}
	if got := Reason("new").Words(); got != "new" {
		t.Errorf("an unknown reason reads %q", got)
	}
}

func TestReasonsOfChoices(t *testing.T) {
	four, eight := node(4), node(8)
	sick := node(4)
	sick[0].Healthy, sick[1].MIG = false, true
	small := node(2)
	small[0].Memory = 20 * gpu.GiB
	numa := node(3)
	numa[0].NUMANode, numa[1].NUMANode, numa[2].NUMANode = 0, 1, 1
	with := func(r request.Request, p gpu.Policy) request.Request {
		r.Policy = p
		return r
	}
	memory := func(n gpu.Bytes) request.Request {
		return request.Request{Share: 10, Cards: 1, Memory: request.Memory{Bytes: n}}
	}
	for name, test := range map[string]struct {
		cards   []gpu.Card
		inUse   InUse
		request request.Request
		want    []Reason
	}{
		"cards out of use":          {sick, nil, share(30, 1), []Reason{Unhealthy, MIG, LowerIndex, Taken}},
		"too full":                  {four, used(four, 80, 75, 50), share(30, 1), []Reason{NoShare, NoShare, Taken, LeavesMore}},
		"too full for the memory":   {four, used(four, 80, 95, 50), memory(20 * gpu.GiB), []Reason{NoMemory, NoShare, Taken, LeavesMore}},
		"a card that is too small":  {small, nil, memory(30 * gpu.GiB), []Reason{TooSmall, Taken}},
		"an emptier card":           {four, used(four, 10, 40, 5, 80), with(share(30, 1), gpu.Spread), []Reason{LeavesLess, LeavesLess, Taken, NoShare}},
		"other jobs":                {four, used(four, 10, 0, 100), with(share(30, 1), gpu.Exclusive), []Reason{Occupied, LowerIndex, Occupied, Taken}},
		"one of two":                {four, used(four, 90, 90, 90), share(60, 2), []Reason{NoShare, NoShare, NoShare, TooFew}},
		"none":                      {four, nil, request.Request{}, []Reason{BadRequest, BadRequest, BadRequest, BadRequest}},
		"a ceiling below the share": {four, nil, request.Request{Share: 50, Mode: gpu.Soft, Ceiling: 20}, []Reason{BadRequest, BadRequest, BadRequest, BadRequest}},
		"far away":                  {eight, used(eight, 30), share(200, 2), []Reason{NoShare, Farther, Taken, Taken, Farther, Farther, Farther, Farther}},
		"the end of a pair":         {eight, used(eight, 30), share(100, 1), []Reason{NoShare, Taken, SplitsIdle, SplitsIdle, SplitsIdle, SplitsIdle, SplitsIdle, SplitsIdle}},
		"another NUMA node":         {numa, nil, share(200, 2), []Reason{MoreNUMA, Taken, Taken}},
	} {
		t.Run(name, func(t *testing.T) {
			distances := Distances(pairs())
			if name == "another NUMA node" {
				distances = nil
			}
			d, err := Choose(test.cards, test.inUse, test.request, distances)
			checkVerdicts(t, test.cards, d, err)
			if got := reasonsOf(d); !slices.Equal(got, test.want) {
				t.Errorf("got %v, %v; want %v", got, err, test.want)
			}
		})
	}
}

func reasonsOf(d Decision) []Reason {
	var all []Reason
	for _, v := range d.Verdicts {
		all = append(all, v.Reason)
	}
	return all
}

func TestReasonsOfSlurmctldsChoice(t *testing.T) {
	cards := node(4)
	cards[3].Healthy = false
	exclusive := share(30, 1)
	exclusive.Policy = gpu.Exclusive
	memory := request.Request{Memory: request.Memory{Bytes: 90 * gpu.GiB}}
	stale := InUse{"GPU-00": {Units: 50, Memory: 70 * gpu.GiB, Jobs: 1}}
	for name, test := range map[string]struct {
		inUse   InUse
		request request.Request
		chosen  []CardChoice
		want    []Reason
	}{
		"it fits":                     {nil, share(30, 1), []CardChoice{{1, 30}}, []Reason{NotNamed, Taken, NotNamed, Unhealthy}},
		"no card":                     {nil, share(30, 1), nil, []Reason{NotNamed, NotNamed, NotNamed, Unhealthy}},
		"a sick card":                 {nil, share(30, 1), []CardChoice{{3, 30}}, []Reason{NotNamed, NotNamed, NotNamed, Unhealthy}},
		"a full card, and a good one": {used(cards, 0, 80), share(60, 2), []CardChoice{{0, 30}, {1, 30}}, []Reason{TooFew, NoShare, NotNamed, Unhealthy}},
		"memory that is gone":         {stale, share(30, 1), []CardChoice{{0, 30}}, []Reason{NoMemory, NotNamed, NotNamed, Unhealthy}},
		"a part for one job alone":    {nil, exclusive, []CardChoice{{0, 30}}, []Reason{BadRequest, NotNamed, NotNamed, Unhealthy}},
		"all of a card for one job":   {nil, exclusive, []CardChoice{{0, 100}}, []Reason{Taken, NotNamed, NotNamed, Unhealthy}},
		"more memory than the card":   {nil, memory, []CardChoice{{2, 100}}, []Reason{NotNamed, NotNamed, TooSmall, Unhealthy}},
		"a card twice":                {nil, share(60, 2), []CardChoice{{1, 30}, {1, 30}}, []Reason{NotNamed, BadRequest, NotNamed, Unhealthy}},
		"shards that cannot be":       {nil, request.Request{}, []CardChoice{{0, 101}}, []Reason{BadRequest, NotNamed, NotNamed, Unhealthy}},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Check(cards, test.inUse, test.request, test.chosen)
			checkVerdicts(t, cards, d, err)
			if got := reasonsOf(d); !slices.Equal(got, test.want) {
				t.Errorf("got %v, %v; want %v", got, err, test.want)
			}
		})
	}
	// A component of a het job inherits the policy of another.
	exclusive.Clamp = true
	if d, err := Check(cards, nil, exclusive, []CardChoice{{0, 30}}); err != nil || len(d.Placement.Cards) != 1 {
		t.Errorf("het: %+v, %v", d, err)
	}
}

func TestADecisionCanBeTakenBack(t *testing.T) {
	d, err := Choose(node(2), nil, share(30, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	d.Refuse(SiteLimit)
	if got := reasonsOf(d); len(d.Placement.Cards) != 0 || !slices.Equal(got, []Reason{SiteLimit, SiteLimit}) {
		t.Errorf("got %v, placement %+v", got, d.Placement)
	}
}

func TestAChoiceCanBeLeftOpen(t *testing.T) {
	cards := node(8)
	cards[7].Healthy = false
	for _, policy := range []gpu.Policy{gpu.Binpack, gpu.Spread, gpu.Topology} {
		req := share(60, 2)
		req.Policy = policy
		d, err := Choose(cards, used(cards, 80, 30, 60), req, pairs())
		if err != nil {
			t.Fatal(err)
		}
		d.LeaveOpen()
		if got := reasonsOf(d); !slices.Equal(got, []Reason{NoShare, Fits, Fits, Fits, Fits, Fits, Fits, Unhealthy}) || len(d.Placement.Cards) != 0 {
			t.Errorf("%s: got %v", policy, got)
		}
	}
}

func TestAPlacementWhoseReasonsAreLost(t *testing.T) {
	cards := node(4)
	cards[3].MIG = true
	placement := Placement{Cards: []CardShare{{UUID: "GPU-01", Index: 1, Share: 40, Cores: 30, Memory: 8 * gpu.GiB}}}
	d := Given(cards, used(cards, 70), placement)
	if got := reasonsOf(d); !slices.Equal(got, []Reason{NoShare, Taken, Fits, MIG}) {
		t.Errorf("got %v", got)
	}
	if v := d.Verdicts[1]; v.Want != (request.Grant{Units: 40, Cores: 30, Memory: 8 * gpu.GiB}) || v.Free.Units != 100 {
		t.Errorf("verdict on its own card: %+v", v)
	}
}

func TestTheManualHasEveryReason(t *testing.T) {
	text, err := os.ReadFile("../../docs/placement.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range Reasons() {
		if row := fmt.Sprintf("| `%s` | %s |", r, r.Words()); !strings.Contains(string(text), row) {
			t.Errorf("docs/placement.md has no row\n\t%s", row)
		}
	}
}
