// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// FuzzSettings: scontrol's and slurm.conf's lines; each name is told small, and no
// value has more than one line.
func FuzzSettings(f *testing.F) {
	for _, s := range []string{
		"SlurmctldHost=a\nProlog=/x\nProlog=/y # twice\n", "ClusterName = c\n", "Prolog                  = (null)\nEpilog[0] = \"/usr/sbin/vgpu-prolog\"\n",
		"=\n==\n# x=y\nA\n", "NodeName=n[1-2] Gres=gpu:2\n", "ınclude=x\nTASKPROLOG=,\r\n",
		"=\"(null)", "Prolog=\"/x\"\nProlog=\"/y\"\nProlog=(null)\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		values := map[string]string{}
		parseSettings(text, values)
		if len(values) > strings.Count(text, "=") {
			t.Fatalf("%d values", len(values))
		}
		for name, value := range values {
			if name != strings.ToLower(strings.TrimSpace(name)) || strings.ContainsAny(name+value, "\n#") || value == "(null)" {
				t.Fatalf("%q is %q", name, value)
			}
		}
	})
}

// FuzzGresConf: gres.conf and Gres=, with anything an administrator may have written:
// what is told fits in a report, and the file that vgpuctl gres-conf prints is right.
func FuzzGresConf(f *testing.F) {
	cards := []gpu.Card{{Index: 0, Minor: 0, Type: "h200", Healthy: true}, {Index: 1, Minor: 5, Type: "h200", Healthy: true}}
	const right = "Name=gpu Type=h200 File=/dev/nvidia[0,5]\nName=shard Type=h200 Count=100 File=/dev/nvidia0\nName=shard Type=h200 Count=100 File=/dev/nvidia5\n"
	for _, s := range []string{
		right, "AutoDetect=nvml\n" + right, "", "name=GPU file=/dev/nvidia[5,0-1]", "Name=gpu File=/dev/nvidia[9223372036854775800-9223372036854775807]", "Name=shard File=/dev/nvidia[0-1000,0-1000] Count=x",
		"Name=gpu File=nvidia", "Name=gpu File=/dev/nvidia[3-1]", "Name=gpu File=/dev/nvidia[+1,-2,]", "gpu:h200:2(S:0-1),shard:200,vgpu:x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, mode := range []string{config.PlacementSlurm, config.PlacementGresd} {
			if len(text) > 4096 {
				return
			}
			wrong := compareGres(text, cards, mode)
			if len(wrong) > 2*mostMinor+20 { // files that no card has
				t.Fatalf("%s: %d lines for %q", mode, len(wrong), text)
			}
			for _, line := range wrong {
				if strings.Contains(line, "\n") || len(line) > 4096 {
					t.Fatalf("%s: %q", mode, line)
				}
			}
			if got := compareGres(right+"# "+strings.ReplaceAll(text, "\n", " "), cards, mode); len(got) > 0 {
				t.Fatalf("%s: a comment %q is wrong: %q", mode, text, got)
			}
		}
		if !sameGres(strings.Split(text, ","), text) {
			t.Fatalf("%q is not the same as itself", text)
		}
	})
}
