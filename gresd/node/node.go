// SPDX-License-Identifier: Apache-2.0

// Package node is this node as Slurm knows it: by which names, and what slurmctld says of its jobs.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/health"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// Slurm has the questions and commands of gresd to slurmctld.
type Slurm interface {
	Job(ctx context.Context, jobID uint32, node string) (slurm.JobFacts, error)
	Brief(ctx context.Context, jobID uint32, node string) (slurm.JobFacts, error)
	Asked(ctx context.Context, jobID uint32) (slurm.Asked, error)
	LosesShards(ctx context.Context) (bool, error)
	Settings(ctx context.Context) (slurm.Settings, error)

	Requeue(ctx context.Context, jobID uint32) error
	Delay(ctx context.Context, jobID uint32, by time.Duration) error
	Extend(ctx context.Context, jobID uint32, limit time.Duration) error
	Notify(ctx context.Context, jobID uint32, message string) error
	Explain(ctx context.Context, jobID uint32, message string) error
	health.Nodes
}

// ErrNoName is for questions about jobs before the first Prolog.
var ErrNoName = errors.New("no Prolog has yet said how Slurm names this node")

// settingsLife is how long slurm.conf is taken to be as it was.
const settingsLife = 10 * time.Minute

// Node is this node. Make it with [Open].
type Node struct {
	*Names
	// Slurm returns a client for a slurm.conf.
	Slurm func(conf string) Slurm
	log   *slog.Logger

	namesDue time.Time // when slurmctld is asked again by which names it knows this node

	mu       sync.Mutex
	settings map[string]knownSettings // by slurm.conf
}

type knownSettings struct {
	settings slurm.Settings
	at       time.Time
}

// Open returns the node by the names that an earlier gresd has learned.
func Open(stateDir string, client func(conf string) Slurm, log *slog.Logger) (*Node, error) {
	names, err := LoadNames(stateDir)
	if err != nil {
		return nil, err
	}
	return &Node{Names: names, Slurm: client, log: log, settings: map[string]knownSettings{}}, nil
}

// Settings are those of a slurm.conf, asked for now and then.
func (n *Node) Settings(ctx context.Context, conf string) (slurm.Settings, error) {
	n.mu.Lock()
	known := n.settings[conf]
	n.mu.Unlock()
	if !known.at.IsZero() && time.Since(known.at) < settingsLife {
		return known.settings, nil
	}
	got, err := n.Slurm(conf).Settings(ctx)
	if err != nil {
		return got, fmt.Errorf("read slurm.conf: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.settings[conf] = knownSettings{got, time.Now()}
	return got, nil
}

// ForgetNames forgets names of this node that Slurm does not know any more, but for the last one.
// Only where there are several is slurmctld asked.
func (n *Node) ForgetNames(ctx context.Context) error {
	known := n.All()
	if len(known) < 2 || time.Now().Before(n.namesDue) {
		return nil
	}
	var gone []string
	for node, conf := range known {
		_, err := n.Slurm(conf).Node(ctx, node)
		switch {
		case errors.Is(err, slurm.ErrNoNode):
			gone = append(gone, node)
		case err != nil:
			return fmt.Errorf("ask about node %s: %w", node, err)
		}
	}
	n.namesDue = time.Now().Add(Around(Seldom))
	if len(gone) == 0 {
		return nil
	}
	n.log.Info("Slurm does not know this node by that name any more", "node", strings.Join(gone, ","))
	return n.forget(gone)
}

// Lives says by Slurm's short answer that a job holds resources of this node, under one of its
// names. Errors are those of [Node.Facts].
func (n *Node) Lives(ctx context.Context, jobID uint32) (slurm.JobFacts, error) {
	return n.queryNames(ctx, jobID, Slurm.Brief, slurm.JobFacts.Lives)
}

// Facts are those of a job that is on this node, under one of its names. Errors: slurm.ErrNoJob
// where all that were asked know of none, else why one could not say.
func (n *Node) Facts(ctx context.Context, jobID uint32) (slurm.JobFacts, error) {
	return n.queryNames(ctx, jobID, Slurm.Job, func(f slurm.JobFacts) bool { return f.OnNode })
}

// queryNames asks about a job by each name of this node, for facts that are accepted.
func (n *Node) queryNames(ctx context.Context, jobID uint32,
	query func(client Slurm, ctx context.Context, jobID uint32, node string) (slurm.JobFacts, error), accept func(slurm.JobFacts) bool,
) (slurm.JobFacts, error) {
	names := n.All()
	if len(names) == 0 {
		return slurm.JobFacts{}, ErrNoName
	}
	none := slurm.ErrNoJob
	for node, conf := range names {
		facts, err := query(n.Slurm(conf), ctx, jobID, node)
		switch {
		case err == nil && accept(facts):
			return facts, nil
		case err != nil && !errors.Is(err, slurm.ErrNoJob):
			none = err
		}
	}
	return slurm.JobFacts{}, none
}

// IsGone says that a job that waits will not come to this node any more, for all that slurmctld
// knows. Errors: slurm.ErrSilent.
func (n *Node) IsGone(ctx context.Context, jobID uint32) (bool, error) {
	for node, conf := range n.All() {
		facts, err := n.Slurm(conf).Brief(ctx, jobID, node)
		switch {
		case errors.Is(err, slurm.ErrNoJob):
		case errors.Is(err, slurm.ErrSilent):
			return false, err
		case err != nil, facts.OnNode, facts.State == "PENDING", facts.State == "REQUEUED", facts.State == slurm.Completing:
			return false, nil
		}
	}
	return true, nil
}

// UntilAnswered asks slurmctld, which may be starting, until it answers or the time is up: less and
// less often, for many nodes may wait for it. Commands that are not there do not come by waiting.
func UntilAnswered(ctx context.Context, ask func() error) error {
	for wait := 500 * time.Millisecond; ; wait = min(2*wait, 8*time.Second) {
		err := ask()
		if !errors.Is(err, slurm.ErrUnavailable) || errors.Is(err, slurm.ErrNoCommand) {
			return err
		}
		if !wakeup.Wait(ctx, Around(wait)) {
			return err
		}
	}
}

// Names are Slurm's names of this node, learned from Prologs, each with the slurm.conf that its
// slurmd uses. A host may run several slurmd. The names are kept on the disk: a restarted gresd
// must not ask slurmctld with a wrong node name, because it would find no live job.
//
// All nodes are of one cluster. Records and folders have the number of the job, and another cluster
// gives the same numbers.
type Names struct {
	path string

	mu      sync.Mutex
	cluster string            // ClusterName; "": not known yet
	conf    map[string]string // by name
	at      int               // grants of the cluster that are being made
}

// nodesFile is the content of the file. Before there was a cluster in it, it was Nodes alone.
type nodesFile struct {
	Cluster string            `json:"cluster"`
	Nodes   map[string]string `json:"nodes"`
}

// LoadNames reads what an earlier gresd has learned.
func LoadNames(stateDir string) (*Names, error) {
	n := &Names{path: filepath.Join(stateDir, "nodes.json"), conf: map[string]string{}}
	text, err := os.ReadFile(n.path)
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read node names: %w", err)
	}
	var file nodesFile
	if err := json.Unmarshal(text, &file); err == nil && file.Nodes != nil {
		n.cluster, n.conf = file.Cluster, file.Nodes
	} else if err := json.Unmarshal(text, &n.conf); err != nil || n.conf == nil {
		n.conf = map[string]string{} // the next Prolog says it again
	}
	return n, nil
}

// Enter begins a grant to a job of a node, and remembers the node; Leave ends it. If jobs of
// another cluster than the node's have shares here, ours is false. The function held reports
// whether such jobs exist. A name is on the disk before a job of that node is.
func (n *Names) Enter(name, conf, cluster string, held func() bool) (ours bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	foreign := cluster != "" && n.cluster != "" && cluster != n.cluster
	if foreign && (name == "" || n.at > 0 || held()) {
		return false, nil
	}
	next := nodesFile{n.cluster, n.conf}
	if cluster != "" {
		next.Cluster = cluster
	}
	if foreign {
		next.Nodes = map[string]string{}
	}
	// A late caller may not know the path.
	if old, known := next.Nodes[name]; name != "" && (!known || old != conf && conf != "") {
		next.Nodes = maps.Clone(next.Nodes)
		next.Nodes[name] = conf
	}
	if err := n.put(next); err != nil {
		return true, err
	}
	n.at++
	return true, nil
}

// Leave ends what Enter began.
func (n *Names) Leave() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at--
}

// IsForeign reports whether the jobs here are of a different cluster.
func (n *Names) IsForeign(cluster string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return cluster != "" && n.cluster != "" && cluster != n.cluster
}

// Cluster is the name of the cluster, "" if not known.
func (n *Names) Cluster() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cluster
}

// forget drops names that Slurm does not know any more. The last one stays: its slurm.conf is all
// that is known of Slurm until the next Prolog.
func (n *Names) forget(names []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	next := nodesFile{n.cluster, maps.Clone(n.conf)}
	maps.DeleteFunc(next.Nodes, func(name, _ string) bool { return slices.Contains(names, name) })
	if len(next.Nodes) == 0 {
		return nil
	}
	return n.put(next)
}

// put replaces the names, on the disk first. Call it with n.mu locked.
func (n *Names) put(next nodesFile) error {
	if next.Cluster == n.cluster && maps.Equal(next.Nodes, n.conf) {
		return nil
	}
	if err := atomicfile.WriteJSON(n.path, next); err != nil {
		return fmt.Errorf("remember node name: %w", err)
	}
	n.cluster, n.conf = next.Cluster, next.Nodes
	return nil
}

// All are the names, each with its slurm.conf.
func (n *Names) All() map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.conf)
}

// List are the names, in order.
func (n *Names) List() []string { return slices.Sorted(maps.Keys(n.All())) }

// A cluster may have thousands of nodes with a gresd and one slurmctld. So gresd asks slurmctld
// about single jobs, never for a list of all jobs. It asks only about jobs without a sign of life
// on this host. It asks less often the longer the answer stays the same. The nodes do not ask in
// step.

const (
	// Often is the time between two comparisons with slurmctld, on average.
	Often = time.Minute
	// Seldom is the longest time between two questions about a job that has no slurmstepd here.
	Seldom = 16 * time.Minute
)

// Around is a random time between three and five quarters of d.
func Around(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2) }

// Pace spreads the questions about jobs: the wait for the next one about a job doubles, from Often
// up to Seldom. The zero value is ready.
type Pace struct {
	mu    sync.Mutex
	byJob map[uint32]turn
}

type turn struct {
	due  time.Time
	wait time.Duration
}

// IsDue reports whether gresd may ask slurmctld about a job.
func (p *Pace) IsDue(job uint32, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !now.Before(p.byJob[job].due)
}

// Answered is called when a question about the job has been answered.
func (p *Pace) Answered(job uint32, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byJob == nil {
		p.byJob = map[uint32]turn{}
	}
	wait := min(max(Often, 2*p.byJob[job].wait), Seldom)
	p.byJob[job] = turn{now.Add(Around(wait)), wait}
}

// Keep forgets all other jobs.
func (p *Pace) Keep(jobs []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.byJob, func(job uint32, _ turn) bool { return !slices.Contains(jobs, job) })
}
