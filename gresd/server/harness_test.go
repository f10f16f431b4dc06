// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/endedjobs"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/health"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/notify"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/status"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waitqueue"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

const nobody = 65534

// fakeCluster is slurmctld in a file, so that a daemon in another process sees
// the same jobs.
type fakeCluster struct {
	path string
}

type clusterState struct {
	Down     bool
	Absent   int                       // so many requeues find no slurmctld
	Deaf     bool                      // a requeue is done and not answered
	Old      bool                      // 22.05
	Serial   bool                      // PrologFlags
	Jobs     map[uint32]slurm.JobFacts // the living ones
	Stepds   []uint32                  // jobs with a process here
	Pending  map[uint32]slurm.JobFacts // those that were requeued
	Broken   map[uint32]string         // jobs whose facts cannot be read
	Asked    map[uint32]slurm.Asked
	Requeued []uint32
	Updates  []string          // of pending jobs
	Told     map[uint32]string // in admin comments
}

var clusterMu sync.Mutex

func (f fakeCluster) load() clusterState {
	state := clusterState{Jobs: map[uint32]slurm.JobFacts{}}
	if text, err := os.ReadFile(f.path); err == nil {
		_ = json.Unmarshal(text, &state)
	}
	return state
}

func (f fakeCluster) change(t testing.TB, change func(*clusterState)) {
	t.Helper()
	clusterMu.Lock()
	defer clusterMu.Unlock()
	state := f.load()
	change(&state)
	if err := f.save(state); err != nil {
		t.Fatal(err)
	}
}

func (f fakeCluster) save(state clusterState) error {
	text, err := json.Marshal(state)
	if err == nil {
		err = os.WriteFile(f.path+".new", text, 0o644)
	}
	if err == nil {
		err = os.Rename(f.path+".new", f.path)
	}
	return err
}

func (f fakeCluster) Job(_ context.Context, id uint32, _ string) (slurm.JobFacts, error) {
	state := f.load()
	facts, known := state.Jobs[id]
	if !known {
		facts, known = state.Pending[id]
	}
	switch {
	case state.Down:
		return slurm.JobFacts{}, slurm.ErrUnavailable
	case state.Broken[id] != "":
		return slurm.JobFacts{}, errors.New(state.Broken[id])
	case !known:
		return slurm.JobFacts{}, slurm.ErrNoJob
	}
	return facts, nil
}

func (f fakeCluster) Brief(ctx context.Context, id uint32, node string) (slurm.JobFacts, error) {
	facts, err := f.Job(ctx, id, node)
	facts.Units, facts.WholeCards, facts.Counted, facts.CountedTypes = nil, nil, 0, nil
	return facts, err
}

// Living: Slurm starts no processes here, but for those that a test names.
func (f fakeCluster) Living(jobs []uint32) map[uint32]bool {
	living := map[uint32]bool{}
	for _, job := range f.load().Stepds {
		living[job] = slices.Contains(jobs, job)
	}
	return living
}

func (f fakeCluster) Jobs() []uint32 { return slices.Collect(maps.Keys(f.load().Jobs)) }

func (f fakeCluster) Requeue(_ context.Context, id uint32) error {
	clusterMu.Lock()
	defer clusterMu.Unlock()
	state := f.load()
	if !state.Jobs[id].Batch {
		return slurm.ErrNotBatch
	}
	if state.Absent > 0 {
		state.Absent--
		_ = f.save(state)
		return slurm.ErrUnavailable
	}
	state.Requeued = append(state.Requeued, id)
	facts := state.Jobs[id]
	facts.State, facts.OnNode = "PENDING", false
	delete(state.Jobs, id)
	if state.Pending == nil {
		state.Pending = map[uint32]slurm.JobFacts{}
	}
	state.Pending[id] = facts
	if err := f.save(state); err != nil || !state.Deaf {
		return err
	}
	return slurm.ErrUnavailable
}

func (f fakeCluster) LosesShards(context.Context) (bool, error) { return f.load().Old, nil }

func (f fakeCluster) Asked(_ context.Context, id uint32) (slurm.Asked, error) {
	state := f.load()
	if state.Down {
		return slurm.Asked{}, slurm.ErrUnavailable
	}
	return state.Asked[id], nil
}

func (f fakeCluster) Explain(_ context.Context, id uint32, line string) error {
	clusterMu.Lock()
	defer clusterMu.Unlock()
	state := f.load()
	if state.Told == nil {
		state.Told = map[uint32]string{}
	}
	state.Told[id] = line
	return f.save(state)
}

func (f fakeCluster) Settings(context.Context) (slurm.Settings, error) {
	state := f.load()
	if state.Down {
		return slurm.Settings{}, slurm.ErrUnavailable
	}
	return slurm.Settings{CredentialLife: 5 * time.Minute, SerialProlog: state.Serial}, nil
}

func (f fakeCluster) Delay(_ context.Context, id uint32, by time.Duration) error {
	if f.load().Down {
		return slurm.ErrUnavailable
	}
	return f.note(fmt.Sprintf("%d later %s", id, by))
}

func (f fakeCluster) Extend(_ context.Context, id uint32, limit time.Duration) error {
	return f.note(fmt.Sprintf("%d limit %s", id, limit.Round(time.Second)))
}

func (f fakeCluster) note(text string) error {
	clusterMu.Lock()
	defer clusterMu.Unlock()
	state := f.load()
	state.Updates = append(state.Updates, text)
	return f.save(state)
}

type fakeInventory struct {
	mu    sync.Mutex
	cards []gpu.Card
	err   error

	topologyErr error
}

func twoCards() *fakeInventory {
	card := func(i int) gpu.Card {
		return gpu.Card{
			UUID: gpu.UUID(fmt.Sprintf("GPU-%036d", i)), Index: i, Minor: i, Name: "NVIDIA H200", Type: "h200",
			Memory: 100 * gpu.GiB, Healthy: true,
		}
	}
	return &fakeInventory{cards: []gpu.Card{card(0), card(1)}}
}

func (f *fakeInventory) Cards() ([]gpu.Card, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.cards), f.err
}

func (f *fakeInventory) Topology() (topology.Facts, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.topologyErr != nil {
		return topology.Facts{}, f.topologyErr
	}
	facts := topology.Facts{}
	for i, c := range f.cards {
		facts.Cards = append(facts.Cards, topology.Card{Index: c.Index, UUID: c.UUID, NUMANode: topology.NoNUMANode, MIG: c.MIG})
		facts.Levels = append(facts.Levels, slices.Repeat([]topology.Level{topology.NODE}, len(f.cards)))
		facts.Levels[i][i] = topology.Unknown
	}
	return facts, nil
}

type counter struct {
	mu     sync.Mutex
	counts map[string]int
	cards  map[string]int // decided, by reason
	took   time.Duration  // the last grant
}

func (c *counter) Placed(r string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[r]++
}

func (c *counter) CardDecided(r string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cards == nil {
		c.cards = map[string]int{}
	}
	c.cards[r]++
}

func (c *counter) GrantTook(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took = d
}
func (c *counter) ReleaseTook(time.Duration)      {}
func (c *counter) Reconciled(time.Duration, bool) {}
func (c *counter) Corrected(kind string)          { c.Placed("corrected " + kind) }

// testNode is a node whose daemon can be stopped and started.
type testNode struct {
	work    func(arbiter.Key) (arbiter.Work, bool) // nil: not known
	past    *endedjobs.Store
	t       testing.TB
	dir     string
	cfg     config.Config
	cluster fakeCluster
	cards   *fakeInventory
	count   *counter

	*Server
	stop func()
}

func newTestNode(t testing.TB, change ...func(*config.Config)) *testNode {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { // other users must reach the socket
			t.Fatal(err)
		}
	}
	n := &testNode{
		t: t, dir: dir, cfg: testConfig(dir), cluster: fakeCluster{filepath.Join(dir, "cluster.json")},
		cards: twoCards(), count: &counter{},
	}
	for _, f := range change {
		f(&n.cfg)
	}
	return n
}

func testConfig(dir string) config.Config {
	cfg := config.Default()
	cfg.Paths.RunDir, cfg.Paths.StateDir = filepath.Join(dir, "run"), filepath.Join(dir, "state")
	return cfg
}

// assemble builds a server over the folders of cfg.
func assemble(cfg config.Config, dir string, cluster fakeCluster, driver cards.Driver, count Observer, log *slog.Logger) (*Server, func(), error) {
	grants, err := grant.NewStore(grant.Layout{
		RunDir: cfg.Paths.RunDir, Jobs: cfg.Paths.Jobs(), Preload: cfg.Paths.Preload(), Library: cfg.Paths.Library,
		SelfDir: filepath.Join(dir, "self"), HostPreload: filepath.Join(dir, "ld.so.preload"),
	}, log)
	if err != nil {
		return nil, nil, err
	}
	records, err := ledger.Open(cfg.Paths.Ledger())
	lost := errors.Is(err, ledger.ErrCorrupt)
	if err != nil && !lost {
		return nil, nil, err
	}
	monitor, err := health.Open(health.Params{Path: cfg.Paths.StateOfCards()}, nil, log)
	if err != nil {
		return nil, nil, err
	}
	inForce := config.NewInForce(cfg)
	here, err := node.Open(cfg.Paths.StateDir, func(string) node.Slurm { return cluster }, log)
	if err != nil {
		return nil, nil, err
	}
	of := cards.Read(driver, monitor, inForce, log)
	queue, err := waitqueue.Open(inForce, of, here, records, log)
	if err != nil {
		return nil, nil, err
	}
	notifier := notify.New(inForce, of, here, grants, log)
	manager, keeper, err := OpenMPS(&cfg, grants, func() {}, log)
	if err != nil {
		return nil, nil, err
	}
	s, err := New(Parts{
		Config: inForce, Steps: cluster, Ledger: records, Grants: grants,
		Costs: fixedCost{Context: 518 * gpu.MiB, Uncounted: 9 * gpu.MiB}, Observer: count,
		Node: here, Cards: of, Queue: queue, Outbox: notifier, MPS: manager, Linger: keeper,
		Report: status.New(status.Parts{
			Config: inForce, Cards: of, Node: here, Ledger: records, Grants: grants, InUse: queue.CurrentUse, ByMPS: manager.Serves,
			Problems: []func() []string{of.Problems}, Private: []func() []string{manager.Problems}, Version: "test", Log: log,
		}),
		Log: log, NoBeats: true,
	}, lost || !records.Existed())
	if err != nil {
		return nil, nil, err
	}
	monitor.OnChange(s.CardChanged)
	s.compareLife = 0 // a test ends a job and looks at once
	return s, func() { grants.Close(); _ = records.Close() }, nil
}

// start runs the daemon until it is ready.
func (n *testNode) start() *testNode {
	n.t.Helper()
	s, cleanup, err := assemble(n.cfg, n.dir, n.cluster, n.cards, n.count, slog.New(slog.DiscardHandler))
	if err != nil {
		n.t.Fatal(err)
	}
	s.report.Work = n.work
	s.report.Past = n.past
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	listener, err := wire.Listen(n.cfg.Paths.Socket())
	if err != nil {
		n.t.Fatal(err)
	}
	go func() { done <- s.Run(ctx, listener, func() { close(ready) }) }()
	n.Server = s
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Errorf("run: %v", err)
		}
		cleanup()
	})
	n.t.Cleanup(n.stop)
	select {
	case <-ready:
	case err := <-done:
		n.t.Fatalf("run: %v", err)
	case <-time.After(20 * time.Second):
		n.t.Fatal("not ready after 20 s")
	}
	return n
}

// reconcileOnce compares with slurmctld.
func (n *testNode) reconcileOnce(ctx context.Context, whom compareScope) error {
	return errors.Join(n.mend(ctx, whom))
}

// allProblems are those that gresd reports to root, or to other users.
func (n *testNode) allProblems(root bool) []string {
	return append(n.report.Status(n.t.Context(), root).Problems, n.problems()...)
}

func (n *testNode) restart() { n.stop(); n.start() }

// job makes a living job with shards of card 0 and returns its Prolog's request.
func (n *testNode) job(id uint32, units gpu.Share, change ...func(*slurm.JobFacts)) wire.Request {
	n.t.Helper()
	facts := slurm.JobFacts{
		JobID: id, UID: nobody, GID: nobody, User: "nobody", Account: "phys", Partition: "main",
		State: "RUNNING", OnNode: true, Units: map[int]gpu.Share{0: units},
	}
	for _, f := range change {
		f(&facts)
	}
	n.cluster.change(n.t, func(s *clusterState) { s.Jobs[id] = facts })
	return wire.Request{
		Op: wire.OpGrant, JobID: id, UID: facts.UID, GID: facts.GID, User: facts.User,
		GPUs: slices.Sorted(mapsKeys(facts.Units)), Node: "n1", Conf: "/etc/slurm/slurm.conf",
	}
}

func mapsKeys(m map[int]gpu.Share) func(func(int) bool) {
	return func(yield func(int) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (n *testNode) end(ids ...uint32) {
	n.t.Helper()
	n.cluster.change(n.t, func(s *clusterState) {
		for _, id := range ids {
			delete(s.Jobs, id)
		}
	})
}

func (n *testNode) ask(req wire.Request) (wire.Reply, error) {
	c := wire.Client{Socket: n.cfg.Paths.Socket(), Timeout: 20 * time.Second}
	return c.Do(context.Background(), req)
}

// want asks over the socket and checks the result.
func (n *testNode) want(req wire.Request, result wire.Result) wire.Reply {
	n.t.Helper()
	rep, err := n.ask(req)
	if err != nil || rep.Result != result {
		n.t.Fatalf("%s of job %d: got %q %q, %v; want %q", req.Op, req.JobID, rep.Result, rep.Message, err, result)
	}
	return rep
}

func (n *testNode) file(job uint32, name string) string {
	return filepath.Join(n.cfg.Paths.Job(job), name)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func inode(t testing.TB, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// monotonic is the clock of heartbeats.
func monotonic(t testing.TB) uint64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return uint64(now.Nano())
}

// fixedCost is the cost of a context on each model of card.
type fixedCost probe.Figure

func (f fixedCost) Of(string) probe.Figure { return probe.Figure(f) }

func (fixedCost) Await(context.Context) {}
