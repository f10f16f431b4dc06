// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Queued is a job of a user that has or wants a share.
type Queued struct {
	JobID  uint32
	Name   string // as its user names it: "4_1" for a task of an array
	State  string // "RUNNING", "PENDING", …
	Reason string
	Nodes  []string // none while it waits
}

// mostNodes bounds the nodes of one job that are named.
const mostNodes = 4096

// Shares returns the jobs of a user that have or want a share, finished ones left out.
// Errors: ErrUnavailable.
//
// It reads squeue's columns and not its JSON: these are the same in all releases. The only
// text of a user comes last, and the jobs are all of that user, who can mislead nobody else.
func (c *Client) Shares(ctx context.Context, uid int) ([]Queued, error) {
	text, err := c.run(ctx, "squeue", "--local", "-h", "-u", strconv.Itoa(uid), "-t", "PENDING,RUNNING,SUSPENDED,CONFIGURING",
		"-o", "%A|%i|%T|%N|%r|%b|%k")
	if err != nil {
		return nil, err
	}
	return parseShares(text), nil
}

// Pending returns squeue's lines of the jobs that wait, "JOB|USER|GRES|REASON": those of a user, of
// all for -1, as far as Slurm shows them to who asks. Errors: ErrUnavailable.
func (c *Client) Pending(ctx context.Context, uid int) (string, error) {
	args := []string{"--noheader", "--states=PENDING", "--format=%i|%u|%b|%r"}
	if uid >= 0 {
		args = append(args, "--user="+strconv.Itoa(uid))
	}
	return c.run(ctx, "squeue", args...)
}

func parseShares(text string) (jobs []Queued) {
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), "|", 7)
		n, err := strconv.ParseUint(f[0], 10, 32)
		if err != nil || len(f) != 7 {
			continue // the rest of a comment of several lines
		}
		// Several whole cards are gres/gpu; what was asked for is in the comment then.
		whole := strings.Contains(f[5], "gpu") && strings.Contains(f[6], "vgpu(")
		if !whole && !strings.Contains(f[5], "shard") && !strings.Contains(f[5], "vgpu") {
			continue
		}
		nodes, err := expandHostlist(f[3])
		if err != nil {
			continue
		}
		jobs = append(jobs, Queued{JobID: uint32(n), Name: f[1], State: f[2], Nodes: nodes, Reason: f[4]})
	}
	return jobs
}

// expandHostlist names the nodes of a list as Slurm prints it, mostNodes at the most.
func expandHostlist(list string) (names []string, err error) {
	if null(list) == "" {
		return nil, nil
	}
	for _, item := range splitOutside(list) {
		if names, err = expand(names, "", item); err != nil {
			return nil, fmt.Errorf("cannot read node list %q: %w", clip(list), err)
		}
	}
	return names, nil
}

// expand adds the names that begin with prefix and go on as item says.
func expand(names []string, prefix, item string) (_ []string, err error) {
	before, rest, hasRange := strings.Cut(item, "[")
	ranges, after, closed := strings.Cut(rest, "]")
	switch {
	case !hasRange && len(names) >= mostNodes:
		return nil, fmt.Errorf("more than %d nodes", mostNodes)
	case !hasRange:
		return append(names, prefix+item), nil
	case !closed:
		return nil, fmt.Errorf("no ] in %q", clip(item))
	}
	for part := range strings.SplitSeq(ranges, ",") {
		from, to, width, err := rangeOf(part)
		if err != nil {
			return nil, err
		}
		if to-from >= mostNodes {
			return nil, fmt.Errorf("no range of at most %d in %q", mostNodes, clip(part))
		}
		for n := from; n <= to; n++ {
			if names, err = expand(names, prefix+before+padded(n, width), after); err != nil {
				return nil, err
			}
		}
	}
	return names, nil
}

// stepEnd is how long srun may take to end its step before it is killed.
const stepEnd = 5 * time.Second

// Step is a command that runs argv as a step of a job on one of its nodes, beside what runs
// there: it takes no CPU, memory or card of the job's own steps. Of the environment it has PATH
// and what env names ("NAME=value"). It is not started; when ctx is done, the step is ended.
func (c *Client) Step(ctx context.Context, jobID uint32, node string, env string, argv ...string) *exec.Cmd {
	args := append([]string{
		"--jobid=" + id(jobID), "--overlap", "--mem=0", "--gres=none", "--nodes=1", "--ntasks=1", "--cpus-per-task=1",
		"--nodelist=" + node, "--immediate=10", "--export=PATH," + env,
	}, argv...)
	srun, err := c.programs.path("srun")
	cmd := exec.CommandContext(ctx, srun, args...)
	if err != nil {
		cmd.Err = err // as that of a command that is not in PATH
	}
	cmd.Env = Environment(cmd.Environ(), c.conf)
	// A ^C at the terminal is ours: srun would ask for a second one.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stepEnd
	return cmd
}
