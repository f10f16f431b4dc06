// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/health"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	slurmnode "github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/notify"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/server"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/status"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waitqueue"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// folder holds a folder for each node, in which vgpu-prolog of its slurmd finds the socket.
const folder = cluster.Dir + "/scale"

// node is a real slurmd, and gresd's server with a Slurm client of its own: all of gresd that
// speaks with Slurm. Card and driver are made up.
type node struct {
	name  string
	cfg   config.Config
	steps ownSteps
	quiet bool // it beats only where the test says so

	*server.Server
	records *ledger.Ledger
	stop    func()
}

func nodeName(i int) string { return fmt.Sprintf("s%04d", i+1) }

func newNode(name string, steps *process.Steps, quiet bool) *node {
	n := &node{name: name, quiet: quiet, cfg: config.Default(), stop: func() {}}
	n.steps = ownSteps{steps, n}
	n.cfg.Paths.RunDir, n.cfg.Paths.StateDir = filepath.Join(folder, name, "run"), filepath.Join(folder, name, "state")
	n.cfg.Placement.By = config.PlacementSlurm
	return n
}

// start runs the server until stop.
func (n *node) start(t *testing.T, to io.Writer) {
	t.Helper()
	for _, dir := range []string{n.cfg.Paths.RunDir, n.cfg.Paths.StateDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.NewTextHandler(to, nil)).With("node", n.name)
	grants, err := grant.NewStore(grant.Layout{
		RunDir: n.cfg.Paths.RunDir, Jobs: n.cfg.Paths.Jobs(), Preload: n.cfg.Paths.Preload(), Library: n.cfg.Paths.Library,
	}, log)
	if err != nil {
		t.Fatal(err)
	}
	records, err := ledger.Open(n.cfg.Paths.Ledger())
	if err != nil {
		t.Fatal(err)
	}
	monitor, err := health.Open(health.Params{Path: n.cfg.Paths.StateOfCards()}, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	client := slurm.New(slurm.Options{})
	inForce := config.NewInForce(n.cfg)
	here, err := slurmnode.Open(n.cfg.Paths.StateDir, func(conf string) slurmnode.Slurm { return client.WithConf(conf) }, log)
	if err != nil {
		t.Fatal(err)
	}
	of := cards.Read(oneCard{}, monitor, inForce, log)
	queue, err := waitqueue.Open(inForce, of, here, records, log)
	if err != nil {
		t.Fatal(err)
	}
	notifier := notify.New(inForce, of, here, grants, log)
	manager, keeper, err := server.OpenMPS(&n.cfg, grants, func() {}, log)
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Parts{
		Config: inForce, Steps: n.steps, Ledger: records, Grants: grants, Costs: fixedCost{Context: 500 * gpu.MiB},
		Observer: nobody{}, Node: here, Cards: of, Queue: queue, Outbox: notifier, MPS: manager, Linger: keeper,
		Report: status.New(status.Parts{
			Config: inForce, Cards: of, Node: here, Ledger: records, Grants: grants, InUse: queue.CurrentUse, ByMPS: manager.Serves, Version: "test", Log: log,
		}),
		Log: log, NoBeats: n.quiet,
	}, !records.Existed())
	if err != nil {
		t.Fatal(err)
	}
	monitor.OnChange(s.CardChanged)
	listener, err := wire.Listen(n.cfg.Paths.Socket())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- s.Run(ctx, listener, func() { close(ready) }) }()
	<-ready
	n.Server, n.records = s, records
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("gresd of %s: %v", n.name, err)
		}
		grants.Close()
		_ = records.Close()
	})
}

// ownSteps: all nodes are on one host, so that not every slurmstepd is of a job of this node.
type ownSteps struct {
	*process.Steps
	n *node
}

func (o ownSteps) Jobs() (jobs []uint32) {
	if o.n.Server != nil {
		for _, rec := range o.n.records.List() {
			jobs = append(jobs, rec.JobID)
		}
	}
	return jobs
}

type oneCard struct{}

func (oneCard) Cards() ([]gpu.Card, error) {
	return []gpu.Card{{UUID: "GPU-00000000-0000-0000-0000-000000000000", Name: "Simulated", Type: "sim", Memory: 80 * gpu.GiB, Healthy: true}}, nil
}

func (oneCard) Topology() (topology.Facts, error) { return topology.Facts{}, nil }

type nobody struct{}

func (nobody) Placed(string)                  {}
func (nobody) CardDecided(string)             {}
func (nobody) GrantTook(time.Duration)        {}
func (nobody) ReleaseTook(time.Duration)      {}
func (nobody) Corrected(string)               {}
func (nobody) Reconciled(time.Duration, bool) {}

// slurmds are those of all nodes, in one process group.
type slurmds struct{ all []*exec.Cmd }

func (s *slurmds) start(name, conf string, log *os.File) error {
	cmd := exec.Command("slurmd", "-D", "-N", name, "-f", conf)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.all = append(s.all, cmd)
	return nil
}

func (s *slurmds) stop() {
	for _, cmd := range s.all {
		_ = cmd.Process.Kill()
	}
	for _, cmd := range s.all {
		_ = cmd.Wait()
	}
}

// fixedCost is the cost of a context on each model of card.
type fixedCost probe.Figure

func (f fixedCost) Of(string) probe.Figure { return probe.Figure(f) }

func (fixedCost) Await(context.Context) {}
