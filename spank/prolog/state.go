// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
)

// The state of a job is one word in run_dir/state/JOB. The Prolog writes it, and the tasks of the job
// read it: TaskProlog and the SPANK plugin (spank/plugin/jobstate.c).
const (
	// noShare: the job has no share, also if its environment names one: sbatch inside a job with a
	// share passes the environment on.
	noShare = "no-share"
	// lostShards: slurmctld has started the job without the shards that it asks for, and gresd has not
	// decided yet. The tasks must not run.
	lostShards = "lost"
	// undecided: neither gresd nor slurmctld answered. The SPANK plugin hides the cards from the tasks.
	undecided = "undecided"
)

func (h *Hook) statePath(job string) string { return filepath.Join(h.Config.RunDir, "state", job) }

// state returns the state of a job, or "".
func (h *Hook) state(job string) string {
	text, _ := os.ReadFile(h.statePath(job))
	return strings.TrimSpace(string(text))
}

func (h *Hook) setState(job uint32, state string) error {
	path := h.statePath(strconv.FormatUint(uint64(job), 10))
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = atomicfile.Replace(path, []byte(state+"\n"), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the job's state: %w", err)
	}
	return nil
}

// clearState removes the state of an earlier run of the job.
func (h *Hook) clearState(job uint32) error {
	path := h.statePath(strconv.FormatUint(uint64(job), 10))
	if err := os.Remove(path); err != nil {
		if _, absent := os.Lstat(path); absent == nil { // a read-only file system also fails for an absent file
			return fmt.Errorf("remove the job's state: %w", err)
		}
	}
	return nil
}

// placedByGresd reports whether gresd chooses the cards of this node.
func (h *Hook) placedByGresd() bool { return h.isInRunDir("ask-gresd") }

// mayDropShards reports whether slurmctld can start a job without the shards that it asks for.
func (h *Hook) mayDropShards() bool { return h.isInRunDir("loses-shards") }

func (h *Hook) isInRunDir(name string) bool {
	_, err := os.Stat(filepath.Join(h.Config.RunDir, name))
	return err == nil
}
