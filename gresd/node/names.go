// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
)

// Names are Slurm's names of this node, learned from Prologs, each with the
// slurm.conf that its slurmd uses. A host may run several slurmd. They are
// kept on the disk: after a restart gresd must not ask slurmctld about a node
// of another name, for which no job lives.
//
// All are of one cluster. Records and folders of jobs are known by the number of the job, which
// another cluster gives as well.
type Names struct {
	path string

	mu      sync.Mutex
	cluster string            // ClusterName; "": not known yet
	conf    map[string]string // by name
	at      int               // grants of the cluster that are being made
}

// nodesFile is what is on the disk. Before there was a cluster in it, it was Nodes alone.
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

// Enter begins a grant to a job of a node, which is remembered; Leave ends it. ours is false where
// the node is of another cluster than the jobs that have shares here; held says that there are
// some. A name is on the disk before a job of that node is.
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
	// Who asks late may not know the path.
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

// IsForeign says whether a cluster is not the one whose jobs are here.
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

// put replaces what is known, on the disk first. n.mu is held.
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
