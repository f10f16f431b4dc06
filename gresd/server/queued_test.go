// SPDX-License-Identifier: Apache-2.0

package server

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// A job that slurmctld binds to a cordoned card goes back, is told why, is put
// off when that happens again and again, and starts when the card is well.
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
	if u := next(1); len(u) != 1 || u[0] != "7 later 5m5s" && u[0] != "7 later 5m4s" {
		t.Errorf("after the card became well: %q", u)
	}
	send(7, true, wire.Granted)
	if u := told(); u != "" {
		t.Errorf("once it is granted: %q", u)
	}
}

// While gresd is away, the card becomes well: the next gresd lets the job start.
func TestJobThatWasPutOffStartsAfterARestartOfGresd(t *testing.T) {
	n := newTestNode(t).start()
	n.want(wire.Request{Op: wire.OpCordon, Card: string(n.cards.cards[0].UUID)}, wire.Changed)
	req := n.job(7, 30, batch)
	req.Restart = 5
	n.want(req, wire.Requeued)
	updates := func() []string { return n.cluster.load().Updates }
	if got := updates(); !slices.Equal(got, []string{"7 later 8m0s"}) {
		t.Fatalf("slurmctld was told %q", got)
	}
	n.restart()
	if got := updates(); len(got) != 1 {
		t.Errorf("while the card is out of use, slurmctld was told %q", got)
	}
	n.stop()
	if err := os.Remove(n.cfg.Paths.StateOfCards()); err != nil {
		t.Fatal(err)
	}
	n.start()
	until := time.Now().Add(5 * time.Second)
	for len(updates()) == 1 && time.Now().Before(until) {
		time.Sleep(time.Millisecond)
	}
	if got := updates(); len(got) != 2 || !strings.HasPrefix(got[1], "7 later 5m") {
		t.Errorf("after the card became well, slurmctld was told %q", got)
	}
	n.restart()
	if n.outbox.Waits() {
		t.Error("the job is put off for ever")
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
