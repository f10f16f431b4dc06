// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// FuzzGresConf: gres.conf and Gres=, with anything an administrator may have written:
// what is told fits in a report.
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
			wrong := compareGres(strings.Split(text, "\n"), cards, mode)
			if len(wrong) > 2*mostMinor+20 { // files that no card has
				t.Fatalf("%s: %d lines for %q", mode, len(wrong), text)
			}
			for _, line := range wrong {
				if strings.Contains(line, "\n") || len(line) > 4096 {
					t.Fatalf("%s: %q", mode, line)
				}
			}
		}
		if !sameGres(strings.Split(text, ","), text) {
			t.Fatalf("%q is not the same as itself", text)
		}
	})
}
