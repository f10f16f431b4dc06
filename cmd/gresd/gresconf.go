// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// gresConf writes the lines of gres.conf for the cards of a node, and as a
// comment what belongs into slurm.conf. Every GPU gets a Type: without one,
// slurmctld loses the use of each card when it restarts.
func gresConf(cards []gpu.Card, mode string) string {
	var out strings.Builder
	types, shares := map[string]int{}, map[string]int{}
	shared := 0
	for _, c := range cards {
		types[c.Type]++
		fmt.Fprintf(&out, "Name=gpu Type=%s File=/dev/nvidia%d\n", c.Type, c.Minor)
		if c.MIG {
			continue // shared by the hardware, not by gresd
		}
		shared++
		shares[c.Type] += int(gpu.FullCard)
	}
	for _, c := range cards {
		if mode == config.PlacementSlurm && !c.MIG {
			// Without a Type, srun --gres=vgpu:TYPE:N finds no card for its step.
			fmt.Fprintf(&out, "Name=shard Type=%s Count=%d File=/dev/nvidia%d\n", c.Type, gpu.FullCard, c.Minor)
		}
	}
	var node []string
	for _, name := range slices.Sorted(maps.Keys(types)) {
		node = append(node, fmt.Sprintf("gpu:%s:%d", name, types[name]))
	}
	if mode == config.PlacementSlurm {
		for _, name := range slices.Sorted(maps.Keys(shares)) {
			node = append(node, fmt.Sprintf("shard:%s:%d", name, shares[name]))
		}
	} else if shared > 0 {
		fmt.Fprintf(&out, "Name=vgpu Count=%d Flags=CountOnly\n", shared*int(gpu.FullCard))
		node = append(node, fmt.Sprintf("vgpu:%d", shared*int(gpu.FullCard)))
	}
	if len(cards) == 0 {
		return "# no GPU on this node\n"
	}
	return "# slurm.conf: GresTypes=gpu,shard,vgpu and, on the line of this node, Gres=" +
		strings.Join(node, ",") + "\n" + out.String()
}
