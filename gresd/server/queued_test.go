// SPDX-License-Identifier: Apache-2.0

package server

import (
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// A job that slurmctld binds to a cordoned card is requeued with the reason, and delayed if that happens
// again and again.
func TestJobOnACordonedCardIsPutOff(t *testing.T) {
	n := newTestNode(t).start()
	card := string(n.cards.cards[0].UUID)
	cordon := func(op wire.Op) {
		t.Helper()
		n.want(wire.Request{Op: op, Card: card, Reason: "fan"}, wire.Changed)
	}
	send := func(restart uint32, explained bool, want wire.Result) {
		t.Helper()
		req := n.job(7, 30, batch, func(f *slurm.JobFacts) { f.Explained = explained })
		req.Restart = restart
		n.want(req, want)
	}
	seen := 0
	// next is what slurmctld was told since the last call.
	next := func(want int) []string {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
			all := n.cluster.load().Updates
			if len(all) >= seen+want {
				fresh := all[seen:]
				seen = len(all)
				return fresh
			}
			if time.Now().After(end) {
				t.Fatalf("slurmctld was told %q, want %d more than %d", all, want, seen)
			}
		}
	}
	cordon(wire.OpCordon)
	told := func() string { return n.cluster.load().Told[7] }
	send(0, false, wire.Requeued)
	if u := told(); !strings.HasPrefix(u, "vgpu: place: job 7: ") || !strings.Contains(u, "cordoned by an administrator: fan") {
		t.Errorf("told %q", u)
	}
	send(3, true, wire.Requeued)
	// Two minutes would do, but slurmd remembers the last run for five.
	if u := next(1); len(u) != 1 || u[0] != "7 later 5m5s" {
		t.Errorf("the fourth time: %q", u)
	}
	send(6, true, wire.Requeued)
	if u := next(1); len(u) != 1 || u[0] != "7 later 10m0s" {
		t.Errorf("the seventh time: %q", u)
	}
	cordon(wire.OpUncordon)
	send(7, true, wire.Granted)
	if u := told(); u != "" {
		t.Errorf("once it is granted: %q", u)
	}
}

// Room comes unannounced: a job that found none comes again when Slurm lets it,
// however often it came.
func TestJobThatFindsNoRoomIsNotPutOff(t *testing.T) {
	for mode, n := range map[string]*testNode{"gresd": newTestNode(t, gresdPlaces).start(), "slurm": newTestNode(t).start()} {
		n.want(n.job(1, 60, func(f *slurm.JobFacts) { f.Counted = 60 }), wire.Granted)
		n.want(n.job(2, 60, func(f *slurm.JobFacts) { f.Counted, f.Units = 60, map[int]gpu.Share{1: 60} }), wire.Granted)
		for restart := range uint32(7) {
			req := n.job(3, 60, batch, func(f *slurm.JobFacts) { f.Counted = 60 })
			req.Restart = restart
			n.want(req, wire.Requeued)
		}
		if state := n.cluster.load(); len(state.Updates) != 0 || len(state.Requeued) != 7 || !strings.Contains(state.Told[3], "want 60 %") {
			t.Errorf("mode %s: sent back %d times, told %q, slurmctld was told %q, want nothing",
				mode, len(state.Requeued), state.Told[3], state.Updates)
		}
	}
}
