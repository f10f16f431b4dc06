// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"maps"
	"testing"
)

func TestCountsOfAGRESList(t *testing.T) {
	for list, want := range map[string]map[string]uint64{
		"":                               {},
		"(null)":                         {},
		"gpu:h200:4(S:0-1),shard:400":    {"gpu": 4, "shard": 400},
		"gpu:a:1,gpu:4090:2,vgpu:300":    {"gpu": 3, "vgpu": 300},
		"gpu,nic:2":                      {"gpu": 1},
		"gpu:1(IDX:0),vgpu:4090(CNT:60)": {"gpu": 1, "vgpu": 60},
		"gres/shard=30,gres:gpu:sim:2":   {"shard": 30, "gpu": 2},
	} {
		if got := CountGRES(list); !maps.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", list, got, want)
		}
	}
}
