// SPDX-License-Identifier: Apache-2.0

// Package slurm learns the facts of jobs from slurmctld by running Slurm's own
// commands, and acts on jobs. The parser is pure ([ParseJob]).
package slurm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Sentinels for errors.Is.
var (
	// ErrUnavailable: the command is not installed, slurmctld does not answer,
	// or the time ran out. The job itself may be fine.
	ErrUnavailable = errors.New("slurm is not available")
	// ErrSilent is ErrUnavailable after a wait for slurmctld: whoever has more to ask waits as long
	// each time.
	ErrSilent = fmt.Errorf("%w", ErrUnavailable)
	// ErrNoNode: slurmctld does not know the node, which was renamed or taken away.
	ErrNoNode = fmt.Errorf("%w for this node: its name is not known", ErrUnavailable)
	// ErrNoJob: slurmctld does not know the job.
	ErrNoJob = errors.New("no such job")
	// ErrNotBatch: only batch jobs can be requeued, and not those that exclude it.
	ErrNotBatch = errors.New("not a job that can be requeued")
)

// Options of a client. Zero values: scontrol as [Find] finds it, Slurm's own default
// configuration, 10 seconds.
type Options struct {
	// Scontrol is a path or a name ([Find]); squeue, srun, sacct and sacctmgr are
	// taken from beside it.
	Scontrol string
	// Slurmds are the programs beside which it is looked for; nil: [Slurmds].
	Slurmds func() []string
	Conf    string        // SLURM_CONF for the commands
	Timeout time.Duration // for each command
	// Took is told how long each command took, by its name in [Commands]; nil:
	// nobody is.
	Took func(command string, took time.Duration)
}

// Commands are those that a client runs, as [Options.Took] is told of them.
func Commands() []string { return []string{"scontrol", "squeue", "sacct", "sacctmgr"} }

// Client runs Slurm's commands. It is safe for concurrent use.
type Client struct {
	programs *programs
	conf     string
	timeout  time.Duration
	took     func(string, time.Duration)
	names    *names
}

// New returns a client. It runs nothing yet.
func New(o Options) *Client {
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	if o.Slurmds == nil {
		o.Slurmds = Slurmds
	}
	return &Client{
		programs: &programs{configured: o.Scontrol, slurmds: o.Slurmds},
		conf:     o.Conf,
		timeout:  o.Timeout,
		took:     o.Took,
		names:    &names{},
	}
}

// WithConf returns a client that uses that slurm.conf, which Slurm names to its
// Prolog; "" returns c itself.
func (c *Client) WithConf(conf string) *Client {
	if conf == "" {
		return c
	}
	other := *c
	other.conf = conf
	return &other
}

// Job returns the facts of a job on a node. Errors: ErrNoJob, ErrUnavailable,
// or the text that cannot be parsed.
func (c *Client) Job(ctx context.Context, jobID uint32, node string) (JobFacts, error) {
	text, err := c.record(ctx, jobID, "-d", "-o")
	if err != nil {
		return JobFacts{}, err
	}
	facts, err := ParseJob(text, jobID, node)
	if err == nil && facts.OnNode { // a job that never started may be several tasks yet
		record, _ := findRecord(text, jobID)
		c.names.put(nameKey{c.conf, jobID}, taskOf(record, jobID))
	}
	return facts, err
}

// Brief is Job without the cards that the job holds: for those, scontrol loads the table of all
// nodes of the cluster as well.
func (c *Client) Brief(ctx context.Context, jobID uint32, node string) (JobFacts, error) {
	text, err := c.record(ctx, jobID, "-o")
	if err != nil {
		return JobFacts{}, err
	}
	return ParseJob(text, jobID, node)
}

// record returns what "scontrol show job" prints. Each question costs a connection, and without
// --local scontrol also asks the federation.
func (c *Client) record(ctx context.Context, jobID uint32, form ...string) (string, error) {
	return c.run(ctx, scontrolName, append(append([]string{"--local", "show", "job"}, form...), id(jobID))...)
}

// change runs a command of scontrol that names one job: "verb prefixNAME args". Errors: ErrNoJob,
// ErrUnavailable.
func (c *Client) change(ctx context.Context, jobID uint32, verb, prefix string, args ...string) error {
	name, err := c.taskName(ctx, jobID)
	if err == nil {
		_, err = c.run(ctx, scontrolName, append([]string{verb, prefix + name}, args...)...)
	}
	return err
}

// Requeue puts a batch job back into the queue. Errors: ErrNotBatch, ErrNoJob,
// ErrUnavailable.
func (c *Client) Requeue(ctx context.Context, jobID uint32) error {
	return c.change(ctx, jobID, "requeue", "")
}

// Notify writes a message to the standard error of a job's srun or salloc, or
// of its batch script. Errors: ErrNoJob, ErrUnavailable.
func (c *Client) Notify(ctx context.Context, jobID uint32, message string) error {
	return c.change(ctx, jobID, "notify", "", message)
}

// Delay lets a pending job start no earlier than that, in the place of what Slurm
// had for it; 0: at once. Errors: ErrNoJob, ErrUnavailable.
func (c *Client) Delay(ctx context.Context, jobID uint32, by time.Duration) error {
	return c.change(ctx, jobID, "update", "JobId=", fmt.Sprintf("StartTime=now+%d", int(by.Seconds())))
}

// Extend lets a running job run for so long in all, in whole minutes. Errors: ErrNoJob,
// ErrUnavailable.
func (c *Client) Extend(ctx context.Context, jobID uint32, limit time.Duration) error {
	return c.change(ctx, jobID, "update", "JobId=", fmt.Sprintf("TimeLimit=%d", int(math.Ceil(limit.Minutes()))))
}

// Explain puts a line for the job's user into the job's admin comment, which
// scontrol show job and squeue -O admin_comment show. A line from before is
// replaced, by "" taken away; what the site has written there stays. Errors:
// ErrNoJob, ErrUnavailable.
func (c *Client) Explain(ctx context.Context, jobID uint32, line string) error {
	name, err := c.taskName(ctx, jobID)
	if err != nil {
		return err
	}
	// Not what scontrol prints: a user's job name, or network, can hold
	// " AdminComment=" as well.
	now, err := c.run(ctx, "squeue", "--local", "-a", "-t", "all", "-h", "-j", name, "-O", adminComment)
	if err != nil {
		return err
	}
	sites, _, _ := strings.Cut(null(strings.TrimSpace(now)), ownWords)
	if sites = strings.TrimSpace(sites); sites != "" {
		line = strings.TrimSpace(sites + " " + line)
	}
	_, err = c.run(ctx, scontrolName, "update", "JobId="+name, "AdminComment="+line)
	return err
}

// ownWords begin each line that Explain writes.
const ownWords = "vgpu: "

// adminComment is squeue's format of that field alone, wide enough for any.
const adminComment = "admin_comment:65536"

// LosesShards says whether this Slurm can start a job without the shards that it
// asked for: seen on 22.05, after slurmctld was restarted and before the node has
// registered again; not seen on 24.11 and 26.05. Errors: ErrUnavailable.
func (c *Client) LosesShards(ctx context.Context) (bool, error) {
	text, err := c.run(ctx, scontrolName, "--version") // "slurm-wlm 22.05.8"
	if err != nil {
		return false, err
	}
	words := strings.Fields(text)
	var year, month int
	if len(words) == 0 {
		return false, fmt.Errorf("scontrol --version printed nothing: %w", ErrUnavailable)
	}
	if _, err := fmt.Sscanf(words[len(words)-1], "%d.%d", &year, &month); err != nil {
		return false, fmt.Errorf("scontrol --version printed %q: %w", clip(text), ErrUnavailable)
	}
	return year*100+month < 2411, nil
}

func id(jobID uint32) string { return strconv.FormatUint(uint64(jobID), 10) }

// waitDelay is how long a killed command may keep its output open.
const waitDelay = 500 * time.Millisecond

// run runs one command of Slurm and returns what it printed.
func (c *Client) run(ctx context.Context, name string, args ...string) (string, error) {
	what := name + " " + strings.Join(args, " ")
	path, err := c.programs.path(name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	command := exec.CommandContext(ctx, path, args...)
	command.WaitDelay = waitDelay
	// A wrapper of the site may have children.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.Env = environment(os.Environ(), c.conf)
	var out, problems bytes.Buffer
	command.Stdout, command.Stderr = &out, &problems
	began := time.Now()
	err = command.Run()
	if c.took != nil {
		c.took(name, time.Since(began))
	}
	if err == nil {
		if len(args) > 0 && args[0] != "ping" && args[0] != "--version" { // these two succeed without slurmctld
			c.programs.mu.Lock()
			c.programs.answered, c.programs.silent = true, nil
			c.programs.mu.Unlock()
		}
		return out.String(), nil
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s: no answer in time (%s): %w: %w", what, time.Since(began).Round(100*time.Millisecond), ErrSilent, ctx.Err())
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOEXEC) {
			return "", fmt.Errorf("%s: %w: %w", what, ErrUnavailable, missing("%w", err))
		}
		return "", fmt.Errorf("%s: %w: %w", what, ErrUnavailable, err)
	}
	said := strings.Join(strings.Fields(problems.String()), " ")
	return "", fmt.Errorf("%s: %w: %s", what, errorFor(said), clip(said))
}

// environment returns a program's environment without the variables that change Slurm's output or
// its configuration, for example SLURM_TIME_FORMAT, SQUEUE_FORMAT and SLURM_CLUSTERS.
func environment(own []string, conf string) []string {
	kept := slices.DeleteFunc(slices.Clone(own), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		if name == "SLURM_CONF" {
			return conf != ""
		}
		return name == "LANG" || slices.ContainsFunc([]string{"SLURM_", "SQUEUE_", "SCONTROL_", "SCANCEL_", "SACCT_", "LC_"},
			func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
	kept = append(kept, "LC_ALL=C")
	if conf != "" {
		kept = append(kept, "SLURM_CONF="+conf)
	}
	return kept
}

// noSuchNode is how "scontrol show node" answers.
var noSuchNode = regexp.MustCompile(`(?m)^Node \S+ not found$`)

// errorFor returns the error for a message of scontrol. These texts are the same from
// Slurm 22.05 to 26.05. Every other message means that Slurm did not do it.
func errorFor(said string) error {
	switch {
	case strings.Contains(said, "Invalid job id specified"):
		return ErrNoJob
	case strings.Contains(said, "Only batch jobs are accepted"),
		strings.Contains(said, "Requested operation is presently disabled"): // --no-requeue, JobRequeue=0
		return ErrNotBatch
	case strings.Contains(said, "Invalid node name"), noSuchNode.MatchString(said):
		return ErrNoNode
	case strings.Contains(said, "already completing or completed"):
		return ErrNoJob
	case strings.Contains(said, "Unable to contact slurm controller"), strings.Contains(said, "timed out"):
		return ErrSilent
	}
	return ErrUnavailable
}

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
	record, _ := findRecord(text, jobID) // a job without a readable record is no array
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

// names has the names of the started jobs that gresd asked about last. A job keeps its name, so the
// next command about it need not ask again.
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

func (n *names) put(key nameKey, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.byJob) >= mostNames || n.byJob == nil {
		n.byJob = map[nameKey]string{}
	}
	n.byJob[key] = name
}
