// SPDX-License-Identifier: Apache-2.0

package status

import (
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func TestIslandsAndUnknownCards(t *testing.T) {
	near := topology.Card{Index: 1, UUID: "GPU-b", PCIBusID: "0000:02:00.0", NUMANode: 0, CPUs: topology.Set{0, 1}}
	near.Links = []topology.Link{{Remote: topology.RemoteCard, PCIBusID: "0000:01:00.0"}}
	far := topology.Card{Index: 0, UUID: "GPU-a", PCIBusID: "0000:01:00.0", NUMANode: topology.NoNUMANode}
	far.Links = []topology.Link{{Remote: topology.RemoteCard, PCIBusID: "0000:02:00.0"}}
	got := topologyOf(topology.New(topology.Facts{Cards: []topology.Card{near, far}}), []wire.Card{{UUID: "GPU-b", Index: 1, Share: 40}})
	if len(got.Islands) != 1 || got.Islands[0].MaxLinks != 1 || !got.Islands[0].AllToAll || got.Islands[0].NVSwitch {
		t.Errorf("islands %+v", got.Islands)
	}
	if got.Matrix[0][1] != "NV1" || got.Levels[0][1] != "?" {
		t.Errorf("matrix %v, levels %v", got.Matrix, got.Levels)
	}
	a, b := got.Cards[0], got.Cards[1]
	if a.UUID != "GPU-a" || a.Share != 0 || a.NUMANode != nil || b.Share != 40 || *b.NUMANode != 0 || b.CPUs != "0-1" || b.NVLinks != 1 {
		t.Errorf("cards %+v", got.Cards)
	}
}
