// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

// Whether a job has whole cards is asked once, in no hurry, and until slurmctld answers nobody is
// blamed.
func TestWhoHasTheWholeCard(t *testing.T) {
	n := newTestNode(t).start()
	if err := n.nodes.learn("n1", ""); err != nil {
		t.Fatal(err)
	}
	n.job(1, 0, func(f *slurm.JobFacts) { f.Units, f.WholeCards = nil, []int{1} })
	n.job(2, 0, func(f *slurm.JobFacts) { f.Units = nil })
	cards := n.cards.cards
	n.cluster.change(t, func(s *clusterState) { s.Down = true })
	synctest.Test(t, func(t *testing.T) {
		check := func(when string, job uint32, card int, want bool) {
			t.Helper()
			if got := n.MayHoldWhole(job, cards[card].UUID); got != want {
				t.Errorf("%s: job %d may have card %d: %v, want %v", when, job, card, got, want)
			}
			synctest.Wait()
		}
		check("at first", 2, 0, true)
		check("slurmctld is away", 2, 0, true)
		n.cluster.change(t, func(s *clusterState) { s.Down = false })
		time.Sleep(askAgain + time.Second)
		check("it is back", 2, 0, true)
		check("then", 2, 0, false)
		check("at first", 1, 0, true)
		check("then", 1, 1, true)
		check("then", 1, 0, false)
		check("a job that slurmctld does not know", 3, 0, true)
		check("then", 3, 0, false)
	})
}
