// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

func on(card string, c Claim) Claim {
	c.Card = gpu.UUID(card)
	return c
}

func TestWindowsOfAJobWithSeveralCards(t *testing.T) {
	long := on("a", claim(1, 50, hard, 1))
	long.Kernel = 20_000_000
	for _, c := range []struct {
		name   string
		claims []Claim
		want   []libvgpu.Window // a zero one: no window
	}{
		{"one card has its budget", []Claim{on("a", claim(1, 50, hard, 1))}, []libvgpu.Window{{}}},
		{
			"alone on both cards",
			[]Claim{on("a", claim(1, 50, hard, 1)), on("b", claim(1, 50, hard, 1))},
			[]libvgpu.Window{{PeriodUS: 50000, LengthUS: 25000, QueueUS: 2000}, {PeriodUS: 50000, LengthUS: 25000, QueueUS: 2000}},
		},
		{
			// 30 of 30 + 50: the slices give 37.5 % of the window, so it is 80 % of the period.
			"one card with a busy neighbour",
			[]Claim{on("a", claim(1, 30, hard, 1)), on("b", claim(1, 30, hard, 1)), on("b", claim(2, 50, hard, 1))},
			[]libvgpu.Window{{PeriodUS: 50000, LengthUS: 15000, QueueUS: 2000}, {PeriodUS: 50000, LengthUS: 40000, QueueUS: 2000}, {}},
		},
		{
			"held by its neighbours: no window",
			[]Claim{
				on("a", claim(1, 30, hard, 1)), on("b", claim(1, 30, hard, 1)),
				on("a", claim(2, 70, hard, 1)), on("b", claim(3, 70, hard, 1)),
			},
			[]libvgpu.Window{{}, {}, {}, {}},
		},
		{"soft is not held", []Claim{on("a", claim(1, 50, soft, 1)), on("b", claim(1, 50, soft, 1))}, []libvgpu.Window{{}, {}}},
		{"whole cards", []Claim{on("a", claim(1, 100, hard, 1)), on("b", claim(1, 100, hard, 1))}, []libvgpu.Window{{}, {}}},
		{
			"long kernels on one of the cards",
			[]Claim{long, on("b", claim(1, 50, hard, 1))},
			[]libvgpu.Window{{PeriodUS: 160000, LengthUS: 80000, QueueUS: 2000}, {PeriodUS: 160000, LengthUS: 80000, QueueUS: 2000}},
		},
	} {
		plan := planOf(c.claims)
		for i, claim := range c.claims {
			got := plan[claim.Key]
			if got.Window != c.want[i] || (got.Gate == libvgpu.GateWindow) != (c.want[i] != libvgpu.Window{}) {
				t.Errorf("%s: claim %d: gate %d, turn %+v; want %+v", c.name, i, got.Gate, got.Window, c.want[i])
			}
		}
	}
}
