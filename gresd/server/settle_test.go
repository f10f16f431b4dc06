// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waitqueue"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
)

// heldSlurm is a slurmctld that a test holds up. A nil function holds nothing.
type heldSlurm struct {
	fakeCluster
	job     func()
	brief   func()
	requeue func(context.Context) error
}

func (h *heldSlurm) Job(ctx context.Context, id uint32, node string) (slurm.JobFacts, error) {
	facts, err := h.fakeCluster.Job(ctx, id, node)
	if h.job != nil {
		h.job()
	}
	return facts, err
}

func (h *heldSlurm) Brief(ctx context.Context, id uint32, node string) (slurm.JobFacts, error) {
	if h.brief != nil {
		h.brief()
	}
	return h.fakeCluster.Brief(ctx, id, node)
}

func (h *heldSlurm) Requeue(ctx context.Context, id uint32) error {
	if h.requeue != nil {
		return h.requeue(ctx)
	}
	return h.fakeCluster.Requeue(ctx, id)
}

// heldUp is a node whose requests do not come by the socket, with that slurmctld.
func heldUp(t *testing.T, n *testNode) *heldSlurm {
	t.Helper()
	s, cleanup, err := assemble(n.cfg, n.dir, n.cluster, n.cards, n.count, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cleanup)
	h := &heldSlurm{fakeCluster: n.cluster}
	s.node.Slurm = func(string) node.Slurm { return h }
	s.jobLocks.asked = nil
	n.Server = s
	return h
}

// taskOf is what a task asks whose job had no Prolog.
func taskOf(req wire.Request) wire.Request {
	req.Node, req.Conf = "", ""
	return req
}

// second lets a task ask slurmctld, then does something, and returns what the task is told.
func (h *heldSlurm) second(n *testNode, req wire.Request, meanwhile func()) wire.Reply {
	asks, goOn := make(chan struct{}), make(chan struct{})
	h.job = func() { close(asks); <-goOn }
	got := make(chan wire.Reply, 1)
	go func() { got <- n.grant(context.Background(), req) }()
	<-asks
	h.job = nil
	meanwhile()
	close(goOn)
	return <-got
}

// bind returns another name of the grant file that a job has now, as its tasks have one.
func (n *testNode) bind(id uint32) string {
	path := filepath.Join(n.dir, fmt.Sprintf("bound-%d", id))
	if err := os.Link(n.file(id, "grant"), path); err != nil {
		n.t.Fatal(err)
	}
	return path
}

func isRevoked(t *testing.T, path string) bool {
	t.Helper()
	spec, _, err := libvgpu.ReadGrant(path)
	if err != nil {
		t.Fatal(err)
	}
	return spec.Revoked
}

// The tasks of a job without a Prolog ask at once. What the first has bound must not be revoked for
// the second, nor may a refusal of the second take it away.
func TestTasksThatAskAtOnceHaveOneGrant(t *testing.T) {
	n := newTestNode(t)
	h := heldUp(t, n)
	if rep := n.grant(context.Background(), n.job(1, 10)); rep.Result != wire.Granted { // a Prolog has named the node
		t.Fatalf("%+v", rep)
	}
	late := taskOf(n.job(2, 30, func(f *slurm.JobFacts) { f.Restarts = 3 }))
	var first string
	rep := h.second(n, late, func() {
		if rep := n.grant(context.Background(), late); rep.Result != wire.Granted {
			t.Errorf("the first task: %+v", rep)
		}
		first = n.bind(2)
	})
	if rep.Result != wire.Granted || isRevoked(t, first) {
		t.Errorf("the second task: %+v, the grant of the first is revoked: %v", rep, isRevoked(t, first))
	}

	late = taskOf(n.job(3, 50))
	unreadable := func(words string) {
		n.cluster.change(t, func(s *clusterState) { s.Broken = map[uint32]string{3: words} })
	}
	unreadable("no job")
	rep = h.second(n, late, func() {
		unreadable("")
		if rep := n.grant(context.Background(), late); rep.Result != wire.Granted {
			t.Errorf("the first task: %+v", rep)
		}
		first = n.bind(3)
	})
	if rep.Result != wire.Granted || isRevoked(t, first) {
		t.Errorf("the second task, about which slurmctld said nothing: %+v, the grant of the first is revoked: %v", rep, isRevoked(t, first))
	}
}

// A gresd that is stopped while slurmctld takes a job back refuses nobody, nor while an MPS daemon
// starts: the next one is asked.
func TestAStoppedGresdRefusesNobody(t *testing.T) {
	n := newTestNode(t, func(c *config.Config) { c.Placement.By = config.PlacementGresd })
	h := heldUp(t, n)
	if rep := n.grant(context.Background(), n.counted(1, 200)); rep.Result != wire.Granted {
		t.Fatalf("%+v", rep)
	}
	ctx, stop := context.WithCancel(context.Background())
	h.requeue = func(context.Context) error {
		stop()
		return slurm.ErrUnavailable
	}
	rep := n.settle(ctx, sendBack(n.counted(2, 60, batch), slurm.JobFacts{JobID: 2, Batch: true}, waitqueue.ErrStopping))
	if _, known := n.ledger.Get(2); rep.Kind != wire.KindBusy || known || exists(n.cfg.Paths.Job(2)) {
		t.Errorf("%+v, a record: %v; want no answer yet", rep, known)
	}
}

func TestAStoppedGresdRefusesNobodyWhoWaitsForMPS(t *testing.T) {
	n, programs := newMPSNode(t)
	if err := fake.Behave(programs, fake.Mute); err != nil {
		t.Fatal(err)
	}
	heldUp(t, n)
	t.Cleanup(n.mps.Close)
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if rep := n.grant(ctx, n.withMPS(1, 30)); rep.Kind != wire.KindBusy || !exists(n.file(1, "grant")) {
		t.Errorf("%+v; want no answer yet, and a grant for the next gresd", rep)
	}
}

// The mark of a job that starts while others are asked about stays, whatever its time says.
func TestAMarkThatComesMeanwhileStays(t *testing.T) {
	n := newTestNode(t)
	h := heldUp(t, n)
	mark := func(id uint32) string { return filepath.Join(n.cfg.Paths.JobStates(), fmt.Sprint(id)) }
	put := func(id uint32) {
		long := time.Now().Add(-time.Hour)
		if err := errors.Join(os.MkdirAll(n.cfg.Paths.JobStates(), 0o755), os.WriteFile(mark(id), nil, 0o644), os.Chtimes(mark(id), long, long)); err != nil {
			t.Error(err)
		}
	}
	if rep := n.grant(context.Background(), n.job(1, 10)); rep.Result != wire.Granted { // a Prolog has named the node
		t.Fatalf("%+v", rep)
	}
	put(8) // its Epilog was lost
	h.brief = func() { put(9) }
	if err := n.Reconcile(context.Background()); err != nil {
		t.Fatal(err)
	}
	if exists(mark(8)) || !exists(mark(9)) {
		t.Errorf("the mark of job 8 is there: %v, of job 9: %v", exists(mark(8)), exists(mark(9)))
	}
}

// gresd was suspended: it serves the Epilog of a run after the Prolog of the next one. Their
// connections keep their order.
func TestALateEpilogLeavesTheNextRunItsShare(t *testing.T) {
	simulate(t, func(*config.Config) {}, func(n *testNode, _ *scheduler) {
		n.ready = make(chan struct{})
		close(n.ready)
		for _, c := range []struct {
			op      wire.Op
			order   uint64
			restart uint32
			want    wire.Result
			records int
		}{
			{wire.OpGrant, 1, 0, wire.Granted, 1},
			{wire.OpGrant, 3, 1, wire.Granted, 1},
			{wire.OpRelease, 2, 1, wire.None, 1}, // the Epilog of the first run has the number of the next
			{wire.OpRelease, 4, 1, wire.Released, 0},
			{wire.OpRelease, 5, 1, wire.None, 0},
		} {
			req := n.counted(1, 50, batch)
			req.Op, req.Order, req.Restart = c.op, c.order, c.restart
			if rep := n.dispatch(context.Background(), req, wire.Cred{}); rep.Result != c.want || n.ledger.Len() != c.records {
				t.Errorf("%s of connection %d: %+v, %d records; want %s, %d", c.op, c.order, rep, n.ledger.Len(), c.want, c.records)
			}
		}
		if len(n.deciding.latest) != 0 {
			t.Errorf("left %v", n.deciding.latest)
		}
	})
}

// An Epilog that a gresd which starts has kept waiting is over, and its job may have come back since.
func TestAnEpilogOfLongAgoReleasesNothing(t *testing.T) {
	simulate(t, func(*config.Config) {}, func(n *testNode, _ *scheduler) {
		n.want2(t, 1, 50, wire.Granted)
		n.ready = make(chan struct{})
		got := make(chan wire.Reply, 1)
		go func() {
			got <- n.dispatch(context.Background(), wire.Request{Op: wire.OpRelease, JobID: 1}, wire.Cred{})
		}()
		time.Sleep(10 * time.Second)
		close(n.ready)
		if rep := <-got; rep.Kind != wire.KindBusy || n.ledger.Len() != 1 {
			t.Errorf("%+v, %d records", rep, n.ledger.Len())
		}
	})
}
