// SPDX-License-Identifier: Apache-2.0

package server

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func TestDelayOfARequeuedJob(t *testing.T) {
	var got []time.Duration
	for restarts := range uint32(8) {
		got = append(got, delayOf(restarts)/time.Minute)
	}
	if want := []time.Duration{0, 0, 0, 2, 4, 8, 10, 10}; !slices.Equal(got, want) {
		t.Errorf("got %v minutes, want %v", got, want)
	}
	if got := delayOf(1 << 31); got != longestDelay {
		t.Errorf("after very many: %s", got)
	}
}

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
