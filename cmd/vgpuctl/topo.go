// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func (s *settings) topo(cmd *cobra.Command, _ []string) error {
	rep, err := s.ask(cmd.Context(), wire.Request{Op: wire.OpTopo})
	if err != nil {
		return err
	}
	return s.print(cmd.OutOrStdout(), rep.Topology, func(w io.Writer) error { return writeTopology(w, *rep.Topology) })
}

// legend explains the cells that a matrix can have.
var legend = []struct{ cell, meaning string }{
	{"SYS", "over the link between NUMA nodes"},
	{"NODE", "over several host bridges of one NUMA node"},
	{"PHB", "over one host bridge (mostly the processor's)"},
	{"PXB", "over several PCIe switches, no host bridge"},
	{"PIX", "over at most one PCIe switch"},
	{"INT", "on one board"},
	{"NV", "over as many NVLinks as the number says"},
	{"?", "not known"},
}

func writeTopology(w io.Writer, t wire.Topology) error {
	for _, warning := range t.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	if err := table(w, false, treeRows(t), "TYPE"); err != nil {
		return err
	}
	for _, i := range t.Islands {
		fmt.Fprintf(w, "NVLink: %s\n", island(i))
	}
	if len(t.Cards) < 2 {
		return nil // one card is near nobody
	}
	fmt.Fprintf(w, "P2P: %s\n\n", peerAccess(t.P2P))
	if err := table(w, false, matrixRows(t), "CPU AFFINITY", "NUMA AFFINITY"); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, l := range legend {
		if slices.ContainsFunc(slices.Concat(t.Matrix...), func(c string) bool { return c == l.cell || l.cell == "NV" && strings.HasPrefix(c, "NV") }) {
			fmt.Fprintf(w, "%-4s  %s\n", l.cell, l.meaning)
		}
	}
	return nil
}

// treeRows draws the tree, with the cards at its leaves.
func treeRows(t wire.Topology) [][]string {
	cards := map[int]wire.TopologyCard{}
	for _, c := range t.Cards {
		cards[c.Index] = c
	}
	rows := [][]string{{"CARD", "TYPE", "SHARE", "FREE", "MEMORY FREE", "JOBS"}}
	var draw func(n wire.TopologyNode, branch, below string)
	draw = func(n wire.TopologyNode, branch, below string) {
		if n.Level == "" {
			for _, index := range n.Cards { // one
				rows = append(rows, append([]string{branch + cardName(index)}, cardCells(cards[index])...))
			}
			return
		}
		rows = append(rows, []string{fmt.Sprintf("%s%s:%d", branch, n.Level, len(n.Cards))})
		for i, child := range n.Children {
			if i == len(n.Children)-1 {
				draw(child, below+"`-- ", below+"    ")
			} else {
				draw(child, below+"|-- ", below+"|   ")
			}
		}
	}
	draw(t.Tree, "", "")
	return rows
}

func cardName(index int) string { return fmt.Sprintf("GPU%d", index) }

// cardCells are what is used and free of a card.
func cardCells(c wire.TopologyCard) []string {
	switch {
	case c.MIG:
		return []string{c.Type, "in MIG mode: shared by Slurm, not by gresd"}
	case !c.Healthy:
		return []string{c.Type, "out"}
	}
	free := c.MemoryBytes - min(c.GrantedBytes, c.MemoryBytes)
	return []string{c.Type, percent(c.Share), percent(uint32(gpu.FullCard) - min(c.Share, uint32(gpu.FullCard))), top.Memory(&free, c.MemoryBytes), fmt.Sprint(c.Jobs)}
}

func matrixRows(t wire.Topology) [][]string {
	header := []string{""}
	for _, c := range t.Cards {
		header = append(header, cardName(c.Index))
	}
	rows := [][]string{append(header, "CPU AFFINITY", "NUMA AFFINITY")}
	for i, c := range t.Cards {
		row := []string{cardName(c.Index)}
		for j := range t.Cards {
			cell := "?"
			if i < len(t.Matrix) && j < len(t.Matrix[i]) {
				cell = t.Matrix[i][j]
			}
			row = append(row, cell)
		}
		numa := top.Known(c.NUMANode, func(n int) string { return fmt.Sprint(n) })
		rows = append(rows, append(row, cmp.Or(c.CPUs, "?"), numa))
	}
	return rows
}

func island(i wire.TopologyIsland) string {
	text := "GPU" + topology.Set(i.Cards).String()
	if i.AllToAll {
		text += ", all to all"
	}
	if i.NVSwitch {
		text += " through NVSwitch"
	}
	if i.MinLinks == i.MaxLinks {
		return text + fmt.Sprintf(", NV%d", i.MaxLinks)
	}
	return text + fmt.Sprintf(", NV%d to NV%d", i.MinLinks, i.MaxLinks)
}

// peerAccess says in one line what cards may do with each other's memory.
func peerAccess(matrices map[string][][]string) string {
	var parts []string
	for _, name := range []string{"read", "write", "atomics", "nvlink"} {
		pairs, count := 0, map[string]int{}
		for i, row := range matrices[name] {
			for j, status := range row {
				if i != j {
					pairs++
					count[status]++
				}
			}
		}
		text := fmt.Sprintf("%d of %d", count["OK"], pairs)
		for status, n := range count {
			switch {
			case n == pairs && status == "U":
				text = "not known"
			case n == pairs:
				text = status
			}
		}
		parts = append(parts, name+" "+text)
	}
	return strings.Join(parts, ", ")
}
