// SPDX-License-Identifier: Apache-2.0

package server

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

	"github.com/slurm-vgpu/slurm-vgpu/gresd/durable"
)

// nodes are Slurm's names of this node, learned from Prologs, each with the
// slurm.conf that its slurmd uses. A host may run several slurmd. They are
// kept on the disk: after a restart gresd must not ask slurmctld about a node
// of another name, for which no job lives.
type nodes struct {
	path string

	mu   sync.Mutex
	conf map[string]string // by name
}

func loadNodes(stateDir string) (*nodes, error) {
	n := &nodes{path: filepath.Join(stateDir, "nodes.json"), conf: map[string]string{}}
	text, err := os.ReadFile(n.path)
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read node names: %w", err)
	}
	if err := json.Unmarshal(text, &n.conf); err != nil || n.conf == nil {
		n.conf = map[string]string{} // the next Prolog says it again
	}
	return n, nil
}

// learn remembers a name. It is on the disk before a job of that node is.
func (n *nodes) learn(name, conf string) error {
	if name == "" {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	// Who asks late may not know the path.
	if old, known := n.conf[name]; known && (old == conf || conf == "") {
		return nil
	}
	next := maps.Clone(n.conf)
	next[name] = conf
	text, err := json.Marshal(next)
	if err == nil {
		err = durable.WriteFile(n.path, append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("remember node name: %w", err)
	}
	n.conf = next
	return nil
}

func (n *nodes) all() map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.conf)
}

func (n *nodes) names() []string { return slices.Sorted(maps.Keys(n.all())) }
