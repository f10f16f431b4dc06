// SPDX-License-Identifier: Apache-2.0

// Command vgpu-topo-check holds what vgpuctl topo says against nvidia-smi, cell
// by cell. Exit status: 0 when all agree, 1 when something differs, 2 when it
// could not be compared.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func main() {
	smi := flag.String("smi", "", "`FILE` with the output of nvidia-smi topo -m")
	index := flag.String("index", "", "`FILE` with that of nvidia-smi --query-gpu=index,uuid --format=csv,noheader")
	topo := flag.String("topo", "", "`FILE` with that of vgpuctl topo --json")
	fixture := flag.String("fixture", "", "write a `FILE` for gresd/topology/testdata")
	flag.Parse()
	differ, err := run(os.Stdout, *smi, *index, *topo, *fixture)
	switch {
	case err != nil:
		fmt.Fprintf(os.Stderr, "vgpu-topo-check: %v\n", err)
		os.Exit(2)
	case differ > 0:
		os.Exit(1)
	}
}

// run returns the number of cells that differ.
func run(w io.Writer, smi, index, topo, fixture string) (int, error) {
	read := func(path string) (string, error) {
		text, err := os.ReadFile(path)
		return string(text), err
	}
	text, err := read(smi)
	if err != nil {
		return 0, err
	}
	theirs, err := readSMI(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", smi, err)
	}
	if text, err = read(index); err != nil {
		return 0, err
	}
	uuids, err := readIndex(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", index, err)
	}
	if text, err = read(topo); err != nil {
		return 0, err
	}
	var ours wire.Topology
	if err := json.Unmarshal([]byte(text), &ours); err != nil {
		return 0, fmt.Errorf("%s: %w", topo, err)
	}
	if fixture != "" {
		if err := os.WriteFile(fixture, []byte(fixtureOf(ours)), 0o644); err != nil {
			return 0, err
		}
	}
	return compare(w, theirs, uuids, ours)
}

// compare says what differs. The two number cards in different orders, so a
// card is found by its UUID.
func compare(w io.Writer, theirs []smiCard, uuids []string, ours wire.Topology) (int, error) {
	if len(uuids) != len(theirs) || len(ours.Cards) != len(theirs) || len(ours.Matrix) != len(theirs) {
		return 0, fmt.Errorf("nvidia-smi shows %d cards and lists %d, vgpuctl has %d with %d rows: want as many of each",
			len(theirs), len(uuids), len(ours.Cards), len(ours.Matrix))
	}
	row := make([]int, len(theirs)) // ours, by their index
	for i, uuid := range uuids {
		row[i] = slices.IndexFunc(ours.Cards, func(c wire.TopologyCard) bool { return c.UUID == uuid })
		if row[i] < 0 || len(ours.Matrix[row[i]]) != len(theirs) {
			return 0, fmt.Errorf("card %s of nvidia-smi: vgpuctl has no whole row for it", uuid)
		}
	}
	differ, cells, affinities := 0, 0, 0
	hold := func(count *int, what, their, our string) {
		*count++
		if their != our {
			differ++
			fmt.Fprintf(w, "%s: nvidia-smi has %q, vgpuctl %q\n", what, their, our)
		}
	}
	for i, card := range theirs {
		for j, cell := range card.cells {
			our := ours.Matrix[row[i]][row[j]]
			if our == "INT" {
				our = "PIX" // nvidia-smi has no other word for one board
			}
			hold(&cells, fmt.Sprintf("GPU%d and GPU%d", i, j), cell, our)
		}
		// Where one of the two does not know, there is nothing to compare.
		mine := ours.Cards[row[i]]
		if card.cpus != "" && mine.CPUs != "" {
			hold(&affinities, fmt.Sprintf("CPU affinity of GPU%d", i), card.cpus, mine.CPUs)
		}
		if card.numa != "" && card.numa != "N/A" && mine.NUMANode != nil {
			hold(&affinities, fmt.Sprintf("NUMA affinity of GPU%d", i), card.numa, fmt.Sprint(*mine.NUMANode))
		}
	}
	fmt.Fprintf(w, "%d cells of the matrix and %d affinities compared: %d differ\n", cells, affinities, differ)
	return differ, nil
}

// fixtureOf writes what the host says in the form of gresd/topology/testdata.
func fixtureOf(t wire.Topology) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %d cards, as read on the host.\n", len(t.Cards))
	if slices.ContainsFunc(t.Islands, func(i wire.TopologyIsland) bool { return i.NVSwitch }) {
		b.WriteString("nvswitch\n")
	}
	for _, c := range t.Cards {
		numa, cpus, mig := "?", "?", ""
		if c.NUMANode != nil {
			numa = fmt.Sprint(*c.NUMANode)
		}
		if c.CPUs != "" {
			cpus = c.CPUs
		}
		if c.MIG {
			mig = " mig"
		}
		fmt.Fprintf(&b, "card %d numa %s cpus %s%s\n", c.Index, numa, cpus, mig)
	}
	for i, row := range t.Matrix {
		var cells []string
		for j, cell := range row {
			if strings.HasPrefix(cell, "NV") {
				cell += "/" + t.Levels[i][j]
			}
			cells = append(cells, cell)
		}
		b.WriteString(strings.Join(cells, " ") + "\n")
	}
	return b.String()
}
