// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waitqueue"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// requeueDelay is Slurm's, where the site says nothing.
const requeueDelay = 121 * time.Second

// scheduler is a slurmctld in virtual time: it starts a job whenever the shares of the node's two
// cards together are enough, and one that was sent back when its delay is over. It counts the
// commands that it is asked by.
type scheduler struct {
	fakeCluster
	n        *testNode
	serial   bool
	commands atomic.Int64
	back     atomic.Int64 // how often jobs were sent back

	mu    sync.Mutex
	free  gpu.Share
	queue []pending
	jobs  sync.WaitGroup
}

// pending is a job in the queue, by its priority: who was submitted first is first.
type pending struct {
	id    uint32
	units gpu.Share
	start chan struct{}
}

func (c *scheduler) Job(ctx context.Context, id uint32, node string) (slurm.JobFacts, error) {
	c.commands.Add(1)
	return c.fakeCluster.Job(ctx, id, node)
}

func (c *scheduler) Brief(ctx context.Context, id uint32, node string) (slurm.JobFacts, error) {
	c.commands.Add(1)
	return c.fakeCluster.Brief(ctx, id, node)
}

func (c *scheduler) Requeue(ctx context.Context, id uint32) error {
	c.commands.Add(1)
	return c.fakeCluster.Requeue(ctx, id)
}

func (c *scheduler) Explain(ctx context.Context, id uint32, line string) error {
	c.commands.Add(2)
	return c.fakeCluster.Explain(ctx, id, line)
}

func (c *scheduler) Extend(ctx context.Context, id uint32, limit time.Duration) error {
	c.commands.Add(1)
	return c.fakeCluster.Extend(ctx, id, limit)
}

func (c *scheduler) Settings(context.Context) (slurm.Settings, error) {
	c.commands.Add(1)
	return slurm.Settings{CredentialLife: requeueDelay - time.Second, SerialProlog: c.serial}, nil
}

// simulate runs f with a node in virtual time.
func simulate(t *testing.T, change func(*config.Config), f func(*testNode, *scheduler)) {
	t.Helper()
	n := newTestNode(t, func(c *config.Config) { c.Placement.By, c.Placement.Patience = config.PlacementGresd, 2 }, change)
	c := &scheduler{fakeCluster: n.cluster, n: n, free: 200}
	s, cleanup, err := assemble(n.cfg, n.dir, n.cluster, n.cards, n.count, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer cleanup()
	s.node.Slurm = func(string) node.Slurm { return c }
	s.jobLocks.asked = nil
	n.Server = s
	synctest.Test(t, func(t *testing.T) {
		s.comparing = make(chan struct{}, 1) // which is waited for in virtual time
		f(n, c)
	})
}

// take waits until slurmctld starts the job.
func (c *scheduler) take(id uint32, units gpu.Share) {
	start := make(chan struct{})
	c.mu.Lock()
	i := 0
	for i < len(c.queue) && c.queue[i].id < id {
		i++
	}
	c.queue = slices.Insert(c.queue, i, pending{id, units, start})
	c.mu.Unlock()
	c.give(0)
	<-start
}

// give gives shares back, and starts who has room then.
func (c *scheduler) give(units gpu.Share) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free += units
	c.queue = slices.DeleteFunc(c.queue, func(p pending) bool {
		if p.units > c.free {
			return false
		}
		c.free -= p.units
		close(p.start)
		return true
	})
}

// run is a job from its submission to its end; in its order among those of one goroutine.
func (c *scheduler) run(id uint32, units gpu.Share, length time.Duration) {
	c.take(id, units)
	c.jobs.Go(func() {
		for restart := uint32(0); ; restart++ {
			if c.start(id, units, length, restart) {
				return
			}
			c.back.Add(1)
			c.give(units)
			time.Sleep(requeueDelay)
			c.take(id, units)
		}
	})
}

func (c *scheduler) start(id uint32, units gpu.Share, length time.Duration, restart uint32) (ran bool) {
	req := c.n.counted(id, units, batch)
	req.Restart = restart
	ctx, cancel := context.WithTimeout(context.Background(), grantTimeout)
	defer cancel()
	rep := c.n.grant(ctx, req)
	if rep.Result != wire.Granted {
		if rep.Result != wire.Requeued {
			c.n.t.Errorf("job %d: %+v", id, rep)
		}
		return rep.Result != wire.Requeued
	}
	stepd := func(change func([]uint32) []uint32) {
		c.n.cluster.change(c.n.t, func(s *clusterState) { s.Stepds = change(s.Stepds) })
	}
	stepd(func(jobs []uint32) []uint32 { return append(jobs, id) })
	time.Sleep(length)
	stepd(func(jobs []uint32) []uint32 {
		return slices.DeleteFunc(jobs, func(job uint32) bool { return job == id })
	})
	c.n.end(id)
	c.n.release(wire.Request{JobID: id})
	c.give(units)
	return true
}

func (c *scheduler) array(tasks uint32, units gpu.Share, length time.Duration) time.Duration {
	began := time.Now()
	for id := range tasks {
		c.run(id+1, units, length)
	}
	c.jobs.Wait()
	return time.Since(began)
}

// Three tasks of 60 % are started on two cards: the third waits for one to end, and no card is
// idle as long as one waits.
func TestATaskThatWaitsHasTheNextRoom(t *testing.T) {
	for name, c := range map[string]struct {
		tasks    uint32
		length   time.Duration
		back     int64 // tasks sent back, at most
		commands int64 // for each task, at most
	}{
		"a second":            {100, time.Second, 0, 2}, // one, and the settings of Slurm
		"a minute":            {40, time.Minute, 0, 4},
		"more than they wait": {40, 10 * time.Minute, 100, 15},
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, func(*config.Config) {}, func(n *testNode, s *scheduler) {
				took := s.array(c.tasks, 60, c.length)
				t.Logf("%d tasks of %s in %s, sent back %d times, %d commands", c.tasks, c.length, took, s.back.Load(), s.commands.Load())
				// Of the last ones, one may just be in the queue.
				if most := c.length*time.Duration(c.tasks)/2 + requeueDelay; took > most {
					t.Errorf("%s, want at most %s", took, most)
				}
				if s.back.Load() > c.back || s.commands.Load() > c.commands*int64(c.tasks) {
					t.Errorf("sent back %d times with %d commands, want at most %d and %d", s.back.Load(), s.commands.Load(), c.back, c.commands*int64(c.tasks))
				}
				if told := n.cluster.load().Told; s.back.Load() == 0 && len(told) != 0 {
					t.Errorf("no job was sent back, and the users read %v", told)
				}
			})
		})
	}
}

// A job of 70 % on two cards of which six of 20 % have 60 each, one coming when another ends: none
// leaves enough for it. Cards are kept free for it at last.
func TestALargeJobAmongSmallOnesRuns(t *testing.T) {
	simulate(t, func(c *config.Config) { c.Defaults.Policy = gpu.Spread }, func(n *testNode, s *scheduler) {
		const length, between = time.Minute, 10 * time.Second
		var over atomic.Bool
		for stream := range uint32(6) {
			s.jobs.Go(func() {
				for id := 100 + stream; !over.Load(); id += 6 {
					s.take(id, 20)
					for !s.start(id, 20, length, 0) {
						t.Errorf("job %d found no room", id)
					}
				}
			})
			time.Sleep(between)
		}
		began := time.Now()
		s.take(10, 70)
		restarts := uint32(0)
		for ; !s.start(10, 70, time.Second, restarts); restarts++ {
			s.give(70)
			time.Sleep(requeueDelay)
			s.take(10, 70)
		}
		took := time.Since(began)
		t.Logf("ran after %s, sent back %d times", took, restarts)
		if most := 2*n.cfg.Placement.Wait() + requeueDelay + length; restarts == 0 || took > most {
			t.Errorf("a large job ran after %s, sent back %d times; want that it waits, at most %s", took, restarts, most)
		}
		over.Store(true)
		s.jobs.Wait()
	})
}

// Who comes first is first, also after it was sent back; a job that ends, or whose Prolog asks
// again, keeps nobody waiting, and holds nothing.
func TestTheOrderOfThoseWhoWait(t *testing.T) {
	simulate(t, func(*config.Config) {}, func(n *testNode, s *scheduler) {
		n.want2(t, 1, 60, wire.Granted)
		n.want2(t, 2, 60, wire.Granted)
		got := map[uint32]chan wire.Reply{}
		for _, id := range []uint32{3, 4, 5} {
			answer := make(chan wire.Reply, 2)
			got[id] = answer
			go func() { answer <- n.grant(context.Background(), n.counted(id, 60, batch)) }()
			time.Sleep(time.Second)
		}
		go func() { got[3] <- n.grant(context.Background(), n.counted(3, 60, batch)) }() // gresd's client was restarted
		synctest.Wait()
		if rep := <-got[3]; rep.OK || rep.Kind != wire.KindUser {
			t.Errorf("the first question of job 3: %+v", rep)
		}
		n.release(wire.Request{JobID: 4}) // cancelled: its Epilog
		if rep := <-got[4]; rep.OK {
			t.Errorf("job 4: %+v", rep)
		}
		n.end(1)
		n.release(wire.Request{JobID: 1})
		if rep := <-got[3]; rep.Result != wire.Granted {
			t.Errorf("job 3: %+v", rep)
		}
		n.end(5) // cancelled, and the Epilog was lost
		if rep := <-got[5]; rep.OK {
			t.Errorf("job 5: %+v", rep)
		}
		if _, known := n.ledger.Get(4); known || len(n.line()) != 0 || n.ledger.Len() != 2 {
			t.Errorf("%d records, the line is %+v", n.ledger.Len(), n.line())
		}
	})
}

func (n *testNode) want2(t *testing.T, id uint32, units gpu.Share, result wire.Result) {
	t.Helper()
	if rep := n.grant(context.Background(), n.counted(id, units, batch)); rep.Result != result {
		t.Fatalf("job %d: %+v, want %s", id, rep, result)
	}
}

// Jobs without room that may not wait come one after the other, and share a comparison.
func TestJobsWithoutRoomShareAComparison(t *testing.T) {
	simulate(t, func(c *config.Config) { c.Placement.WaitS = 0 }, func(n *testNode, _ *scheduler) {
		n.compareLife = compareLife
		n.want2(t, 1, 100, wire.Granted)
		n.want2(t, 2, 100, wire.Granted)
		time.Sleep(time.Minute)
		compared := map[*time.Time]bool{}
		for id := range uint32(10) {
			n.want2(t, 3+id, 60, wire.Requeued)
			compared[n.compared.Load()] = true
			time.Sleep(100 * time.Millisecond)
		}
		if len(compared) > 2 {
			t.Errorf("%d comparisons for ten jobs in a second, want at most 2", len(compared))
		}
		n.end(1) // and its Epilog is lost
		time.Sleep(compareLife)
		n.want2(t, 13, 60, wire.Granted)
	})
}

// Slurm runs a second Prolog for a job that has waited long. The first one ends, and the job keeps its
// count and its cards.
func TestASecondPrologKeepsTheReservedCards(t *testing.T) {
	simulate(t, func(*config.Config) {}, func(n *testNode, _ *scheduler) {
		n.want2(t, 1, 60, wire.Granted)
		n.want2(t, 2, 60, wire.Granted)
		for range 3 {
			n.queue.RecordNoRoom(waitqueue.Request{JobID: 3, Share: request.Request{Share: 60, Cards: 1}, Requeues: true})
		}
		got := make(chan wire.Reply, 2)
		for range 2 {
			go func() { got <- n.grant(context.Background(), n.counted(3, 60, batch)) }()
			synctest.Wait()
		}
		if rep := <-got; rep.OK {
			t.Errorf("the first Prolog: %+v, want an error", rep)
		}
		if is := n.queue.RequeueMessage(3); n.queue.RequeueCount(3) < 3 || !strings.Contains(is, "card 0 is kept free for it") {
			t.Errorf("after the first Prolog: %q, want 3 times or more, and card 0", is)
		}
		n.end(3)
		n.release(wire.Request{JobID: 3})
		if rep := <-got; rep.OK || n.queue.RequeueCount(3) != 0 {
			t.Errorf("after the Epilog: %+v, sent back %d times", rep, n.queue.RequeueCount(3))
		}
	})
}

// How long a job may wait: not where that would keep others out, and never so long that Slurm or
// srun gives up.
func TestHowLongAJobWaits(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*config.Config)
		serial bool
		within uint32
		srun   bool
		want   time.Duration
	}{
		"a batch job":        {want: 2 * time.Minute},
		"srun":               {srun: true, want: 10 * time.Second},
		"the site says less": {change: func(c *config.Config) { c.Placement.WaitS = 30 }, want: 30 * time.Second},
		"not at all":         {change: func(c *config.Config) { c.Placement.WaitS = 0 }},
		"Slurm gives up":     {within: 11, want: 8 * time.Second},
		"one at a time":      {serial: true},
	} {
		t.Run(name, func(t *testing.T) {
			change := c.change
			if change == nil {
				change = func(*config.Config) {}
			}
			simulate(t, change, func(n *testNode, s *scheduler) {
				s.serial = c.serial
				n.want2(t, 1, 200, wire.Granted)
				req, want := n.counted(2, 60, batch, func(f *slurm.JobFacts) { f.TimeLimit = time.Hour }), wire.Requeued
				if c.srun {
					req, want = n.counted(2, 60), wire.Refused
				}
				req.Within = c.within
				began := time.Now()
				rep := n.dispatchReady(t, req)
				if took := time.Since(began); rep.Result != want || took != c.want {
					t.Errorf("%s %q after %s, want %s after %s", rep.Result, rep.Message, took, want, c.want)
				}
				if n.count.took != 0 {
					t.Errorf("the grant itself took %s by the metric, want nothing", n.count.took)
				}
			})
		})
	}
}

// Slurm counts the wait as a part of the job's time limit: it is given back, and none waits until
// its own is over.
func TestTheWaitIsNotOfTheTimeLimit(t *testing.T) {
	limit := func(d time.Duration) func(*slurm.JobFacts) { return func(f *slurm.JobFacts) { f.TimeLimit = d } }
	simulate(t, func(*config.Config) {}, func(n *testNode, s *scheduler) {
		n.want2(t, 1, 200, wire.Granted)
		time.AfterFunc(40*time.Second, func() { n.end(1); n.release(wire.Request{JobID: 1}) })
		began := time.Now()
		if rep := n.grant(context.Background(), n.counted(2, 60, batch, limit(time.Minute))); rep.Result != wire.Requeued || time.Since(began) != 30*time.Second {
			t.Errorf("of a minute: %+v after %s", rep, time.Since(began))
		}
		if rep := n.grant(context.Background(), n.counted(3, 60, batch, limit(time.Hour))); rep.Result != wire.Granted {
			t.Errorf("of an hour: %+v", rep)
		}
		if got := n.cluster.load().Updates; !slices.Equal(got, []string{"3 limit 1h0m10s"}) {
			t.Errorf("slurmctld was told %q", got)
		}

		// Whoever sets the limit of a job that waits has said how long it may run.
		time.AfterFunc(20*time.Second, func() {
			n.cluster.change(t, func(s *clusterState) {
				facts := s.Jobs[4]
				facts.TimeLimit = 2 * time.Hour
				s.Jobs[4] = facts
			})
		})
		time.AfterFunc(40*time.Second, func() { n.end(3); n.release(wire.Request{JobID: 3}) })
		if rep := n.grant(context.Background(), n.counted(4, 200, batch, limit(time.Hour))); rep.Result != wire.Granted {
			t.Errorf("with another limit: %+v", rep)
		}
		if got := n.cluster.load().Updates; len(got) != 1 {
			t.Errorf("slurmctld was told %q", got)
		}
	})
}

// A gresd that is stopped neither refuses nor sends back who waits: the next one is asked.
func TestWhoWaitsAsksTheNextGresd(t *testing.T) {
	n := newTestNode(t, func(c *config.Config) { c.Placement.By = config.PlacementGresd }).start()
	n.want(n.counted(1, 200), wire.Granted)
	got := make(chan error, 1)
	go func() {
		_, err := n.ask(n.counted(2, 60, batch))
		got <- err
	}()
	for !n.queue.IsWaiting(2) {
		time.Sleep(time.Millisecond)
	}
	n.stop()
	var answer *wire.Error
	if err := <-got; err == nil || errors.As(err, &answer) {
		t.Errorf("who waits hears %v, want nothing", err)
	}
	n.start()
	if len(n.cluster.load().Requeued) != 0 || n.ledger.Len() != 1 {
		t.Errorf("requeued %v, %d records", n.cluster.load().Requeued, n.ledger.Len())
	}
}

// dispatchReady is a request over the socket, without the socket.
func (n *testNode) dispatchReady(t *testing.T, req wire.Request) wire.Reply {
	t.Helper()
	n.ready = make(chan struct{})
	close(n.ready)
	return n.dispatch(context.Background(), req, wire.Cred{})
}

// slowSlurm takes its time to answer, and counts the questions about one job.
type slowSlurm struct {
	node.Slurm
	asked *atomic.Int64
}

func (s slowSlurm) Brief(ctx context.Context, id uint32, node string) (slurm.JobFacts, error) {
	if id == 1 {
		s.asked.Add(1)
	}
	time.Sleep(time.Second)
	return s.Slurm.Brief(ctx, id, node)
}

// Many jobs that wait have those that may have ended asked about as often as one does.
func TestManyWhoWaitAskOnce(t *testing.T) {
	simulate(t, func(*config.Config) {}, func(n *testNode, c *scheduler) {
		var asked atomic.Int64
		n.node.Slurm = func(string) node.Slurm { return slowSlurm{c, &asked} }
		n.want2(t, 1, 200, wire.Granted)
		ctx, stop := context.WithCancel(context.Background())
		var all sync.WaitGroup
		for id := range uint32(20) {
			all.Go(func() { n.grant(ctx, n.counted(2+id, 60, batch)) })
		}
		time.Sleep(waitqueue.PollEvery + 30*time.Second)
		if got := asked.Load(); got != 1 {
			t.Errorf("asked %d times about the job that runs, want once", got)
		}
		stop()
		all.Wait()
	})
}
