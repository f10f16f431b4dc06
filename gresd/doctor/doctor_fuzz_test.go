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
			var r results
			gresConf{cards: cards, mode: mode}.compare(&r, "gres.conf", strings.Split(text, "\n"))
			if len(r.found) > 2*maxMinor+20 { // files that no card has
				t.Fatalf("%s: %d lines for %q", mode, len(r.found), text)
			}
			for _, f := range r.found {
				if strings.Contains(f.Message, "\n") || len(f.Message) > 4500 {
					t.Fatalf("%s: %q", mode, f.Message)
				}
			}
		}
		if !sameGres(text, text) {
			t.Fatalf("%q is not the same as itself", text)
		}
	})
}
