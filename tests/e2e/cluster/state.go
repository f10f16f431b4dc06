// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Status asks gresd for its cards.
func (c *Cluster) Status() (wire.Status, error) {
	rep, err := c.ask(wire.OpStatus)
	if err != nil {
		return wire.Status{}, err
	}
	if rep.Status == nil {
		return wire.Status{}, fmt.Errorf("status: empty answer")
	}
	return *rep.Status, nil
}

// Records asks gresd for its records of jobs.
func (c *Cluster) Records() ([]wire.Job, error) {
	rep, err := c.ask(wire.OpJobs)
	return rep.Jobs, err
}

func (c *Cluster) ask(op wire.Op) (wire.Reply, error) {
	client := wire.Client{Socket: runDir + "/gresd.sock", Timeout: 10 * time.Second}
	return client.Do(context.Background(), wire.Request{Op: op})
}

// JobDir is where gresd keeps the files of a job.
func JobDir(job int) string { return filepath.Join(runDir, "jobs", fmt.Sprint(job)) }

// Ledger returns the bytes of gresd's durable record, of all its files.
func (c *Cluster) Ledger() (string, error) {
	text, err := os.ReadFile(stateDir + "/ledger.json")
	journals, globErr := filepath.Glob(stateDir + "/ledger.journal-*")
	errs := []error{err, globErr}
	for _, path := range journals {
		more, err := os.ReadFile(path)
		text, errs = append(text, more...), append(errs, err)
	}
	return string(text), errors.Join(errs...)
}

// Leftovers lists what jobs left behind: queue entries, job folders, records,
// processes, memory on simulated cards. Things on their way out get until the
// limit to go.
func (c *Cluster) Leftovers(limit time.Duration) []string {
	var left []string
	until(limit, 100*time.Millisecond, func() bool {
		left = c.leftovers()
		return len(left) == 0
	})
	return left
}

func (c *Cluster) leftovers() []string {
	var left []string
	note := func(format string, args ...any) { left = append(left, fmt.Sprintf(format, args...)) }
	queue, err := c.Queue()
	if err != nil {
		note("%v", err)
	}
	for _, job := range queue {
		note("job %s in the queue", job)
	}
	folders, err := filepath.Glob(runDir + "/jobs/*")
	if err != nil {
		note("%v", err)
	}
	for _, folder := range folders {
		note("folder %s", folder)
	}
	for _, n := range c.nodes {
		left = append(left, n.leftovers()...)
	}
	records, err := c.Records()
	if err != nil {
		note("%v", err)
	}
	for _, r := range records {
		note("record of job %d (%s)", r.JobID, r.State)
	}
	for _, p := range c.Processes() {
		note("process %s", p)
	}
	if !c.opts.Real {
		used, err := c.simulatedMemory()
		if err != nil {
			note("%v", err)
		}
		for card, bytes := range used {
			if bytes != 0 {
				note("%d bytes in use on simulated card %d", bytes, card)
			}
		}
	}
	return left
}
