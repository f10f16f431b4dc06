// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Where people log in there is no gresd. The nodes of their jobs are asked there, each by one
// step of one of their jobs: Slurm says who may do that, and gresd sees who asks.

const (
	// atOnce bounds the steps that are started at a time.
	atOnce = 8
	// stepLimit is how long a node may take to answer: gresd's own limit, and Slurm's to start a step.
	stepLimit = 30 * time.Second
	// hereEnv is set in a step: whatever is there, it asks no other node.
	hereEnv = "VGPUCTL_HERE"
	// unanswered is the state of a job whose node does not say.
	unanswered = "unanswered"
)

// isAfar says that gresd is not to be found here, and never was since the host was started: a
// host where users log in.
func (s *settings) isAfar() bool {
	if s.socket != "" || os.Getenv(hereEnv) != "" {
		return false
	}
	socket, err := s.socketPath()
	if err != nil {
		return false
	}
	_, err = os.Stat(filepath.Dir(socket))
	return errors.Is(err, fs.ErrNotExist)
}

// configuration is the file's, or the default if the file cannot be read.
func (s *settings) configuration() config.Config {
	cfg, err := config.Load(s.config)
	if err != nil {
		return config.Default()
	}
	return cfg
}

// slurm is a client of Slurm. scontrol is where gresd finds Slurm's commands; the configuration beats it.
func (s *settings) slurm(scontrol string, timeout time.Duration) *slurm.Client {
	cfg := s.configuration().Slurm
	if scontrol == "" || strings.Contains(cfg.Scontrol, "/") {
		scontrol = cfg.Scontrol
	}
	return slurm.New(slurm.Options{Scontrol: scontrol, Conf: cfg.Conf, Timeout: timeout})
}

// asked is a node, and the jobs of the user on it. Its steps are of the first.
type asked struct {
	node string
	jobs []slurm.Queued
}

// nodesOf sorts jobs that run by node. Those that are suspended are not asked: their steps
// would not start.
func nodesOf(jobs []slurm.Queued) (nodes []asked) {
	byNode := map[string][]slurm.Queued{}
	for _, job := range jobs {
		if job.State == "RUNNING" {
			for _, node := range job.Nodes {
				byNode[node] = append(byNode[node], job)
			}
		}
	}
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		nodes = append(nodes, asked{node, byNode[node]})
	}
	return nodes
}

// ownJobs returns the user's jobs with a share or a request for one. only is the number of a single job, or 0.
func (s *settings) ownJobs(ctx context.Context, only uint32) ([]slurm.Queued, error) {
	jobs, err := s.slurm("", stepLimit).Shares(ctx, os.Getuid())
	if err != nil {
		return nil, fmt.Errorf("no gresd here, and Slurm does not say where your jobs run: %w", err)
	}
	return slices.DeleteFunc(jobs, func(job slurm.Queued) bool { return only != 0 && job.JobID != only }), nil
}

// each asks nodes, atOnce at a time, and returns when the last has answered or has not.
func each(nodes []asked, ask func(i int, a asked)) {
	var all sync.WaitGroup
	room := make(chan struct{}, atOnce)
	for i, a := range nodes {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			ask(i, a)
		})
	}
	all.Wait()
}

// stepAnswer runs vgpuctl on a node as a step, and reads the JSON that it prints.
func stepAnswer(ctx context.Context, client *slurm.Client, a asked, into any, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	cmd := client.Step(ctx, a.jobs[0].JobID, a.node, hereEnv+"=1", append([]string{"vgpuctl", "--json"}, args...)...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("no answer within %s", stepLimit)
	case err != nil:
		return stepError(err, problems.String())
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("its vgpuctl printed no answer that this one reads: %w", err)
	}
	cleanText(reflect.ValueOf(into))
	return nil
}

// stepError is the first line that somebody in the step has to say, else srun: that a task
// failed, which it may say before the task's own words arrive, tells nobody why.
func stepError(err error, said string) error {
	var bySrun string
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(strings.Map(visible, strings.TrimSpace(line)))
		text, ofSrun := strings.CutPrefix(line, "srun: ")
		text = strings.TrimPrefix(text, "error: ")
		switch text = text[:min(len(text), 300)]; {
		case text == "":
		case !ofSrun:
			return errors.New(text)
		case bySrun == "":
			bySrun = text
		}
	}
	if bySrun != "" {
		return errors.New(bySrun)
	}
	return fmt.Errorf("srun: %w", err)
}

// answer is the answer of a node, or why there is none.
type answer[T any] struct {
	asked
	got T
	err error
}

// askNodes runs a command of vgpuctl on each node with running jobs among these.
func askNodes[T any](ctx context.Context, s *settings, jobs []slurm.Queued, args ...string) []answer[T] {
	nodes, client := nodesOf(jobs), s.slurm("", stepLimit)
	answers := make([]answer[T], len(nodes))
	each(nodes, func(i int, a asked) {
		answers[i].asked = a
		answers[i].err = stepAnswer(ctx, client, a, &answers[i].got, args...)
	})
	return answers
}

// placed is a job, and the node that it is on. The node is empty on the node itself.
type placed struct {
	Node string `json:"node,omitempty"`
	wire.Job
}

// afarJobs asks every node with jobs of the user. A node that does not answer has rows that say so.
func (s *settings) afarJobs(ctx context.Context, command string) ([]placed, error) {
	own, err := s.ownJobs(ctx, 0)
	if err != nil {
		return nil, err
	}
	all := []placed{} // [] and not null
	silent := func(node, why string, job slurm.Queued) {
		all = append(all, placed{node, wire.Job{JobID: job.JobID, UID: uint32(os.Getuid()), User: os.Getenv("USER"), State: unanswered, Reason: why}})
	}
	for _, a := range askNodes[[]wire.Job](ctx, s, own, command) {
		for _, job := range a.got {
			all = append(all, placed{a.node, job})
		}
		for _, job := range a.jobs {
			if a.err != nil {
				silent(a.node, a.err.Error(), job)
			}
		}
	}
	for _, job := range own {
		for _, node := range job.Nodes {
			if job.State == "SUSPENDED" {
				silent(node, "suspended: its node is not asked", job)
			}
		}
	}
	return all, ctx.Err()
}

// nodeSays is what a node says of a job.
type nodeSays struct {
	Node string `json:"node"`
	*wire.Explanation
	Error string `json:"error,omitempty"` // there is no explanation
}

// explainAfar asks the nodes of a job, or says why it has none yet.
func (s *settings) explainAfar(ctx context.Context, out io.Writer, jobID uint32) error {
	own, err := s.ownJobs(ctx, jobID)
	if err != nil {
		return err
	}
	if len(own) == 0 {
		return fmt.Errorf("job %d: none of yours that runs or waits for a share; see squeue --me", jobID)
	}
	var says []nodeSays
	for _, a := range askNodes[*wire.Explanation](ctx, s, own, "explain", strconv.FormatUint(uint64(jobID), 10)) {
		said := nodeSays{Node: a.node, Explanation: a.got}
		if a.err != nil {
			said = nodeSays{Node: a.node, Error: a.err.Error()}
		}
		says = append(says, said)
	}
	if len(says) == 0 {
		return fmt.Errorf("job %d: %s, Slurm's reason is %s: no node can be asked; vgpuctl nodes shows where room is",
			jobID, strings.ToLower(own[0].State), own[0].Reason)
	}
	return s.print(out, says, func(w io.Writer) error {
		for i, a := range says {
			if i > 0 {
				fmt.Fprintln(w)
			}
			if a.Explanation == nil {
				fmt.Fprintf(w, "node %s: %s\n", a.Node, a.Error)
				continue
			}
			fmt.Fprintf(w, "node %s, ", a.Node)
			if err := writeExplanation(w, *a.Explanation); err != nil {
				return err
			}
		}
		return nil
	})
}
