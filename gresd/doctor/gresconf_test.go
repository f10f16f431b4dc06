// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
)

// twoSockets are four cards, the even ones near the first socket, on eight cores
// with two threads. Neighbours have an NVLink.
func twoSockets() gresConf {
	n := gresConf{mode: config.PlacementSlurm}
	near := []topology.Set{{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}}
	var facts topology.Facts
	for i := range 4 {
		card := gpu.Card{
			UUID: gpu.UUID(fmt.Sprint("GPU-", i)), Index: i, Minor: i, Type: "h200", PCIBusID: fmt.Sprintf("0000:%02x:00.0", i),
		}
		n.cards = append(n.cards, card)
		facts.Cards = append(facts.Cards, topology.Card{
			Index: i, UUID: card.UUID, PCIBusID: card.PCIBusID, CPUs: near[i%2],
			Links: []topology.Link{{Remote: topology.RemoteCard, PCIBusID: fmt.Sprintf("0000:%02x:00.0", (i+2)%4)}},
		})
		levels := slices.Repeat([]topology.Level{topology.SYS}, 4)
		levels[(i+2)%4] = topology.PIX
		facts.Levels = append(facts.Levels, levels)
	}
	var cpus []topology.CPU
	for id := range 16 {
		cpus = append(cpus, topology.CPU{ID: id, Package: id % 8 / 4, Core: id % 4})
	}
	n.topology, n.cores = topology.New(facts), topology.NewCoreMap(cpus)
	return n
}

func counted(n gresConf) gresConf {
	n.count = true
	return n
}

func named(n gresConf) gresConf {
	n.nodes = "gpu[01-08]"
	return n
}

func TestGresConf(t *testing.T) {
	cards := []gpu.Card{{Minor: 0, Type: "h200"}, {Index: 1, Minor: 1, Type: "h200"}, {Index: 2, Minor: 3, Type: "a100", MIG: true}}
	instances := []gpu.Card{
		{Type: "1g.10gb", Instance: gpu.Instance{GPU: "GPU-0", ID: 1, Cap: 12, ComputeCap: 13}},
		{Index: 1, Type: "1c.2g.20gb", MIG: true, Instance: gpu.Instance{GPU: "GPU-0", ID: 2, Cap: 21, ComputeCap: 22}},
		{Index: 2, Type: "1c.2g.20gb", MIG: true, Instance: gpu.Instance{GPU: "GPU-0", ID: 2, Compute: 1, Cap: 21, ComputeCap: 23}},
		{Index: 3, Minor: 1, Type: "h200"},
	}
	plain := func(cards []gpu.Card, mode string) gresConf {
		var facts topology.Facts
		for i, c := range cards {
			facts.Cards = append(facts.Cards, topology.Card{Index: c.Index})
			facts.Levels = append(facts.Levels, slices.Repeat([]topology.Level{topology.PHB}, len(cards)))
			facts.Levels[i][i] = topology.Unknown
		}
		return gresConf{cards: cards, topology: topology.New(facts), mode: mode}
	}
	half := twoSockets()
	half.cards = half.cards[:1]
	half.topology = topology.New(topology.Facts{Cards: half.topology.Cards[:1], Unread: []string{"card 0: NVLink 3: nvmlDeviceGetNvLinkState: no answer in time"}})
	for name, c := range map[string]struct {
		node gresConf
		want string
	}{
		"slurmctld places": {plain(cards, config.PlacementSlurm), `# slurm.conf: GresTypes=gpu,shard,vgpu and, on the line of this node, Gres=gpu:a100:1,gpu:h200:2,shard:h200:200
# topology: ROOT:3 -> PHB:3
Name=gpu Type=h200 File=/dev/nvidia0
Name=gpu Type=h200 File=/dev/nvidia1
Name=gpu Type=a100 File=/dev/nvidia3
Name=shard Type=h200 Count=100 File=/dev/nvidia0
Name=shard Type=h200 Count=100 File=/dev/nvidia1
`},
		"gresd places": {plain(cards[:1], config.PlacementGresd), `# slurm.conf: GresTypes=gpu,shard,vgpu and, on the line of this node, Gres=gpu:h200:1,vgpu:h200:100
Name=gpu Type=h200 File=/dev/nvidia0
Name=vgpu Type=h200 Count=100 Flags=CountOnly
`},
		"slurmctld places, and counts as well": {counted(plain(cards[:1], config.PlacementSlurm)), `# slurm.conf: GresTypes=gpu,shard,vgpu and, on the line of this node, Gres=gpu:h200:1,shard:h200:100,vgpu:100
Name=gpu Type=h200 File=/dev/nvidia0
Name=shard Type=h200 Count=100 File=/dev/nvidia0
Name=vgpu Count=100 Flags=CountOnly
`},
		"one file for several kinds of nodes": {named(plain(cards[:1], config.PlacementSlurm)), `# slurm.conf: GresTypes=gpu,shard,vgpu and, on the line of gpu[01-08], Gres=gpu:h200:1,shard:h200:100
NodeName=gpu[01-08] Name=gpu Type=h200 File=/dev/nvidia0
NodeName=gpu[01-08] Name=shard Type=h200 Count=100 File=/dev/nvidia0
`},
		"MIG instances, two of one GPU instance": {plain(instances, config.PlacementSlurm), `# slurm.conf: GresTypes=gpu,shard,vgpu and, on the line of this node, Gres=gpu:1c.2g.20gb:2,gpu:1g.10gb:1,gpu:h200:1,shard:1g.10gb:100,shard:h200:100
# topology: ROOT:4 -> PHB:4
# MIG instances: programs open /dev/nvidia0, /dev/nvidia-caps/nvidia-cap12, /dev/nvidia-caps/nvidia-cap13; the last of each tells them apart for
# Slurm. Lines and counts are those of the instances as they are now.
Name=gpu Type=1g.10gb File=/dev/nvidia-caps/nvidia-cap13
Name=gpu Type=1c.2g.20gb File=/dev/nvidia-caps/nvidia-cap22
Name=gpu Type=1c.2g.20gb File=/dev/nvidia-caps/nvidia-cap23
Name=gpu Type=h200 File=/dev/nvidia1
Name=shard Type=1g.10gb Count=100 File=/dev/nvidia-caps/nvidia-cap13
Name=shard Type=h200 Count=100 File=/dev/nvidia1
`},
		"no card": {plain(nil, config.PlacementSlurm), "# no GPU on this node\n"},
		"two sockets, near cards are not neighbours": {twoSockets(), `# slurm.conf: GresTypes=gpu,shard,vgpu and, on the line of this node, Gres=gpu:h200:4,shard:h200:400
# topology: ROOT:4 -> SYS:4 -> {PIX:2, PIX:2}
# Cores= counts the 8 cores of this node, not their threads
# Near each other are the cards in the order 0 2 1 3. The lines must stay in the order of
# the device files, so Slurm may choose sets of cards that are apart; [placement] mode =
# "gresd" in vgpu.toml chooses near ones.
# no Links=: they differ, and Slurm from 24.05 on prefers the cards with the fewest
Name=gpu Type=h200 File=/dev/nvidia0 Cores=0-3
Name=gpu Type=h200 File=/dev/nvidia1 Cores=4-7
Name=gpu Type=h200 File=/dev/nvidia2 Cores=0-3
Name=gpu Type=h200 File=/dev/nvidia3 Cores=4-7
Name=shard Type=h200 Count=100 File=/dev/nvidia0
Name=shard Type=h200 Count=100 File=/dev/nvidia1
Name=shard Type=h200 Count=100 File=/dev/nvidia2
Name=shard Type=h200 Count=100 File=/dev/nvidia3
`},
		"one card, and a driver that hangs": {half, `# slurm.conf: GresTypes=gpu,shard,vgpu and, on the line of this node, Gres=gpu:h200:1,shard:h200:100
# Cores= counts the 8 cores of this node, not their threads
# warning: card 0: NVLink 3: nvmlDeviceGetNvLinkState: no answer in time
Name=gpu Type=h200 File=/dev/nvidia0 Cores=0-3
Name=shard Type=h200 Count=100 File=/dev/nvidia0
`},
	} {
		if got := c.node.text(); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", name, got, c.want)
		}
	}
}

// Cores= of all cores would only say that nothing is known.
func TestACardNearAllCoresIsBoundToNone(t *testing.T) {
	n := twoSockets()
	for i := range n.topology.Cards {
		n.topology.Cards[i].CPUs = topology.Set{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	}
	if got := n.text(); strings.Contains(got, "Cores=") {
		t.Errorf("got\n%s", got)
	}
}
