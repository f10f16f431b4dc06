// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// cut makes the first card of a node a MIG instance.
func cut(n *testNode) {
	n.cards.cards[0].UUID, n.cards.cards[0].Type = "MIG-00000000-0000-0000-0000-000000000000", "1g.10gb"
	n.cards.cards[0].Instance = gpu.Instance{GPU: "GPU-a", ID: 1}
}

// Slurm numbers instances as cards and CUDA does not, nor the cards behind them.
func TestTasksLearnTheCardWhereThereAreInstances(t *testing.T) {
	n := newTestNode(t)
	cut(n)
	n.start()
	n.want(n.job(1, 60), wire.Granted)
	want := "CUDA_VISIBLE_DEVICES=" + string(n.cards.cards[0].UUID) + "\n"
	if text, err := os.ReadFile(n.file(1, "environment")); err != nil || string(text) != want {
		t.Errorf("environment %q, %v; want %q", text, err, want)
	}
	want = fmt.Sprintf("0 %s\n1 %s\n", n.cards.cards[0].UUID, n.cards.cards[1].UUID)
	if text, err := os.ReadFile(n.cfg.Paths.Cards()); err != nil || string(text) != want {
		t.Errorf("names of the cards %q, %v; want %q", text, err, want)
	}
	n.cards.mu.Lock()
	n.cards.cards[0].Instance = gpu.Instance{}
	n.cards.mu.Unlock()
	n.Server.refreshCards()
	if exists(n.cfg.Paths.Cards()) {
		t.Error("names of cards are there without instances")
	}
}

func TestMPSIsNotForInstances(t *testing.T) {
	n, _ := newMPSNode(t)
	cut(n)
	n.start()
	wantMessage(t, n.want(n.withMPS(1, 30), wire.Refused), "card 0 is a MIG instance, on which gresd does not start it", "want --vgpu-engine=time")

	n, _ = newMPSNode(t, func(c *config.Config) { c.MPS.DefaultEngine = gpu.MPS })
	cut(n)
	n.start()
	n.want(n.job(1, 30), wire.Granted)
	if n.mps.Holds(1) || len(n.daemons()) != 0 {
		t.Error("MPS by the site's default was started on an instance")
	}
}

// Instances that are gone stay cards of the node, out of use: Slurm counts them still.
func TestInstancesThatAreGone(t *testing.T) {
	n := newTestNode(t)
	cut(n)
	n.start()
	n.cards.mu.Lock()
	n.cards.cards = n.cards.cards[1:]
	n.cards.err = &driver.CardError{NVMLIndex: -1, Err: errors.New("MIG mode or instances are not as they were")}
	n.cards.mu.Unlock()
	n.Server.refreshCards()
	if cards := n.Server.cards.Now().Cards; len(cards) != 2 || cards[0].Healthy || !cards[1].Healthy {
		t.Errorf("cards %+v", cards)
	}
	n.want(n.job(1, 60), wire.Refused)
}
