// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"fmt"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// Asked is what a job asks for, as slurmctld keeps it; "" for nothing. A user writes
// no free text there, while what scontrol prints of it can be imitated.
type Asked struct {
	PerNode string // "gres:shard:30", "gres/shard:30"
	PerTask string
}

// askedFormat has columns that are wide enough for any value, and no value has a blank.
const askedFormat = "JobID:16,tres-per-node:8192,tres-per-task:8192"

// Asked returns what a job asks for. Errors: ErrNoJob, ErrUnavailable.
func (c *Client) Asked(ctx context.Context, jobID uint32) (Asked, error) {
	text, err := c.run(ctx, "squeue", "--local", "-a", "-t", "all", "-h", "-j", id(jobID), "-O", askedFormat)
	if err != nil {
		return Asked{}, err
	}
	return parseAsked(text, jobID)
}

// parseAsked reads squeue's lines: the number of an array stands for all of its tasks.
func parseAsked(text string, jobID uint32) (Asked, error) {
	for line := range strings.Lines(text) {
		switch words := strings.Fields(line); {
		case len(words) == 0 || words[0] != id(jobID):
		case len(words) != 3:
			return Asked{}, fmt.Errorf("squeue printed %q, want a job and what it asks for: %w", clip(line), ErrUnavailable)
		default:
			return Asked{PerNode: null(words[1]), PerTask: null(words[2])}, nil
		}
	}
	return Asked{}, fmt.Errorf("squeue: job %d: %w", jobID, ErrNoJob)
}

// HasShards says whether the job asks for shards of a node.
func (a Asked) HasShards() bool { return shards(a.PerNode) != 0 }

// TaskShards are the shards of each task; 0 where they are not asked for by task.
func (a Asked) TaskShards() gpu.Share { return shards(a.PerTask) }

// shards returns the count of the first gres/shard in a list such as "cpu=2,gres:shard:h200:30"; 1 if
// its count cannot be read.
func shards(list string) gpu.Share {
	for _, g := range listGRES(list) {
		if g.name == "shard" {
			return gpu.Share(g.count)
		}
	}
	return 0
}
