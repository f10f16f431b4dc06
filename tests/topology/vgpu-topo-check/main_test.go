// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// With a network card, an escape sequence around the header, and the empty
// column that nvidia-smi leaves before the last.
const smiText = "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n" +
	"GPU0\t X \tNV18\tPIX\t0-47,96-143\t0\t\tN/A\n" +
	"GPU1\tNV18\t X \tSYS\t48-95\t1\t\tN/A\n" +
	"NIC0\tPIX\tSYS\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"

const indexText = "0, GPU-b\n1, GPU-a\n"

// ours numbers the cards the other way round.
func ours() wire.Topology {
	zero, one := 0, 1
	return wire.Topology{
		Cards: []wire.TopologyCard{
			{Card: wire.Card{UUID: "GPU-a", Index: 0}, CPUs: "48-95", NUMANode: &one},
			{Card: wire.Card{UUID: "GPU-b", Index: 1}, CPUs: "0-47,96-143", NUMANode: &zero, MIG: true},
		},
		Matrix:  [][]string{{"X", "NV18"}, {"NV18", "X"}},
		Levels:  [][]string{{"X", "SYS"}, {"SYS", "X"}},
		Islands: []wire.TopologyIsland{{Cards: []int{0, 1}, NVSwitch: true}},
	}
}

func check(t *testing.T, smi, index string, topo wire.Topology) (string, int, error) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	text, err := json.Marshal(topo)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	differ, err := run(&out, write("smi", smi), write("index", index), write("topo", string(text)), filepath.Join(dir, "fixture"))
	if fixture, readErr := os.ReadFile(filepath.Join(dir, "fixture")); readErr == nil {
		out.Write(fixture)
	}
	return out.String(), differ, err
}

func TestAllCellsAgree(t *testing.T) {
	out, differ, err := check(t, smiText, indexText, ours())
	if err != nil || differ != 0 || !strings.Contains(out, "4 cells of the matrix and 4 affinities compared: 0 differ") {
		t.Errorf("%d, %v, %s", differ, err, out)
	}
	want := "# 2 cards, as read on the host.\nnvswitch\ncard 0 numa 1 cpus 48-95\ncard 1 numa 0 cpus 0-47,96-143 mig\nX NV18/SYS\nNV18/SYS X\n"
	if !strings.HasSuffix(out, want) {
		t.Errorf("fixture: got %s, want %s", out, want)
	}
}

func TestWhatDiffersIsNamed(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*wire.Topology)
		say    string
	}{
		"a cell":   {func(w *wire.Topology) { w.Matrix[0][1] = "NV17" }, `GPU1 and GPU0: nvidia-smi has "NV18", vgpuctl "NV17"`},
		"the self": {func(w *wire.Topology) { w.Matrix[1][1] = "PIX" }, `GPU0 and GPU0: nvidia-smi has "X", vgpuctl "PIX"`},
		"cpus":     {func(w *wire.Topology) { w.Cards[0].CPUs = "48-94" }, `CPU affinity of GPU1: nvidia-smi has "48-95", vgpuctl "48-94"`},
		"a node":   {func(w *wire.Topology) { w.Cards[1].NUMANode = new(int); *w.Cards[1].NUMANode = 7 }, `NUMA affinity of GPU0: nvidia-smi has "0", vgpuctl "7"`},
	} {
		topo := ours()
		test.change(&topo)
		if out, differ, err := check(t, smiText, indexText, topo); err != nil || differ != 1 || !strings.Contains(out, test.say) {
			t.Errorf("%s: %d, %v, %s", name, differ, err, out)
		}
	}
	board := ours()
	board.Matrix[0][1], board.Matrix[1][0] = "INT", "INT"
	if out, differ, err := check(t, strings.ReplaceAll(smiText, "NV18", "PIX"), indexText, board); err != nil || differ != 0 {
		t.Errorf("one board: %d, %v, %s", differ, err, out)
	}
	unknown := ours()
	unknown.Cards[0].NUMANode, unknown.Cards[0].CPUs = nil, ""
	if out, differ, err := check(t, smiText, indexText, unknown); err != nil || differ != 0 || !strings.Contains(out, "and 2 affinities") {
		t.Errorf("not known: %d, %v, %s", differ, err, out)
	}
}

func TestWhatCannotBeComparedIsAnError(t *testing.T) {
	short := ours()
	short.Matrix[0] = short.Matrix[0][:1]
	one := ours()
	one.Cards = one.Cards[:1]
	for name, test := range map[string]struct {
		smi, index string
		topo       wire.Topology
		say        string
	}{
		"no matrix":          {"No devices were found\n", indexText, ours(), "no row GPU0"},
		"a header alone":     {"\tGPU0\tGPU1\n", indexText, ours(), "no row GPU0"},
		"a row that is cut":  {"\tGPU0\tGPU1\nGPU0\t X \nGPU1\tPIX\t X \n", indexText, ours(), "row GPU0 has 1 cells for 2 cards"},
		"a row is missing":   {"\tGPU0\tGPU1\nGPU1\tPIX\t X \n", indexText, ours(), "row GPU1: want GPU0"},
		"another card":       {smiText, "0, GPU-b\n1, GPU-c\n", ours(), "card GPU-c of nvidia-smi"},
		"indexes with holes": {smiText, "0, GPU-b\n2, GPU-a\n", ours(), `line "2, GPU-a"`},
		"fewer cards":        {smiText, indexText, one, "nvidia-smi shows 2 cards and lists 2, vgpuctl has 1"},
		"a short row":        {smiText, indexText, short, "no whole row"},
	} {
		if out, _, err := check(t, test.smi, test.index, test.topo); err == nil || !strings.Contains(err.Error(), test.say) {
			t.Errorf("%s: %v, %s; want %q", name, err, out, test.say)
		}
	}
}
