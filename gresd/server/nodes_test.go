// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// named is a slurmctld that knows nodes of those names only.
type named struct {
	node.Slurm
	names []string
}

func (c named) Node(ctx context.Context, node string) (slurm.NodeFacts, error) {
	if !slices.Contains(c.names, node) {
		return slurm.NodeFacts{}, fmt.Errorf("scontrol: %w: Node %s not found", slurm.ErrNoNode, node)
	}
	return c.Slurm.Node(ctx, node)
}

func (n *testNode) knowsOnly(names ...string) {
	ask := n.node.Slurm
	n.node.Slurm = func(conf string) node.Slurm { return named{ask(conf), names} }
}

// A node that was renamed: what its jobs left is cleaned up, whether or not a Prolog has told
// the new name yet, and the old name is forgotten when there is another.
func TestANodeThatWasRenamed(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	n.want(n.job(8, 30), wire.Granted)
	n.want(n.job(9, 30), wire.Granted)
	n.knowsOnly("n2")
	n.end(7) // and its Epilog was lost
	n.cluster.change(t, func(s *clusterState) {
		facts := s.Jobs[9]
		facts.State = "COMPLETED"
		s.Jobs[9] = facts
	})
	for range 2 {
		if err := errors.Join(n.Reconcile(t.Context()), n.node.ForgetNames(t.Context())); err != nil {
			t.Fatal(err)
		}
		if held := records(n); !slices.Equal(held, []uint32{8}) {
			t.Fatalf("records of jobs %v, want that of 8 alone", held)
		}
	}
	if names := n.node.List(); !slices.Equal(names, []string{"n1"}) {
		t.Errorf("names are %q: want the only one kept", names)
	}
	next := n.job(10, 30)
	next.Node = "n2"
	n.want(next, wire.Granted)
	if err := errors.Join(n.Reconcile(t.Context()), n.node.ForgetNames(t.Context())); err != nil {
		t.Fatal(err)
	}
	if names := n.node.List(); !slices.Equal(names, []string{"n2"}) || !slices.Equal(records(n), []uint32{8, 10}) {
		t.Errorf("names are %q, records %v", names, records(n))
	}
	if again, err := node.LoadNames(n.cfg.Paths.StateDir); err != nil || !slices.Equal(again.List(), []string{"n2"}) {
		t.Errorf("after a restart %q, %v", again.List(), err)
	}
	// Nothing counts as ended where slurmctld cannot be asked for the job.
	n.node.Slurm = func(string) node.Slurm { return deaf{n.cluster} }
	n.end(8)
	if err := n.Reconcile(t.Context()); !errors.Is(err, slurm.ErrUnavailable) || len(records(n)) != 2 {
		t.Errorf("%v, records %v", err, records(n))
	}
}

// deaf tells nothing of a job.
type deaf struct{ fakeCluster }

func (d deaf) Brief(context.Context, uint32, string) (slurm.JobFacts, error) {
	return slurm.JobFacts{}, slurm.ErrUnavailable
}

func records(n *testNode) []uint32 {
	var ids []uint32
	for _, rec := range n.ledger.List() {
		ids = append(ids, rec.JobID)
	}
	slices.Sort(ids)
	return ids
}

func TestFailedComparisonsAreAProblem(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	shown := func() bool {
		return slices.ContainsFunc(n.allProblems(false), func(p string) bool { return strings.Contains(p, "could not be compared") })
	}
	n.cluster.change(t, func(s *clusterState) { s.Down = true })
	for i := range manyFailed {
		if shown() {
			t.Errorf("a problem after %d", i)
		}
		n.reconcile(t.Context(), all)
	}
	if !shown() {
		t.Errorf("no problem after %d: %q", manyFailed, n.allProblems(false))
	}
	n.cluster.change(t, func(s *clusterState) { s.Down = false })
	if n.reconcile(t.Context(), all); shown() {
		t.Error("a problem after one that was done")
	}
}

// A folder that cannot be read is no fault of slurmctld.
func TestAFailedSweepIsAnotherProblemThanSlurmctld(t *testing.T) {
	n := newTestNode(t).start()
	n.want(n.job(7, 30), wire.Granted)
	if err := os.Rename(n.cfg.Paths.Jobs(), n.cfg.Paths.Jobs()+".away"); err != nil {
		t.Fatal(err)
	}
	for range manyFailed {
		n.reconcile(t.Context(), all)
	}
	problems := strings.Join(n.allProblems(false), "\n")
	if !strings.Contains(problems, "df on run_dir") || strings.Contains(problems, "scontrol ping") {
		t.Errorf("problems %q", problems)
	}
	if err := os.Rename(n.cfg.Paths.Jobs()+".away", n.cfg.Paths.Jobs()); err != nil {
		t.Fatal(err)
	}
	if n.reconcile(t.Context(), all); len(n.allProblems(false)) != 0 {
		t.Error("a problem after one that was done")
	}
}

// Two clusters give the same numbers to their jobs, and may give a host the same name: the second
// changes nothing of the first, and has its turn when nothing of that is left.
func TestASecondClusterWaits(t *testing.T) {
	n := newTestNode(t).start()
	other := fakeCluster{filepath.Join(n.dir, "other.json")}
	ask := n.node.Slurm
	n.node.Slurm = func(conf string) node.Slurm {
		if conf == "/other/slurm.conf" {
			return other
		}
		return ask(conf)
	}
	of := func(cluster string, req wire.Request) wire.Request {
		req.Cluster = cluster
		if cluster == "b" {
			req.Conf = "/other/slurm.conf"
		}
		return req
	}
	n.want(of("a", n.job(7, 30)), wire.Granted)
	before := inode(t, n.file(7, "grant"))

	share, single, whole := n.job(7, 60, batch), n.job(8, 60), n.job(9, 0, func(f *slurm.JobFacts) { f.Units, f.WholeCards = nil, []int{0} })
	whole.GPUs = []int{0}
	theirs := n.cluster.load()
	mine := theirs.Jobs[7]
	mine.Batch = false
	other.change(t, func(s *clusterState) { *s = theirs })
	n.cluster.change(t, func(s *clusterState) {
		s.Jobs[7] = mine
		delete(s.Jobs, 8)
		delete(s.Jobs, 9)
	})
	if rep := n.want(of("b", share), wire.Requeued); !strings.Contains(rep.Message, "jobs of cluster a have shares") {
		t.Errorf("told %q", rep.Message)
	}
	if words := other.load().Told[7]; !strings.Contains(words, "jobs of cluster a have shares") || len(n.cluster.load().Told) != 0 {
		t.Errorf("in Slurm %q, in the first cluster %v", words, n.cluster.load().Told)
	}
	if rep, err := n.ask(of("b", single)); err == nil || rep.Kind != wire.KindUser || !strings.Contains(err.Error(), "one cluster at a time") {
		t.Errorf("a job of srun: %+v, %v", rep, err)
	}
	n.want(of("b", whole), wire.None)
	n.want(of("b", wire.Request{Op: wire.OpGrant, JobID: 10, Node: "n1"}), wire.None)
	n.want(of("b", wire.Request{Op: wire.OpRelease, JobID: 7}), wire.None)
	if err := n.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if inode(t, n.file(7, "grant")) != before || n.node.All()["n1"] != "/etc/slurm/slurm.conf" {
		t.Errorf("the first cluster's job has another grant, or its node another slurm.conf: %v", n.node.All())
	}

	n.want(of("a", wire.Request{Op: wire.OpRelease, JobID: 7}), wire.Released)
	other.change(t, func(s *clusterState) { s.Jobs[7] = s.Pending[7]; delete(s.Pending, 7) })
	n.want(of("b", share), wire.Granted)
	n.restart()
	if n.node.Cluster() != "b" || n.node.All()["n1"] != "/other/slurm.conf" {
		t.Errorf("the node is of %q: %v", n.node.Cluster(), n.node.All())
	}
}

// missing is a Slurm whose commands are not there.
type missing struct{ node.Slurm }

func (missing) Job(context.Context, uint32, string) (slurm.JobFacts, error) {
	return slurm.JobFacts{}, fmt.Errorf("scontrol: %w: %w", slurm.ErrUnavailable, slurm.ErrNoCommand)
}

// Who waits for commands that are not there waits for ever: the client here gives up after 20 s.
func TestWithoutSlurmsCommandsNobodyWaits(t *testing.T) {
	n := newTestNode(t).start()
	ask := n.node.Slurm
	n.node.Slurm = func(conf string) node.Slurm { return missing{ask(conf)} }
	rep, err := n.ask(n.job(7, 30))
	if err == nil || rep.Kind != wire.KindBusy {
		t.Errorf("%+v, %v", rep, err)
	}
}
