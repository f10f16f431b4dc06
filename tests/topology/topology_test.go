// SPDX-License-Identifier: Apache-2.0

// Package topology runs on-card.sh on simulated cards, with an nvidia-smi that
// says what each test expects: from NVML through gresd and the socket to
// vgpuctl, and the comparison itself.
package topology

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build is where make has built the programs.
func build(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("gresd wants root")
	}
	dir, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// host is a simulated node and what nvidia-smi says there.
type host struct {
	config string     // of the cards, in the order of the bus
	smi    [][]string // a row for each card: cells, CPU affinity, NUMA affinity
	faults [][]string // arguments of simgpu
}

// cards writes one entry for each card; minors run against the bus, so that
// gresd and nvidia-smi number the cards in different orders.
func cards(n int, more func(i int) string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "[[card]]\nuuid = \"GPU-%d\"\nminor = %d\n%s\n", i, n-1-i, more(i))
	}
	return b.String()
}

// onCard returns the output of on-card.sh and its exit status.
func onCard(t *testing.T, build string, h host) (string, int) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	smi, index := "", ""
	for i := range h.smi {
		smi += fmt.Sprintf("\tGPU%d", i)
		index += fmt.Sprintf("%d, GPU-%d\n", i, i)
	}
	smi += "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
	for i, row := range h.smi {
		smi += fmt.Sprintf("GPU%d\t%s\t\tN/A\n", i, strings.Join(row, "\t"))
	}
	write("topo", smi, 0o644)
	write("index", index, 0o644)
	write("nvidia-smi", fmt.Sprintf("#!/bin/sh\n[ \"$1\" = topo ] && exec cat %[1]s/topo\nexec cat %[1]s/index\n", dir), 0o755)
	write("cards.toml", "version = 1\n"+h.config, 0o644)

	env := append(os.Environ(), "SIMGPU_STATE="+dir+"/state", "PATH="+dir+":"+os.Getenv("PATH"),
		"VGPU_NVML="+build+"/simgpu/lib/libnvidia-ml.so.1")
	for _, args := range append([][]string{{"init", "--config", dir + "/cards.toml"}}, h.faults...) {
		cmd := exec.Command(build+"/simgpu/bin/simgpu", args...)
		cmd.Env = env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	cmd := exec.Command("./on-card.sh", build)
	cmd.Env = env
	out, _ := cmd.CombinedOutput() // its status is looked at
	return string(out), cmd.ProcessState.ExitCode()
}

// near are the affinities of the two halves of n cards.
func near(i, n int) (text string, row []string) {
	half := i * 2 / n
	return fmt.Sprintf("numa = %d\ncpus = \"%d\"", half, half), []string{fmt.Sprint(half), fmt.Sprint(half)}
}

// rows writes a matrix of cells, with affinities.
func rows(n int, cell func(i, j int) string) [][]string {
	var all [][]string
	for i := range n {
		var row []string
		for j := range n {
			if i == j {
				row = append(row, " X ")
			} else {
				row = append(row, cell(i, j))
			}
		}
		_, affinity := near(i, n)
		all = append(all, append(row, affinity...))
	}
	return all
}

func matrix(n int, cell func(i, j int) string) string {
	var b strings.Builder
	b.WriteString("topology = [\n")
	for i := range n {
		var row []string
		for j := range n {
			row = append(row, fmt.Sprintf("%q", cell(min(i, j), max(i, j))))
		}
		fmt.Fprintf(&b, "  [%s],\n", strings.Join(row, ", "))
	}
	return b.String() + "]\n"
}

func TestOnCard(t *testing.T) {
	dir := build(t)
	affinities := func(n int, more string) string {
		return cards(n, func(i int) string { text, _ := near(i, n); return text + more })
	}
	seven := func(i, j int) string {
		if (i < 3) == (j < 3) {
			return "PIX"
		}
		return "PHB"
	}
	// Pairs of neighbours are on one board, those that are two apart have a bridge.
	four := func(i, j int) string {
		switch {
		case i/2 == j/2:
			return "INT"
		case j-i == 2 || i-j == 2:
			return "NV4/SYS"
		}
		return "SYS"
	}
	switched := func(i, j int) string {
		if i/4 == j/4 {
			return "NV18/NODE"
		}
		return "NV18/SYS"
	}
	shown := func(cell func(i, j int) string) func(i, j int) string { // by nvidia-smi
		return func(i, j int) string {
			nv, _, _ := strings.Cut(cell(i, j), "/")
			return strings.ReplaceAll(nv, "INT", "PIX")
		}
	}
	unlike := rows(7, seven)
	unlike[6][0] = "PXB"
	for name, test := range map[string]struct {
		host host
		exit int
		say  []string
	}{
		"seven cards": {
			host{config: matrix(7, seven) + affinities(7, ""), smi: rows(7, seven)},
			0,
			[]string{`"tree_text": "ROOT:7 -> PHB:7 -> {PIX:4, PIX:3}"`, "49 cells of the matrix and 14 affinities compared: 0 differ"},
		},
		"a cell that differs": {
			host{config: matrix(7, seven) + affinities(7, ""), smi: unlike},
			1,
			[]string{`GPU6 and GPU0: nvidia-smi has "PXB", vgpuctl "PHB"`, "1 differ"},
		},
		"eight cards at NVSwitch, one in MIG mode": {
			host{
				config: "nvswitch = true\n" + matrix(8, switched) + strings.Replace(affinities(8, ""), "minor = 7", "minor = 7\nmig = true", 1),
				smi:    rows(8, shown(switched)),
			},
			0,
			[]string{
				"ROOT:8 -> SYS:8 -> {NODE:4, NODE:4}", "NVLink: GPU0-7, all to all through NVSwitch, NV18",
				"in MIG mode: shared by Slurm", "64 cells of the matrix", "shard:h100-80gb-hbm3:700",
			},
		},
		"boards and bridges": {
			host{config: matrix(4, four) + affinities(4, ""), smi: rows(4, shown(four))},
			0,
			[]string{
				"ROOT:4 -> SYS:4 -> {INT:2, INT:2}", "NVLink: GPU0,2, all to all, NV4", "# no Links=: they differ",
				"16 cells of the matrix and 8 affinities",
			},
		},
		"one card": {
			host{config: cards(1, func(int) string { return "numa = -1" }), smi: [][]string{{" X ", "0-1", "N/A"}}},
			0,
			[]string{`"tree_text": "ROOT:1"`, `"warnings": []`, "1 cells of the matrix and 1 affinities compared: 0 differ"},
		},
		"calls that fail, hang and are not there": {
			host{
				config: matrix(4, four) + affinities(4, ""), smi: rows(4, shown(four)),
				faults: [][]string{
					{"slow", "--call", "nvmlDeviceGetP2PStatus", "--ms", "60000", "--count", "1"},
					{"fail", "--call", "nvmlDeviceGetCpuAffinity", "--code", "3"},
					{"fail", "--call", "nvmlDeviceGetMemoryAffinity", "--code", "999"},
				},
			},
			0,
			[]string{
				"nvmlDeviceGetP2PStatus: no answer in time", "nvmlDeviceGetMemoryAffinity: NVML error 999",
				"16 cells of the matrix and 0 affinities compared: 0 differ",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, exit := onCard(t, dir, test.host)
			if exit != test.exit {
				t.Errorf("exit %d, want %d", exit, test.exit)
			}
			for _, want := range test.say {
				if !strings.Contains(out, want) {
					t.Errorf("no %q", want)
				}
			}
			if t.Failed() {
				t.Log(out)
			}
		})
	}
}
