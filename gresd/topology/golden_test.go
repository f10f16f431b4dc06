// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

var update = flag.Bool("update", false, "write the golden files anew")

// readFacts reads a file of testdata: a line for each card, then a row for each
// card with cells such as PIX or NV4/PIX. The line "nvswitch" says that all
// NVLinks lead to switches.
func readFacts(t *testing.T, path string) Facts {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var f Facts
	var rows [][]string
	nvswitch := false
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || words[0] == "#":
		case words[0] == "nvswitch":
			nvswitch = true
		case words[0] == "card":
			f.Cards = append(f.Cards, readCard(t, words))
		default:
			rows = append(rows, words)
		}
	}
	if len(rows) != len(f.Cards) {
		t.Fatalf("%s: %d rows for %d cards", path, len(rows), len(f.Cards))
	}
	for i, row := range rows {
		levels := make([]Level, len(row))
		for j, cell := range row {
			if i != j {
				var links int
				links, levels[j] = readCell(t, cell)
				f.Cards[i].addLinks(links, f.Cards[j].PCIBusID, nvswitch)
			}
		}
		f.Levels = append(f.Levels, levels)
	}
	return f
}

func readCard(t *testing.T, words []string) Card {
	t.Helper()
	c := Card{NUMANode: NoNUMANode}
	var err error
	if c.Index, err = strconv.Atoi(words[1]); err != nil {
		t.Fatal(err)
	}
	c.UUID = gpu.UUID(fmt.Sprintf("GPU-%d", c.Index))
	c.PCIBusID = fmt.Sprintf("0000:%02x:00.0", 16+c.Index)
	if words[3] != "?" {
		if c.NUMANode, err = strconv.Atoi(words[3]); err != nil {
			t.Fatal(err)
		}
	}
	if words[5] != "?" {
		if c.CPUs, err = ParseSet(words[5]); err != nil {
			t.Fatal(err)
		}
	}
	c.MIG = len(words) > 6 && words[6] == "mig"
	return c
}

// addLinks adds the links of one pair. Those to a switch serve all pairs.
func (c *Card) addLinks(n int, to string, nvswitch bool) {
	if nvswitch {
		n -= len(c.Links)
	}
	for range max(0, n) {
		if nvswitch {
			c.Links = append(c.Links, Link{Remote: RemoteSwitch})
		} else {
			c.Links = append(c.Links, Link{Remote: RemoteCard, PCIBusID: to})
		}
	}
}

func readCell(t *testing.T, cell string) (int, Level) {
	t.Helper()
	links := 0
	if nv, level, found := strings.Cut(cell, "/"); found {
		var err error
		if links, err = strconv.Atoi(strings.TrimPrefix(nv, "NV")); err != nil {
			t.Fatal(err)
		}
		cell = level
	}
	for level, name := range levelNames {
		if name == cell {
			return links, level
		}
	}
	t.Fatalf("cell %q", cell)
	return 0, 0
}

// describe writes all that was concluded.
func describe(topo *Topology) string {
	var b strings.Builder
	fmt.Fprintf(&b, "tree: %s\norder: %v\n", topo.Tree, topo.Tree.Cards)
	for _, i := range topo.Islands {
		fmt.Fprintf(&b, "island: %+v\n", i)
	}
	m := topo.Matrix()
	for i, a := range topo.Cards {
		fmt.Fprintf(&b, "card %d: node %d, cpus %q, cells", a.Index, a.NUMANode, a.CPUs)
		for j, other := range topo.Cards {
			cell := "X"
			if i != j {
				cell = topo.Pairs[i][j].String()
			}
			fmt.Fprintf(&b, " %s:%d", cell, m.Cost(a.Index, other.Index))
		}
		b.WriteByte('\n')
	}
	for _, w := range topo.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			got := describe(New(readFacts(t, file)))
			golden := strings.TrimSuffix(file, ".txt") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

// The trees that anybody can check by hand, whatever the golden files say.
func TestTrees(t *testing.T) {
	for name, want := range map[string]string{
		"seven-cards":  "ROOT:7 -> PHB:7 -> {PIX:3, PIX:4}",
		"dgx-a100":     "ROOT:8 -> SYS:8 -> {PXB:2, PXB:2, PXB:2, PXB:2}",
		"dgx-h100":     "ROOT:8 -> SYS:8 -> {NODE:4, NODE:4}",
		"dual-socket":  "ROOT:8 -> SYS:8 -> {NODE:4 -> {PIX:2, PIX:2}, NODE:4 -> {PIX:2, PIX:2}}",
		"nvlink-pairs": "ROOT:4 -> SYS:4 -> {NODE:2, NODE:2}",
		"dgx-1":        "ROOT:8 -> SYS:8 -> {PHB:4 -> {PIX:2, PIX:2}, PHB:4 -> {PIX:2, PIX:2}}",
		"h200x4":       "ROOT:4 -> PHB:4",
		"single":       "ROOT:1",
		"asymmetric":   "ROOT:3 -> PHB:3",
		"chain":        "ROOT:3 -> PIX:3",
		"mixed":        "ROOT:4 -> {NODE:3 -> {PIX:2, GPU3}, GPU4}",
	} {
		topo := New(readFacts(t, filepath.Join("testdata", name+".txt")))
		if got := topo.Tree.String(); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
		warned := name == "asymmetric" || name == "chain"
		if (len(topo.Warnings) > 0) != warned {
			t.Errorf("%s: warnings %q", name, topo.Warnings)
		}
	}
}
