// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

func TestGresConf(t *testing.T) {
	cards := []gpu.Card{{Minor: 0, Type: "h200"}, {Index: 1, Minor: 1, Type: "h200"}, {Index: 2, Minor: 3, Type: "a100", MIG: true}}
	for name, c := range map[string]struct {
		cards []gpu.Card
		mode  string
		want  string
	}{
		"slurmctld places": {cards, config.PlacementSlurm, `# slurm.conf: GresTypes=gpu,shard,vgpu and, on the line of this node, Gres=gpu:a100:1,gpu:h200:2,shard:h200:200
Name=gpu Type=h200 File=/dev/nvidia0
Name=gpu Type=h200 File=/dev/nvidia1
Name=gpu Type=a100 File=/dev/nvidia3
Name=shard Type=h200 Count=100 File=/dev/nvidia0
Name=shard Type=h200 Count=100 File=/dev/nvidia1
`},
		"gresd places": {cards[:1], config.PlacementGresd, `# slurm.conf: GresTypes=gpu,shard,vgpu and, on the line of this node, Gres=gpu:h200:1,vgpu:100
Name=gpu Type=h200 File=/dev/nvidia0
Name=vgpu Count=100 Flags=CountOnly
`},
		"no card": {nil, config.PlacementSlurm, "# no GPU on this node\n"},
	} {
		if got := gresConf(c.cards, c.mode); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", name, got, c.want)
		}
	}
}

func TestCommandLine(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		say  string
	}{
		"version":          {[]string{"version"}, "gresd dev (go"},
		"help":             {[]string{"--help"}, "gres-conf"},
		"unknown argument": {[]string{"start"}, `unknown command "start"`},
	} {
		var out bytes.Buffer
		cmd := command()
		cmd.SetArgs(c.args)
		cmd.SetOut(&out)
		text := ""
		if err := cmd.Execute(); err != nil {
			text = err.Error()
		}
		if !strings.Contains(out.String()+text, c.say) {
			t.Errorf("%s: got %q %q, want %q", name, out.String(), text, c.say)
		}
	}
}

func TestConfigurationWithAMistake(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vgpu.toml")
	if err := os.WriteFile(path, []byte("version = 1\n[arbiter]\nperiod = 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command()
	cmd.SetArgs([]string{"--config", path})
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, want an error that names the file", err)
	}
}
