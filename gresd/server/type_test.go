// SPDX-License-Identifier: Apache-2.0

package server

import (
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// ofType makes a job that slurmctld gave a count of these types of card.
func ofType(n gpu.Share, types ...string) func(*slurm.JobFacts) {
	return func(f *slurm.JobFacts) { f.Units, f.Counted, f.CountedTypes = nil, n, types }
}

// Where gresd chooses, a count of a type is served by a card of that type, also
// where another would fit better.
func TestTypeOfTheCountIsTheTypeOfTheCard(t *testing.T) {
	n := newTestNode(t, byGresd)
	n.cards.cards[1].Type = "a100"
	n.start()
	n.want(n.job(1, 40, ofType(40, "a100")), wire.Granted)
	n.want(n.job(2, 60, ofType(60, "a100")), wire.Granted) // best fit, too
	n.want(n.job(3, 20, ofType(20, "h200")), wire.Granted)
	n.want(n.job(4, 20, ofType(20, "a100"), batch), wire.Requeued) // card 0 has room
	for id, want := range map[uint32]int{1: 1, 2: 1, 3: 0} {
		if rec, _ := n.ledger.Get(id); len(rec.Placement.Cards) != 1 || rec.Placement.Cards[0].Index != want {
			t.Errorf("job %d: %+v, want card %d", id, rec.Placement, want)
		}
	}
	if e := n.explainAs(nobody, wire.Request{JobID: 3}); cardReasons(e) != "taken other_type" {
		t.Errorf("job 3: %s", cardReasons(e))
	}
	// Slurm can split a count without a type over types; then any of them will do.
	n.want(n.job(5, 80, ofType(80, "a100", "h200")), wire.Granted)
	rep := n.want(n.job(6, 10, ofType(10, "H200-SXM")), wire.Refused)
	if !strings.Contains(rep.Message, `"H200-SXM": want a type of card that this node has: a100, h200`) {
		t.Error(rep.Message)
	}
}

// A site may call its cards otherwise than NVML does.
func TestTypeOfACardIsTheSitesWord(t *testing.T) {
	n := newTestNode(t, byGresd, func(c *config.Config) {
		c.Cards["GPU-000000000000000000000000000000000001"] = config.Card{MemScaling: 1, Type: "big"}
	}).start()
	n.want(n.job(1, 40, ofType(40, "big")), wire.Granted)
	if rec, _ := n.ledger.Get(1); rec.Placement.Cards[0].Index != 1 {
		t.Errorf("%+v, want card 1", rec.Placement)
	}
}
