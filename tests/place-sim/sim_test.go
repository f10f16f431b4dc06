// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

// On a node of which every job takes a whole card, all rules are alike and the
// part refused is Erlang's formula, whatever the distribution of lifetimes.
func TestWholeCardsFollowErlang(t *testing.T) {
	m := mix{"whole cards", []kind{{1, 100, 1}}}
	for _, load := range []float64{0.7, 1.2} {
		offered := load * 8
		loss := 1.0
		for n := 1.0; n <= 8; n++ {
			loss = offered * loss / (n + offered*loss)
		}
		for _, r := range []rule{rules(m)[0], rules(m)[4]} {
			var got result
			const seeds = 12
			for seed := range uint64(seeds) {
				one := scenario{m, 8, load, 20000, seed}.run(r)
				got.used += one.used / seeds
				got.refused += one.refused / seeds
			}
			if math.Abs(got.refused-100*loss) > 1 || math.Abs(got.used-100*load*(1-loss)) > 1 {
				t.Errorf("load %.1f, %s: used %.2f %%, refused %.2f %%; Erlang says %.2f %% and %.2f %%",
					load, r.name, got.used, got.refused, 100*load*(1-loss), 100*loss)
			}
		}
	}
}

// The rule of this project is as good as the best published one.
func TestOursIsWithinAFifthOfAPointOfTheBest(t *testing.T) {
	const tolerance = 0.2
	c := campaign{cards: 8, jobs: 10000, seeds: 4}
	for _, m := range mixes() {
		for _, load := range []float64{0.7, 1.3} {
			means, errors := c.run(m, load)
			ours := means[len(means)-1].used
			for i, r := range rules(m) {
				// Four runs tell a difference only down to their own error.
				if means[i].used-ours > tolerance+2*errors[i] {
					t.Errorf("%s, load %.1f: %s uses %.2f ± %.2f %%, ours %.2f %%", m.name, load, r.name, means[i].used, errors[i], ours)
				}
			}
			if means[2].used > ours-1 {
				t.Errorf("%s, load %.1f: spread uses %.2f %%, ours %.2f %%: no run so short can show a difference", m.name, load, means[2].used, ours)
			}
		}
	}
}

func TestTheMixIsThePublishedOne(t *testing.T) {
	total, _ := mix{"", published}.total()
	if total != 8152-1088 { // its README counts 8152 jobs
		t.Errorf("%d jobs", total)
	}
	count := func(keep func(kind) bool) (n int) {
		for _, k := range published {
			if keep(k) {
				n += k.count
			}
		}
		return n
	}
	// Table 1 of the paper, in parts of all jobs.
	for name, c := range map[string]struct {
		keep func(kind) bool
		want float64
	}{
		"a part of a GPU": {func(k kind) bool { return k.units < 100 }, 37.8},
		"one GPU":         {func(k kind) bool { return k.units == 100 && k.cards == 1 }, 48.0},
		"eight GPUs":      {func(k kind) bool { return k.cards == 8 }, 0.5},
	} {
		if got := 100 * float64(count(c.keep)) / 8152; math.Abs(got-c.want) > 0.06 {
			t.Errorf("%s: %.2f %%, the paper says %.1f %%", name, got, c.want)
		}
	}
	m := mix{"", []kind{{1, 30, 2}, {1, 50, 1}}}
	if m.pick(0).units != 30 || m.pick(1).units != 30 || m.pick(2).units != 50 {
		t.Error("kinds are not picked by their count")
	}
}

func TestRulesPickWhatTheirNamesSay(t *testing.T) {
	m := mix{"", []kind{{1, 40, 1}, {1, 60, 1}, {2, 100, 1}}}
	for name, c := range map[string]struct {
		free []int
		job  kind
		want map[string][]int
	}{
		"a share": {[]int{20, 90, 50, 100}, kind{1, 40, 1}, map[string][]int{
			"first fit": {1}, "best fit": {2}, "spread": {3}, vgpu: {2},
			// Fragments after card 1: 20 + 120 + 220, card 2: 30 + 30 + 220, card 3:
			// 20 + 70 + 220.
			"FGD": {2},
		}},
		"two cards":      {[]int{100, 90, 100, 100}, kind{2, 100, 1}, map[string][]int{"first fit": {0, 2}, "best fit": {0, 2}, "spread": {0, 2}, "FGD": {0, 2}, vgpu: {2, 3}}},
		"not enough":     {[]int{100, 90}, kind{2, 100, 1}, map[string][]int{"first fit": nil, "best fit": nil, "spread": nil, "FGD": nil, vgpu: nil}},
		"nothing at all": {[]int{10, 10}, kind{1, 40, 1}, map[string][]int{"first fit": nil, "best fit": nil, "spread": nil, "FGD": nil, vgpu: nil}},
	} {
		for _, r := range rules(m) {
			free := slices.Clone(c.free)
			if got := r.pick(free, c.job); !slices.Equal(got, c.want[r.name]) {
				t.Errorf("%s: %s picks %v, want %v", name, r.name, got, c.want[r.name])
			}
			if !slices.Equal(free, c.free) {
				t.Errorf("%s: %s changed the node", name, r.name)
			}
		}
	}
}

func TestFragmentsAreCountedAsDefined(t *testing.T) {
	f := newFGD(mix{"", []kind{{1, 40, 3}, {2, 100, 1}}})
	// A share of 40 cannot use the 20; two cards do not fit: nothing is of use.
	if got := f.fragments([]int{20, 50, 100}); got != 3*20+170 {
		t.Errorf("got %d", got)
	}
	if got := f.fragments([]int{20, 100, 100}); got != 3*20+20 {
		t.Errorf("got %d", got)
	}
}

func TestThePlotIsXML(t *testing.T) {
	text := campaign{cards: 8, jobs: 50, seeds: 1}.plot()
	decoder := xml.NewDecoder(strings.NewReader(text))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(text, "<polyline"); n != 2*2*len(styles) {
		t.Errorf("%d lines", n)
	}
	if strings.Contains(text, "NaN") {
		t.Error("a point is no number")
	}
}
