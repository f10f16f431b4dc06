// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Whether a job has whole cards is asked once, in no hurry, and until slurmctld answers nobody is
// blamed.
func TestWhoHasTheWholeCard(t *testing.T) {
	n := newTestNode(t).start()
	if _, err := n.node.Enter("n1", "", "", nil); err != nil {
		t.Fatal(err)
	}
	n.node.Leave()
	n.job(1, 0, func(f *slurm.JobFacts) { f.Units, f.WholeCards = nil, []int{1} })
	n.job(2, 0, func(f *slurm.JobFacts) { f.Units = nil })
	cards := n.cards.cards
	n.cluster.change(t, func(s *clusterState) { s.Down = true })
	synctest.Test(t, func(t *testing.T) {
		check := func(when string, job uint32, card int, want bool) {
			t.Helper()
			if got := n.queue.MayUse(job, cards[card].UUID); got != want {
				t.Errorf("%s: job %d may have card %d: %v, want %v", when, job, card, got, want)
			}
			synctest.Wait()
		}
		check("at first", 2, 0, true)
		check("slurmctld is away", 2, 0, true)
		n.cluster.change(t, func(s *clusterState) { s.Down = false })
		time.Sleep(31 * time.Second)
		check("it is back", 2, 0, true)
		check("then", 2, 0, false)
		check("at first", 1, 0, true)
		check("then", 1, 1, true)
		check("then", 1, 0, false)
		check("a job that slurmctld does not know", 3, 0, true)
		check("then", 3, 0, false)
	})
}

// The audit asks about a job of whole cards, and the job ends before slurmctld answers.
func TestAWholeCardIsFreeAfterALateAnswer(t *testing.T) {
	n := newTestNode(t, gresdPlaces)
	h := heldUp(t, n)
	if _, err := n.node.Enter("n1", "", "", nil); err != nil {
		t.Fatal(err)
	}
	n.job(1, 0, wholeCards(1))
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		h.job = func() { <-goOn }
		n.queue.MayUse(1, n.cards.cards[1].UUID)
		synctest.Wait()
		n.queue.Release(1)
		close(goOn)
		synctest.Wait()
		if inUse := n.queue.CurrentUse(); len(inUse) != 0 {
			t.Errorf("in use after the end of its job: %v", inUse)
		}
	})
}

// A job of whole cards ends while its Prolog asks slurmctld.
func TestAWholeCardIsFreeAfterALateProlog(t *testing.T) {
	n := newTestNode(t, gresdPlaces, func(c *config.Config) { c.Placement.WaitS = 0 })
	h := heldUp(t, n)
	req := n.job(1, 0, wholeCards(1))
	synctest.Test(t, func(t *testing.T) {
		goOn, got := make(chan struct{}), make(chan wire.Reply, 1)
		h.job = func() { <-goOn }
		go func() { got <- n.grant(context.Background(), req) }()
		synctest.Wait()
		n.release(wire.Request{JobID: 1})
		close(goOn)
		if rep := <-got; rep.OK {
			t.Errorf("%+v, want an error", rep)
		}
		if inUse := n.queue.CurrentUse(); len(inUse) != 0 {
			t.Errorf("in use after the end of its job: %v", inUse)
		}
	})
}

// wholeCards is a job without a share that Slurm gave whole cards.
func wholeCards(cards ...int) func(*slurm.JobFacts) {
	return func(f *slurm.JobFacts) { f.Units, f.WholeCards = nil, cards }
}

// Where gresd chooses the cards of shares, Slurm chooses whole cards, and knows of no share on
// them: no card has both.
func TestWholeCardsAndSharesAreOnNoCardTogether(t *testing.T) {
	n := newTestNode(t, gresdPlaces).start()
	n.want(n.job(1, 0, wholeCards(0)), wire.None)
	n.want(n.counted(2, 100), wire.Granted) // card 1
	if rep := n.want(n.counted(3, 10, batch), wire.Requeued); !strings.Contains(rep.Message, "largest free share 0 %") {
		t.Errorf("beside a whole card: %q", rep.Message)
	}
	if rep := n.want(n.job(4, 0, wholeCards(1), batch), wire.Requeued); !strings.Contains(rep.Message, "card 1 has shares of other jobs, in number 1") {
		t.Errorf("beside shares: %q", rep.Message)
	}
	n.want(n.job(5, 0, wholeCards(0, 1)), wire.Refused) // srun does not come again
	n.want(wire.Request{Op: wire.OpRelease, JobID: 5}, wire.Released)
	n.end(5)

	// Who has what is known after a restart, too, and of a job that came meanwhile.
	n.restart()
	n.want(n.counted(3, 10, batch), wire.Requeued)
	n.want(wire.Request{Op: wire.OpRelease, JobID: 1}, wire.None)
	n.end(1)
	n.stop()
	n.job(6, 0, wholeCards(0))
	n.start()
	n.want(n.counted(3, 10, batch), wire.Requeued)
	n.end(6) // its Epilog is lost
	n.want(n.counted(3, 10, batch), wire.Granted)
	if rec, _ := n.ledger.Get(3); len(rec.Placement.Cards) != 1 || rec.Placement.Cards[0].Index != 0 {
		t.Errorf("%+v, want card 0", rec.Placement)
	}
	n.want(n.job(7, 0, func(f *slurm.JobFacts) { f.Units = nil }), wire.None)
}

// A whole card that a job waits for takes no more shares, and is the job's when the last one ends.
// Another waits for a whole card that ends.
func TestAWholeCardIsWaitedFor(t *testing.T) {
	simulate(t, func(*config.Config) {}, func(n *testNode, s *scheduler) {
		n.want2(t, 1, 50, wire.Granted) // card 1
		got := map[uint32]chan wire.Reply{}
		ask := func(id uint32, req wire.Request) {
			got[id] = make(chan wire.Reply, 1)
			go func() { got[id] <- n.grant(context.Background(), req) }()
			synctest.Wait()
		}
		answer := func(id uint32, want wire.Result) {
			t.Helper()
			synctest.Wait()
			select {
			case rep := <-got[id]:
				if rep.Result != want {
					t.Errorf("job %d: %+v, want %s", id, rep, want)
				}
			default:
				t.Errorf("job %d still waits, want %s", id, want)
			}
		}
		ask(2, n.job(2, 0, wholeCards(1), batch))
		n.want2(t, 3, 20, wire.Granted) // card 0, though card 1 would fit better
		if rec, _ := n.ledger.Get(3); rec.Placement.Cards[0].Index != 0 {
			t.Errorf("job 3 is on card 1, for which a job waits")
		}
		n.end(1)
		n.release(wire.Request{JobID: 1})
		answer(2, wire.None)
		ask(4, n.counted(4, 90, batch))
		n.end(2)
		n.release(wire.Request{JobID: 2})
		answer(4, wire.Granted)
		// A job without cards waits for nobody.
		ask(5, n.job(5, 0, wholeCards(1), batch))
		ask(6, n.job(6, 0, wholeCards()))
		answer(6, wire.None)
		answer5 := n.release(wire.Request{JobID: 5})
		if answer5.Result != wire.None {
			t.Errorf("Epilog of a job that waits: %+v", answer5)
		}
		synctest.Wait()
		<-got[5]
	})
}
