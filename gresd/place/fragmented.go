// SPDX-License-Identifier: Apache-2.0

package place

import "github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"

// TypicalShares are the request sizes of the fragmentation reports.
var TypicalShares = []gpu.Share{25, 50, 75, gpu.FullCard}

// FreeCard is the free part of one card. Largest is the largest request that fits by share and memory.
type FreeCard struct{ Share, Largest gpu.Share }

// Fragmented returns the part of the free share that a request of this size cannot use. FGD (Weng et
// al., USENIX ATC 2023) defines it. It is unknown if no share is free.
func Fragmented(cards []FreeCard, share gpu.Share) (ratio float64, known bool) {
	var free, unusable gpu.Share
	for _, c := range cards {
		free += c.Share
		if c.Largest < share {
			unusable += c.Share
		}
	}
	return float64(unusable) / float64(max(free, 1)), free > 0
}
