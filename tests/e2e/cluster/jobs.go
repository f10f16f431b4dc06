// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Result is what a client command left.
type Result struct {
	Out, Err string
	Code     int
}

func (r Result) String() string {
	return fmt.Sprintf("exit %d\nstdout: %s\nstderr: %s", r.Code, r.Out, r.Err)
}

// clientLimit ends a client command that hangs.
const clientLimit = 90 * time.Second

// Command prepares a command as an ordinary user of this machine, in a home
// folder of its own and with nothing of the harness's environment.
func (c *Cluster) Command(name string, argv ...string) (*exec.Cmd, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	home := c.Home(name)
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	if err := os.Chown(home, int(uid), int(gid)); err != nil {
		return nil, err
	}
	program := argv[0]
	if path := filepath.Join(Dir, "bin", program); !strings.Contains(program, "/") {
		if _, err := os.Stat(path); err == nil {
			program = path
		}
	}
	cmd := exec.Command(program, argv[1:]...)
	cmd.Dir = home
	cmd.Env = []string{
		"PATH=" + Dir + "/bin:/usr/bin:/bin", "HOME=" + home,
		"USER=" + name, "LOGNAME=" + name, "SHELL=/bin/bash",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
	}
	return cmd, nil
}

// Home is the folder where a user's jobs start.
func (c *Cluster) Home(name string) string { return filepath.Join(Dir, "home", name) }

// As runs a command as a user and waits for it.
func (c *Cluster) As(name string, argv ...string) Result {
	cmd, err := c.Command(name, argv...)
	if err != nil {
		return Result{Err: err.Error(), Code: -1}
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = runFor(clientLimit, cmd)
	r := Result{Out: strings.TrimSpace(out.String()), Err: strings.TrimSpace(errs.String())}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		r.Code = exit.ExitCode()
	default:
		r.Code, r.Err = -1, r.Err+"\n"+err.Error()
	}
	return r
}

// runFor runs a command and kills it when it takes longer than limit.
func runFor(limit time.Duration, cmd *exec.Cmd) error {
	cmd.WaitDelay = 2 * time.Second // for children that keep its output open
	if err := cmd.Start(); err != nil {
		return err
	}
	late := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !late.Stop() {
		return fmt.Errorf("killed by the harness after %s", limit)
	}
	return err
}

// Sbatch submits a bash script and returns the job's id. The script's output
// goes to a file that [Cluster.Output] reads.
func (c *Cluster) Sbatch(name string, args []string, script string) (int, error) {
	r := c.TrySbatch(name, args, script)
	if r.Code != 0 {
		return 0, fmt.Errorf("sbatch %s: %s", strings.Join(args, " "), r)
	}
	id, _, _ := strings.Cut(r.Out, ";")
	job, err := strconv.Atoi(id)
	if err != nil {
		return 0, fmt.Errorf("sbatch %s: no job id: %s", strings.Join(args, " "), r)
	}
	return job, nil
}

// lastSleep is the sleep that ends a script.
var lastSleep = regexp.MustCompile(`(^|[;&|] )(sleep [0-9.]+)$`)

// TrySbatch is Sbatch for requests that may be refused. A script that ends with a sleep
// becomes that sleep: Slurm, which looks for a job's processes by their parents here
// (proctrack/linuxproc), does not find one whose parent was killed first.
func (c *Cluster) TrySbatch(name string, args []string, script string) Result {
	script = lastSleep.ReplaceAllString(script, "${1}exec $2")
	argv := append([]string{"sbatch", "--parsable", "--output=%j.out"}, args...)
	return c.As(name, append(argv, "--wrap", script)...)
}

// Output is what a batch job has written so far.
func (c *Cluster) Output(name string, job int) string {
	data, err := os.ReadFile(filepath.Join(c.Home(name), strconv.Itoa(job)+".out"))
	if err != nil {
		return ""
	}
	return string(data)
}

// Job returns scontrol's facts of a job.
func (c *Cluster) Job(job int) (map[string]string, error) {
	out, err := c.Scontrol("show", "job", "-d", "-o", strconv.Itoa(job))
	if err != nil {
		return nil, err
	}
	return fields(out), nil
}

// WaitState waits until a job is in one of the states.
func (c *Cluster) WaitState(job int, limit time.Duration, states ...string) (map[string]string, error) {
	var facts map[string]string
	var err error
	if until(limit, 100*time.Millisecond, func() bool {
		facts, err = c.Job(job)
		for _, s := range states {
			if err == nil && facts["JobState"] == s {
				return true
			}
		}
		return false
	}) {
		return facts, nil
	}
	return facts, fmt.Errorf("job %d: not %s after %s: state %s, reason %s, error %w",
		job, strings.Join(states, " or "), limit, facts["JobState"], facts["Reason"], err)
}

// Wait waits for the end of a job, its Epilog included, and returns its state.
func (c *Cluster) Wait(job int, limit time.Duration) (string, error) {
	facts, err := c.WaitState(job, limit,
		"COMPLETED", "FAILED", "CANCELLED", "PREEMPTED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL")
	if err != nil {
		return "", err
	}
	busy := func() bool {
		out, err := exec.Command("squeue", "-h", "-t", "CG", "-j", strconv.Itoa(job)).Output()
		return err == nil && len(bytes.TrimSpace(out)) > 0
	}
	if !until(30*time.Second, 100*time.Millisecond, func() bool { return !busy() }) {
		return "", fmt.Errorf("job %d: still completing after 30 s", job)
	}
	return facts["JobState"], nil
}

// Queue lists the ids of jobs that are pending, running or completing.
func (c *Cluster) Queue() ([]string, error) {
	out, err := exec.Command("squeue", "-h", "-o", "%i").Output()
	if err != nil {
		return nil, fmt.Errorf("squeue: %w", err)
	}
	return strings.Fields(string(out)), nil
}
