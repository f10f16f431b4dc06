// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
)

// linesInForce are the lines of a file of Slurm's that are in force.
func linesInForce(t *testing.T, path string) (lines []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// The examples that are shipped, of a node with four H200, are what gresd
// gres-conf prints there, and what INSTALL.md writes into slurm.conf.
func TestShippedExamplesAreWhatIsPrinted(t *testing.T) {
	node := gresConf{mode: config.PlacementSlurm, topology: topology.New(topology.Facts{})}
	for i := range 4 {
		node.cards = append(node.cards, gpu.Card{Index: i, Minor: i, Type: "h200", Memory: 141 << 30})
	}
	text := node.text()
	var want []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			want = append(want, strings.TrimSpace(line))
		}
	}
	var got []string
	for _, line := range linesInForce(t, "../../etc/slurm/gres.conf") {
		switch before, ok := strings.CutSuffix(line, "[0-3]"); {
		case ok:
			for _, minor := range []string{"0", "1", "2", "3"} {
				got = append(got, before+minor)
			}
		case line != "AutoDetect=off":
			got = append(got, line)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("etc/slurm/gres.conf:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	shipped := linesInForce(t, "../../etc/slurm/slurm.conf")
	if gres := "Gres=" + node.gres(); !slices.ContainsFunc(shipped, func(line string) bool {
		return strings.HasPrefix(line, "NodeName=") && slices.Contains(strings.Fields(line), gres)
	}) {
		t.Errorf("no node of etc/slurm/slurm.conf has %s", gres)
	}
	install, err := os.ReadFile("../../INSTALL.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile(`(?s)done <<'END'\n(.*?) +END\n +echo '# slurm-vgpu: end'`).FindSubmatch(install)
	if block == nil {
		t.Fatal("INSTALL.md writes nothing into slurm.conf")
	}
	for line := range strings.Lines(string(block[1])) {
		if line = strings.TrimSpace(line); !slices.Contains(shipped, line) {
			t.Errorf("etc/slurm/slurm.conf lacks %s, which INSTALL.md has", line)
		}
	}
}
