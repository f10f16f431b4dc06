// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// rule picks cards for a job, given the free units of every card; nil: refused.
type rule struct {
	name string
	pick func(free []int, job kind) []int
}

// vgpu is the one of this project; the others are published ones.
const vgpu = "gresd, binpack"

func rules(m mix) []rule {
	return []rule{
		{"first fit", firstFit},
		{"best fit", byFree(func(a, b int) int { return a - b })},
		{"spread", byFree(func(a, b int) int { return b - a })},
		{"FGD", newFGD(m).pick},
		{vgpu, chosen},
	}
}

func fitting(free []int, job kind) []int {
	var cards []int
	for i, f := range free {
		if f >= job.units {
			cards = append(cards, i)
		}
	}
	if len(cards) < job.cards {
		return nil
	}
	return cards
}

func firstFit(free []int, job kind) []int {
	cards := fitting(free, job)
	return cards[:min(len(cards), job.cards)]
}

func byFree(compare func(a, b int) int) func([]int, kind) []int {
	return func(free []int, job kind) []int {
		cards := fitting(free, job)
		slices.SortStableFunc(cards, func(a, b int) int { return compare(free[a], free[b]) })
		return cards[:min(len(cards), job.cards)]
	}
}

// fgd takes the card that adds least to the fragmentation that a job of the mix
// is expected to meet. It is told the true mix.
type fgd struct {
	kinds []kind
}

func newFGD(m mix) fgd { return fgd{m.kinds} }

func (f fgd) pick(free []int, job kind) []int {
	cards := fitting(free, job)
	if len(cards) == 0 || job.units == 100 {
		return cards[:min(len(cards), job.cards)] // idle cards are all alike
	}
	best, least := -1, 0
	for _, i := range cards {
		free[i] -= job.units
		n := f.fragments(free)
		free[i] += job.units
		if best < 0 || n < least || n == least && free[i] < free[best] {
			best, least = i, n
		}
	}
	return []int{best}
}

// fragments is the sum over the jobs of the mix of the free units that such a
// job cannot use: all of them where it does not fit, else those of the cards
// that are too full for it.
func (f fgd) fragments(free []int) int {
	sum := 0
	for _, k := range f.kinds {
		cards, all, lost := 0, 0, 0
		for _, n := range free {
			all += n
			if n >= k.units {
				cards++
			} else {
				lost += n
			}
		}
		if cards < k.cards {
			lost = all
		}
		sum += k.count * lost
	}
	return sum
}

// chosen is gresd's own code.
func chosen(free []int, job kind) []int {
	cards, inUse := make([]gpu.Card, len(free)), place.InUse{}
	for i, n := range free {
		cards[i] = gpu.Card{
			UUID: gpu.UUID(fmt.Sprint(i)), Index: i, Memory: 80 * gpu.GiB, NUMANode: -1, Healthy: true,
		}
		if used := gpu.Share(100 - n); used > 0 {
			inUse[cards[i].UUID] = place.Use{Units: used, Memory: cards[i].MemoryShare(used), Jobs: 1}
		}
	}
	req := request.Request{Cards: job.cards, Share: gpu.Share(job.cards * job.units), Policy: gpu.Binpack}
	d, err := place.Choose(cards, inUse, req, nil)
	if err != nil {
		return nil
	}
	var picked []int
	for _, c := range d.Placement.Cards {
		picked = append(picked, c.Index)
	}
	return picked
}
