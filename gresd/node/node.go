// SPDX-License-Identifier: Apache-2.0

// Package node is this node as Slurm knows it: by which names, and what slurmctld says of its jobs.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

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
