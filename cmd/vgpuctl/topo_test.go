// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

// topologyOf makes cards that are joined as cell says, near processor half.
func topologyOf(n int, tree wire.TopologyNode, cell func(i, j int) string) wire.Topology {
	t := wire.Topology{Tree: tree, P2P: map[string][][]string{}, Islands: []wire.TopologyIsland{}, Warnings: []string{}}
	for i := range n {
		half := i * 2 / n
		t.Cards = append(t.Cards, wire.TopologyCard{
			Card: wire.Card{
				UUID: fmt.Sprintf("GPU-%d", i), Index: i, Type: "h200", Healthy: true,
				MemoryBytes: 141 << 30, GrantedBytes: uint64(i) * 10 << 30, Share: uint32(i) * 10, Jobs: i,
			},
			NUMANode: &half, CPUs: fmt.Sprintf("%d-%d", half*48, half*48+47),
		})
		var row []string
		for j := range n {
			if i == j {
				row = append(row, "X")
			} else {
				row = append(row, cell(min(i, j), max(i, j)))
			}
		}
		t.Matrix = append(t.Matrix, row)
		for _, name := range []string{"read", "write", "atomics", "nvlink"} {
			statuses := slices.Repeat([]string{"OK"}, n)
			statuses[i] = "X"
			t.P2P[name] = append(t.P2P[name], statuses)
		}
	}
	return t
}

func leaves(level string, children ...int) wire.TopologyNode {
	n := wire.TopologyNode{Level: level, Cards: children}
	for _, c := range children {
		n.Children = append(n.Children, wire.TopologyNode{Cards: []int{c}})
	}
	return n
}

func join(level string, children ...wire.TopologyNode) wire.TopologyNode {
	n := wire.TopologyNode{Level: level, Children: children}
	for _, c := range children {
		n.Cards = append(n.Cards, c.Cards...)
	}
	return n
}

func sevenCards() wire.Topology {
	tree := join("ROOT", join("PHB", leaves("PIX", 0, 1, 2), leaves("PIX", 3, 4, 5, 6)))
	return topologyOf(7, tree, func(i, j int) string {
		if (i < 3) == (j < 3) {
			return "PIX"
		}
		return "PHB"
	})
}

func TestTopoGolden(t *testing.T) {
	eight := topologyOf(8, join("ROOT", join("SYS", leaves("NODE", 0, 1, 2, 3), leaves("NODE", 4, 5, 6, 7))),
		func(int, int) string { return "NV18" })
	eight.Islands = []wire.TopologyIsland{{Cards: []int{0, 1, 2, 3, 4, 5, 6, 7}, NVSwitch: true, AllToAll: true, MinLinks: 18, MaxLinks: 18}}
	eight.Cards[6].Share, eight.Cards[6].GrantedBytes = 100, 200<<30 // of a card that was exchanged for a smaller one
	eight.Cards[7].Healthy, eight.Cards[7].MIG = false, true

	odd := topologyOf(4, join("ROOT", join("SYS", leaves("INT", 0, 2), wire.TopologyNode{Cards: []int{1}}), wire.TopologyNode{Cards: []int{3}}),
		func(i, j int) string {
			switch {
			case j == 3:
				return "?"
			case i == 0 && j == 2:
				return "NV4"
			}
			return "SYS"
		})
	odd.Islands = []wire.TopologyIsland{{Cards: []int{0, 1, 2}, MinLinks: 2, MaxLinks: 4}}
	odd.Warnings = []string{"card 3: NVLink 0: nvmlDeviceGetNvLinkState: no answer in time"}
	odd.P2P["write"] = [][]string{{"X", "TNS", "TNS"}, {"TNS", "X", "TNS"}, {"TNS", "TNS", "X"}}
	odd.P2P["atomics"][0][3], odd.P2P["atomics"][3][0] = "CNS", "U"
	odd.P2P["nvlink"] = [][]string{{"X", "U"}, {"U", "X"}}
	odd.Cards[3].Healthy, odd.Cards[3].NUMANode, odd.Cards[3].CPUs = false, nil, ""

	for name, topo := range map[string]wire.Topology{
		"seven-cards": sevenCards(), "eight-cards": eight, "odd": odd,
		"single": topologyOf(1, leaves("ROOT", 0), nil), "none": {Tree: leaves("ROOT")},
	} {
		t.Run(name, func(t *testing.T) {
			socket := serve(t, func(wire.Op) wire.Reply { return wire.Reply{OK: true, Topology: &topo} })
			got, errs, code := run(t, "--socket", socket, "topo")
			if code != 0 || errs != "" {
				t.Fatalf("exit %d: %s", code, errs)
			}
			narrow(t, got)
			golden := filepath.Join("testdata", "topo-"+name+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(golden); err != nil || got != string(want) {
				t.Errorf("%v, got\n%swant\n%s", err, got, want)
			}
		})
	}
}

func TestTopoAsJSON(t *testing.T) {
	topo := sevenCards()
	topo.TreeText = "ROOT:7 -> PHB:7 -> {PIX:3, PIX:4}"
	socket := serve(t, func(op wire.Op) wire.Reply {
		if op != wire.OpTopo {
			return wire.Reply{Kind: wire.KindUser, Message: string(op)}
		}
		return wire.Reply{OK: true, Topology: &topo}
	})
	out, errs, code := run(t, "--socket", socket, "topo", "--json")
	var got wire.Topology
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 || !reflect.DeepEqual(got, topo) {
		t.Errorf("exit %d, %v, %s: %s", code, err, errs, out)
	}
	if !strings.Contains(out, topo.TreeText) {
		t.Errorf("the tree cannot be read in %s", out)
	}
}

func TestTopoOfAGresdThatCannotTell(t *testing.T) {
	for _, reply := range []wire.Reply{{OK: true}, {Kind: wire.KindNode, Message: "vgpu: gresd: topo: not known"}} {
		socket := serve(t, func(wire.Op) wire.Reply { return reply })
		if out, errs, code := run(t, "--socket", socket, "topo"); code != 1 || out != "" || !strings.Contains(errs, "topo") {
			t.Errorf("exit %d: %s%s", code, out, errs)
		}
	}
}
