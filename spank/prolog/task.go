// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// grantMagic is VGPU_GRANT_MAGIC of libvgpu/region.h, which this package cannot
// include: it is built without cgo. A test compares the two.
const grantMagic = 0x544e415247555056

// taskProlog runs as the user. Slurm reads its standard output: "export" lines
// set the task's environment, "print" lines go to the user. Where the SPANK
// plugin has been at work the task sees its grant already, and nothing is
// printed.
func (h *Hook) taskProlog() int {
	if isGrant(h.selfGrant) {
		return ExitOK
	}
	job, dir := h.jobDir()
	if job == "" {
		return ExitOK
	}
	if line, refused := refusal(filepath.Join(dir, "refused")); refused {
		return h.stop(line)
	}
	grant := filepath.Join(dir, "grant")
	if !isGrant(grant) {
		if shards, _ := strconv.Atoi(h.Getenv("SLURM_SHARDS_ON_NODE")); shards > 0 && h.state(job) != noShare {
			return h.stop(fmt.Sprintf("vgpu: task: job %s: %d shards, but no grant on this node: "+
				"is Prolog=vgpu-prolog in slurm.conf, and gresd well (vgpuctl status)?", job, shards))
		}
		if h.state(job) == lostShards {
			return h.stop(fmt.Sprintf("vgpu: task: job %s: slurmctld has started it without the shards that it asks for, "+
				"and gresd does not answer: submit it again", job))
		}
		if names := h.wholeNames(); names != "" {
			fmt.Fprintf(h.Stdout, "export CUDA_VISIBLE_DEVICES=%s\n", names)
		} else if h.mayDropShards() && h.state(job) != noShare && h.isWithoutCards() {
			fmt.Fprintf(h.Stdout, "export CUDA_VISIBLE_DEVICES=%s\n", noCard)
		}
		return ExitOK
	}
	fmt.Fprintf(h.Stdout, "export LD_PRELOAD=%s\n", h.preload())
	fmt.Fprintf(h.Stdout, "export VGPU_GRANT=%s\n", grant)
	fmt.Fprintf(h.Stdout, "export VGPU_CACHE=%s\n", filepath.Join(dir, "cache"))
	for _, line := range environment(filepath.Join(dir, "environment"), h.tasks()) {
		fmt.Fprintf(h.Stdout, "export %s\n", line)
	}
	if h.isWithoutCards() {
		fmt.Fprintf(h.Stdout, "export CUDA_VISIBLE_DEVICES=%s\n", noCard)
	}
	return ExitOK
}

// wholeNames are the whole cards of a step by their UUIDs, on a node where some cards are MIG
// instances: there gresd names all cards in a file. "": what Slurm says stays. The SPANK plugin
// does the same (whole.c).
func (h *Hook) wholeNames() string {
	text, err := os.ReadFile(filepath.Join(h.Config.RunDir, "cards"))
	if err != nil {
		return ""
	}
	names := map[string]string{}
	for line := range strings.Lines(string(text)) {
		index, uuid, _ := strings.Cut(strings.TrimSpace(line), " ")
		names[index] = uuid
	}
	indexes := strings.Split(cmp.Or(h.Getenv("SLURM_STEP_GPUS"), h.Getenv("SLURM_JOB_GPUS")), ",")
	visible := strings.Split(h.Getenv("CUDA_VISIBLE_DEVICES"), ",")
	if _, err := strconv.Atoi(visible[0]); err != nil || len(visible) != len(indexes) {
		return ""
	}
	for i, index := range indexes {
		if indexes[i] = names[index]; indexes[i] == "" {
			return ""
		}
	}
	return strings.Join(indexes, ",")
}

// noCard is Slurm's own word for it; what the SPANK plugin sets, too.
const noCard = "NoDevFiles"

// isWithoutCards says that Slurm gave the step neither cards nor shards, as with
// --gres=none: with no word at all CUDA would show it every card of the node.
// Where gresd chooses the cards, nothing tells such a step.
func (h *Hook) isWithoutCards() bool {
	for _, name := range []string{"SLURM_SHARDS_ON_NODE", "SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES"} {
		if h.Getenv(name) != "" {
			return false
		}
	}
	return !h.placedByGresd()
}

// hetIDs are the variables of the ids of a het job's components. srun that makes such a job itself
// sets the old name alone (seen on 22.05); sbatch and salloc set both.
var hetIDs = []string{"SLURM_JOB_ID_HET_GROUP_%d", "SLURM_JOB_ID_PACK_GROUP_%d"}

// jobDir finds the job's directory. All components of a het job run under the
// id of the first; the directory has the id of the component on this node.
func (h *Hook) jobDir() (job, dir string) {
	ids := []string{h.Getenv("SLURM_JOB_ID")}
	if size, _ := strconv.Atoi(h.Getenv("SLURM_HET_SIZE")); size > 0 {
		for i := range min(size, 128) {
			for _, name := range hetIDs {
				ids = append(ids, h.Getenv(fmt.Sprintf(name, i)))
			}
		}
	}
	for _, id := range ids {
		if _, err := strconv.ParseUint(id, 10, 32); err != nil {
			continue // the user's own environment: never a path
		}
		path := filepath.Join(h.Config.RunDir, "jobs", id)
		if _, err := os.Stat(path); err == nil {
			return id, path
		}
		if job == "" {
			job, dir = id, path
		}
	}
	return job, dir
}

// environment returns the variables that gresd wants each of so many tasks to have.
func environment(path string, tasks int) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i, line := range lines {
		lines[i] = wire.ForTask(line, tasks)
	}
	return lines
}

// tasks is how many tasks of the step run on this node, as Slurm lists them for its
// nodes: 4(x2),3. A batch script is one.
func (h *Hook) tasks() int {
	node, err := strconv.Atoi(h.Getenv("SLURM_NODEID"))
	if err != nil {
		return 1
	}
	for part := range strings.SplitSeq(h.Getenv("SLURM_STEP_TASKS_PER_NODE"), ",") {
		count, times, _ := strings.Cut(strings.TrimSuffix(part, ")"), "(x")
		tasks, err := strconv.Atoi(count)
		if err != nil {
			return 1
		}
		nodes, err := strconv.Atoi(times)
		if err != nil {
			nodes = 1
		}
		if node < nodes {
			return tasks
		}
		node -= nodes
	}
	return 1
}

// stop fails the task; the node stays as it is.
func (h *Hook) stop(line string) int {
	fmt.Fprintf(h.Stdout, "print %s\n", line)
	fmt.Fprintln(h.Stderr, line)
	return ExitFault
}

// preload puts the library first and keeps what the user has there.
func (h *Hook) preload() string {
	own := h.Getenv("LD_PRELOAD")
	if own == "" {
		return h.Config.Library
	}
	words := strings.FieldsFunc(own, func(r rune) bool { return r == ':' || r == ' ' })
	if slices.Contains(words, h.Config.Library) {
		return own
	}
	return h.Config.Library + ":" + own
}

func isGrant(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	var magic [8]byte
	if _, err := io.ReadFull(file, magic[:]); err != nil {
		return false
	}
	return binary.LittleEndian.Uint64(magic[:]) == grantMagic
}

// refusal returns gresd's line, if it has refused the job.
func refusal(path string) (line string, refused bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", false
	}
	line, _, _ = strings.Cut(string(text), "\n")
	return line, true
}
