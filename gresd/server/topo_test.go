// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"slices"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func TestTopologyWithTheUseOfItsCards(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	rep := n.askAs(nobody, wire.Request{Op: wire.OpTopo})
	if !rep.OK || rep.Topology == nil {
		t.Fatalf("got %+v", rep)
	}
	topo := rep.Topology
	if topo.TreeText != "ROOT:2 -> NODE:2" || topo.Tree.Level != "ROOT" || !slices.Equal(topo.Tree.Children[0].Cards, []int{0, 1}) ||
		topo.Tree.Children[0].Children[1].Level != "" {
		t.Errorf("tree %+v, %s", topo.Tree, topo.TreeText)
	}
	if !slices.EqualFunc(topo.Matrix, [][]string{{"X", "NODE"}, {"NODE", "X"}}, slices.Equal) || topo.P2P["read"][0][1] != "U" {
		t.Errorf("matrix %v, P2P %v", topo.Matrix, topo.P2P)
	}
	if c := topo.Cards[0]; c.Share != 30 || c.Jobs != 1 || c.NUMANode != nil || c.UUID == "" || topo.Cards[1].Share != 0 {
		t.Errorf("cards %+v", topo.Cards)
	}
}

func TestNoTopologyIsAnError(t *testing.T) {
	n := newTestNode(t)
	n.cards.topologyErr = errors.New("hangs")
	n.start()
	if rep := n.askAs(nobody, wire.Request{Op: wire.OpTopo}); rep.OK || rep.Kind != wire.KindNode || rep.Message == "" {
		t.Errorf("got %+v", rep)
	}
	// Jobs do not need it.
	n.want(n.job(7, 30), wire.Granted)
}
