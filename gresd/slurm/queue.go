// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"fmt"
	"iter"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
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

// queueLines yields the columns of squeue's lines. The first column is the job's number. It skips the
// further lines of a comment with several lines.
func queueLines(text string, columns int) iter.Seq2[uint32, []string] {
	return func(yield func(uint32, []string) bool) {
		for line := range strings.Lines(text) {
			f := strings.SplitN(strings.TrimSpace(line), "|", columns)
			n, err := strconv.ParseUint(f[0], 10, 32)
			if err == nil && len(f) == columns && !yield(uint32(n), f) {
				return
			}
		}
	}
}

func parseShares(text string) (jobs []Queued) {
	for jobID, f := range queueLines(text, 7) {
		// Several whole cards are gres/gpu. The comment then has the request.
		whole := strings.Contains(f[5], "gpu") && strings.Contains(f[6], "vgpu(")
		if !whole && !strings.Contains(f[5], "shard") && !strings.Contains(f[5], "vgpu") {
			continue
		}
		if nodes, err := hosts(f[3], ""); err == nil {
			jobs = append(jobs, Queued{JobID: jobID, Name: f[1], State: f[2], Nodes: nodes, Reason: f[4]})
		}
	}
	return jobs
}

// hosts returns the nodes of a list as Slurm prints it: "n1,gpu[01-03,7],r[1-2]c[1-4]". If only is
// not "", it returns that node if it is in the list, and does not expand the list, which may have
// many thousands. Otherwise more than mostNodes are an error.
func hosts(list, only string) ([]string, error) {
	var names []string
	for _, item := range splitOutside(null(list)) {
		var err error
		if names, err = addHosts(names, "", item, only); err != nil {
			return nil, fmt.Errorf("cannot read node list %q: %w", clip(list), err)
		}
	}
	return names, nil
}

// HostlistContains reports whether a host list of Slurm, such as "gpu[01-08],login1", contains a node.
func HostlistContains(list, node string) (bool, error) {
	if node == "" {
		return false, nil
	}
	names, err := hosts(list, node)
	return len(names) > 0, err
}

// addHosts adds the names that begin with prefix and go on as item says.
func addHosts(names []string, prefix, item, only string) ([]string, error) {
	before, rest, hasRange := strings.Cut(item, "[")
	prefix += before
	ranges, after, closed := strings.Cut(rest, "]")
	switch {
	case only != "" && !strings.HasPrefix(only, prefix), only != "" && !hasRange && only != prefix:
		return names, nil
	case !hasRange && len(names) >= mostNodes:
		return nil, fmt.Errorf("more than %d nodes", mostNodes)
	case !hasRange:
		return append(names, prefix), nil
	case !closed:
		return nil, fmt.Errorf("no ] in %q", clip(item))
	}
	for part := range strings.SplitSeq(ranges, ",") {
		numbers, err := numbersOf(part, strings.TrimPrefix(only, prefix), only != "")
		if err != nil {
			return nil, err
		}
		for _, number := range numbers {
			if names, err = addHosts(names, prefix+number, after, only); err != nil {
				return nil, err
			}
		}
	}
	return names, nil
}

// numbersOf returns the numbers of "01-03" or "7", padded to the width of the first. If some is set,
// it returns those that rest begins with.
func numbersOf(text, rest string, some bool) (numbers []string, err error) {
	low, high, isRange := strings.Cut(text, "-")
	if !isRange {
		high = low
	}
	from, err := strconv.ParseUint(low, 10, 64)
	to, err2 := strconv.ParseUint(high, 10, 64)
	switch {
	case err != nil || err2 != nil:
		return nil, fmt.Errorf("no numbers in %q", clip(text))
	case !some && to-from >= mostNodes:
		return nil, fmt.Errorf("no range of at most %d in %q", mostNodes, clip(text))
	}
	padded := func(n uint64) string { return fmt.Sprintf("%0*d", len(low), n) }
	for n := from; !some && n <= to; n++ {
		numbers = append(numbers, padded(n))
	}
	// The digits can run on into what follows the bracket: try each length.
	for end := 1; some && end <= len(rest); end++ {
		n, err := strconv.ParseUint(rest[:end], 10, 64)
		if err != nil {
			break
		}
		if from <= n && n <= to && rest[:end] == padded(n) {
			numbers = append(numbers, rest[:end])
		}
	}
	return numbers, nil
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
	cmd.Env = environment(cmd.Environ(), c.conf)
	// A ^C at the terminal is ours: srun would ask for a second one.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stepEnd
	return cmd
}

// Asked is a job's request, as slurmctld keeps it; "" for nothing. A user writes no free text
// there, but can imitate the output of scontrol.
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

// HasShards reports whether the job requests shards of a node.
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

// Fields of a job's record in Slurm's accounting that hold free text.
const (
	SystemComment = "SystemComment" // nobody else's
	AdminComment  = "AdminComment"
	Comment       = "Comment" // the user's own
)

// Account is a job's newest record in Slurm's accounting (slurmdbd).
type Account struct {
	// Over: this run of the job has ended, Slurm has recorded the end, and Name is the name of this
	// job alone.
	Over bool
	// Text is the value of the requested field.
	Text string
	// Name is this job's own name for sacctmgr: "7", or "7_2" for a task of an array. The number of
	// a task may be the number of the whole array.
	Name string
}

// columns separates what sacct prints: no user can put it into a comment with
// Slurm's own commands.
const columns = "\x01"

// Account returns the record of a job with one of its text fields. Errors:
// ErrNoJob where slurmdbd has none (yet), ErrUnavailable, which is also what a
// cluster without accounting gives.
func (c *Client) Account(ctx context.Context, jobID uint32, field string) (Account, error) {
	text, err := c.run(ctx, "sacct", "-n", "-X", "-P", "--delimiter="+columns, "-j", id(jobID),
		"-o", "JobIDRaw,JobID,End,"+field)
	if err != nil {
		return Account{}, err
	}
	account, err := parseAccount(text, jobID)
	// slurmctld knows the name of a running job before slurmdbd does.
	if name, known := c.names.of(c.conf, jobID); known && err == nil {
		account.Name = name
	}
	return account, err
}

// accountStart begins a record: the id of an array or het job prints several,
// and a comment may have several lines.
var accountStart = regexp.MustCompile(`(?m)^\d+` + columns)

func parseAccount(text string, jobID uint32) (Account, error) {
	array := strings.Contains(text, columns+id(jobID)+"_")
	for _, record := range recordsOf(accountStart, text) {
		values := strings.SplitN(strings.TrimSuffix(record, "\n"), columns, 4)
		if values[0] != id(jobID) {
			continue
		}
		if len(values) != 4 {
			return Account{}, fmt.Errorf("sacct printed %q, want four values: %w", clip(text), ErrUnavailable)
		}
		name := values[0]
		if strings.Contains(values[1], "_") {
			name = values[1]
		}
		// slurmdbd may hear last which task has the number of the whole array. Until then
		// that number would name all of them.
		known := !array || name != values[0]
		return Account{Over: known && isDate(values[2]), Text: values[3], Name: name}, nil
	}
	return Account{}, fmt.Errorf("sacct: job %d: %w", jobID, ErrNoJob)
}

// isDate tells an end from "Unknown" and "None".
func isDate(s string) bool { return s != "" && s[0] >= '0' && s[0] <= '9' }

// SetAccount replaces a text field of the record of an ended job (by Account.Name). Only slurmdbd
// takes changes then. The command sacctmgr changes all letters to lower case and quotes to
// backticks. Errors: ErrUnavailable.
func (c *Client) SetAccount(ctx context.Context, name, field, text string) error {
	_, err := c.run(ctx, "sacctmgr", "-i", "modify", "job", "where", "jobid="+name, "set", field+"="+text)
	return err
}
