// SPDX-License-Identifier: Apache-2.0

package cards

import (
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
)

// topologyAge is how old the topology may be while the cards are the same: it
// changes with a link that goes down, and costs hundreds of questions.
const topologyAge = 10 * time.Minute

// refreshTopology fills in next, which has its cards, from the driver or from old.
func (c *Cards) refreshTopology(next, old *State) {
	same := old != nil && old.Topology != nil && slices.EqualFunc(old.Cards, next.Cards, samePlace)
	if same {
		next.Topology, next.Distances, next.topologyRead = old.Topology, old.Distances, old.topologyRead
		if time.Since(old.topologyRead) < topologyAge {
			return
		}
	}
	facts, err := c.driver.Topology()
	if err != nil { // it is asked again the next time
		c.log.Warn("topology cannot be read", "error", err, "known", same)
		return
	}
	t := topology.New(facts)
	next.Topology, next.Distances, next.topologyRead = t, t.Matrix(), time.Now()
	if len(facts.Unread) > 0 {
		next.topologyRead = time.Time{} // the driver may answer the next time
	}
	var said []string
	if old != nil && old.Topology != nil {
		said = old.Topology.Warnings
	}
	for _, warning := range t.Warnings {
		if !slices.Contains(said, warning) {
			c.log.Warn("topology", "warning", warning)
		}
	}
}

func samePlace(a, b gpu.Card) bool {
	return a.UUID == b.UUID && a.Index == b.Index && a.PCIBusID == b.PCIBusID && a.MIG == b.MIG
}
