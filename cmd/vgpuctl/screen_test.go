// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func TestLinesAreBrokenBetweenWords(t *testing.T) {
	for _, c := range []struct {
		line    string
		columns int
		want    string
	}{
		{"short", 20, "short"},
		{"exactly twenty chars", 20, "exactly twenty chars"},
		{"one two three four five six", 20, "one two three four\n    five six"},
		{"\x1b[31mone two\x1b[0m three four five six", 20, "\x1b[31mone two\x1b[0m three four\n    five six"},
		{"nothing-to-break-a-line-at", 20, "nothing-to-break-a-line-at"},
		{"    indented-and-with-nothing-to-break", 20, "    indented-and-with-nothing-to-break"},
	} {
		if got := fold(c.line, c.columns, 4); got != c.want {
			t.Errorf("%q in %d: got\n%s\nwant\n%s", c.line, c.columns, got, c.want)
		}
	}
}

// What is written in pieces is broken by whole lines.
func TestAScreenBreaksWholeLines(t *testing.T) {
	var out bytes.Buffer
	s := &screen{to: &out, columns: 20}
	for _, part := range []string{"one two ", "three four five six\n  seven", " eight\n"} {
		if n, err := s.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if want := "one two three four\n  five six\n  seven eight\n"; out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// A table gives up its spare columns in their order, and no more of them than it must.
func TestTablesFitAScreen(t *testing.T) {
	rows := [][]string{{"JOB", "USER", "UUID", "TYPE", "STATE"}, {"4217", "alice", uuid, "h200"}, {"4218", "bob"}}
	for columns, want := range map[int]string{
		80: "JOB   USER   UUID                                      TYPE  STATE\n4217  alice  " + uuid + "  h200\n4218  bob\n",
		40: "JOB   USER   TYPE  STATE\n4217  alice  h200\n4218  bob\n(a wider terminal, or --json, also shows\n  UUID)\n",
		20: "JOB   USER  STATE\n4217  alice\n4218  bob\n(a wider terminal,\n  or --json, also\n  shows UUID, TYPE)\n",
	} {
		var out bytes.Buffer
		if err := table(&screen{to: &out, columns: columns}, false, rows, "NONE", "UUID", "TYPE"); err != nil || out.String() != want {
			t.Errorf("%d columns: %v, got\n%s\nwant\n%s", columns, err, out.String(), want)
		}
	}
	if len(rows[1]) != 4 || rows[0][2] != "UUID" {
		t.Errorf("the rows of the caller have changed: %v", rows)
	}
}

// The widest tree and matrix of the golden files are within 80 columns.
func TestTopologyFitsAScreen(t *testing.T) {
	card := func(c wire.Card, cpus string) wire.TopologyCard { return wire.TopologyCard{Card: c, CPUs: cpus} }
	topology := wire.Topology{
		Tree: wire.TopologyNode{Level: "ROOT", Cards: []int{0, 1}, Children: []wire.TopologyNode{
			{Level: "NUMA", Cards: []int{0, 1}, Children: []wire.TopologyNode{{Cards: []int{0}}, {Cards: []int{1}}}},
		}},
		Cards: []wire.TopologyCard{
			card(wire.Card{Index: 0, Type: "h100-80gb-hbm3", Healthy: true, MemoryBytes: 80 << 30}, "0-55,112-167"),
			card(wire.Card{Index: 1, Type: "h100-80gb-hbm3", Healthy: true, MemoryBytes: 80 << 30, GrantedBytes: 24<<30 + 1<<20, Share: 30, Jobs: 12}, "0-55,112-167"),
		},
		Matrix: [][]string{{"X", "NV18"}, {"NV18", "X"}},
	}
	for _, columns := range []int{50, 80, 200} {
		var out bytes.Buffer
		if err := writeTopology(&screen{to: &out, columns: columns}, topology); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if width(strings.TrimRight(line, "\n")) > columns {
				t.Errorf("%d columns: %s", columns, line)
			}
		}
		if whole := strings.Contains(out.String(), "h100-80gb-hbm3"); whole != (columns >= 80) {
			t.Errorf("%d columns: the type is shown: %v\n%s", columns, whole, out.String())
		}
		if !strings.Contains(out.String(), "  12\n") {
			t.Errorf("%d columns: no jobs:\n%s", columns, out.String())
		}
	}
}
