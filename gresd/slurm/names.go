// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"regexp"
	"sync"
)

// arrayTask is how a record of a task that was started begins.
var arrayTask = regexp.MustCompile(`^JobId=\d+ ArrayJobId=(\d+) ArrayTaskId=(\d+) `)

// taskName is how commands must name a job to mean it alone. The last task of an
// array to start has the number of the array, and to Slurm's commands that number
// is all of its tasks: only "15_4" is the one. Errors: ErrNoJob, ErrUnavailable.
func (c *Client) taskName(ctx context.Context, jobID uint32) (string, error) {
	if name, known := c.names.of(c.conf, jobID); known {
		return name, nil
	}
	text, err := c.record(ctx, jobID, "-o")
	if err != nil {
		return "", err
	}
	record, _ := findRecord(text, jobID) // what cannot be read is no array
	return taskOf(record, jobID), nil
}

func taskOf(record string, jobID uint32) string {
	if task := arrayTask.FindStringSubmatch(record); task != nil {
		return task[1] + "_" + task[2]
	}
	return id(jobID)
}

// mostNames is how many names are remembered before all are forgotten.
const mostNames = 256

// names are those of jobs that were asked about last, as tasks that were started: a job keeps
// its name, and the next command about it need not ask again.
type names struct {
	mu    sync.Mutex
	byJob map[nameKey]string
}

type nameKey struct {
	conf  string
	jobID uint32
}

func (n *names) of(conf string, jobID uint32) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, known := n.byJob[nameKey{conf, jobID}]
	return name, known
}

// learn remembers the name of a job that holds resources: one that was never started may be
// several tasks yet.
func (n *names) learn(conf, text string, facts JobFacts) {
	if !facts.OnNode {
		return
	}
	record, err := findRecord(text, facts.JobID)
	if err != nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.byJob) >= mostNames || n.byJob == nil {
		n.byJob = map[nameKey]string{}
	}
	n.byJob[nameKey{conf, facts.JobID}] = taskOf(record, facts.JobID)
}
