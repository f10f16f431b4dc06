// SPDX-License-Identifier: Apache-2.0

package cards

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
)

// fakeDriver has two cards.
type fakeDriver struct {
	cards         []gpu.Card
	topologyErr   error
	unread        []string
	topologyReads int
}

func (f *fakeDriver) Cards() ([]gpu.Card, error) { return append([]gpu.Card{}, f.cards...), nil }

func (f *fakeDriver) Topology() (topology.Facts, error) {
	f.topologyReads++
	if f.topologyErr != nil {
		return topology.Facts{}, f.topologyErr
	}
	facts := topology.Facts{Unread: f.unread}
	for i, c := range f.cards {
		facts.Cards = append(facts.Cards, topology.Card{Index: c.Index, UUID: c.UUID, NUMANode: topology.NoNUMANode, MIG: c.MIG})
		facts.Levels = append(facts.Levels, []topology.Level{topology.NODE, topology.NODE})
		facts.Levels[i][i] = topology.Unknown
	}
	return facts, nil
}

// well finds no card sick.
type well struct{ Health }

func (well) Out(gpu.UUID) string { return "" }

func TestTopologyIsReadAgainOnlyForAReason(t *testing.T) {
	driver := &fakeDriver{cards: []gpu.Card{{UUID: "GPU-a", Index: 0, Healthy: true}, {UUID: "GPU-b", Index: 1, Healthy: true}}}
	c := Read(driver, well{}, config.NewInForce(config.Default()), slog.New(slog.DiscardHandler))
	reads := func(want int, why string) {
		t.Helper()
		c.Refresh()
		if driver.topologyReads != want {
			t.Errorf("%s: %d reads, want %d", why, driver.topologyReads, want)
		}
	}
	first := c.Now().Topology
	reads(1, "the same cards")
	if c.Now().Topology != first {
		t.Error("the topology was lost")
	}
	driver.cards[1].MIG = true
	driver.unread = []string{"card 1: NVLink 0: no answer in time"}
	reads(2, "a card in MIG mode")
	reads(3, "something was not read")
	driver.unread = nil
	reads(4, "the driver answers again")
	reads(4, "all was read")
	if topo := c.Now().Topology; !topo.Cards[1].MIG || len(topo.Warnings) != 0 {
		t.Errorf("got %+v", topo)
	}

	// A driver that hangs takes nothing away.
	driver.topologyErr = errors.New("hangs")
	next := *c.Now()
	next.topologyRead = next.topologyRead.Add(-2 * topologyAge)
	c.now.Store(&next)
	reads(5, "an old topology")
	if now := c.Now(); now.Topology == nil || now.Distances == nil {
		t.Error("the topology was lost")
	}
}
