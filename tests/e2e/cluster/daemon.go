// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Daemon is a process that runs in the foreground, its output in a log file.
type Daemon struct {
	name  string
	argv  []string
	env   []string
	log   string
	ready func() bool

	// Begin, if set, starts the process in place of [exec.Cmd.Start]: a test may
	// put a filter or a limit around it.
	Begin func(*exec.Cmd) error

	cmd  *exec.Cmd
	done chan struct{}
}

// startWait is how long systemd lets gresd start (TimeoutStartSec of gresd.service).
const startWait = 90 * time.Second

// Start starts the daemon and waits until it is ready.
func (d *Daemon) Start() error {
	if err := d.Spawn(); err != nil {
		return err
	}
	if !until(startWait, 20*time.Millisecond, func() bool { return !d.Alive() || d.ready() }) {
		return fmt.Errorf("start %s: not ready after %s", d.name, startWait)
	}
	if !d.Alive() {
		return fmt.Errorf("start %s: ended at once: %s", d.name, d.cmd.ProcessState)
	}
	return nil
}

// systemPath is the PATH of daemons. A gresd also finds what stands in for NVIDIA's MPS.
const systemPath = "/usr/sbin:/usr/bin:/sbin:/bin"

// Spawn starts the daemon and does not wait: slurmd counts as ready once its
// node is idle, which takes as long as jobs run.
func (d *Daemon) Spawn() error {
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	d.cmd = exec.Command(d.argv[0], d.argv[1:]...)
	d.cmd.Env = append([]string{"PATH=" + systemPath}, d.env...)
	d.cmd.Dir = "/"
	d.cmd.Stdout, d.cmd.Stderr = log, log
	// Its own session: a Ctrl-C at the terminal is for the harness alone.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	begin := d.Begin
	if begin == nil {
		begin = (*exec.Cmd).Start
	}
	if err := begin(d.cmd); err != nil {
		return fmt.Errorf("start %s: %w", d.name, err)
	}
	d.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		_ = cmd.Wait()
		close(done)
	}(d.cmd, d.done)
	return nil
}

// Alive reports whether the process runs.
func (d *Daemon) Alive() bool {
	if d.done == nil {
		return false
	}
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// PID is the process started last.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Kill ends the process with SIGKILL and waits for its end.
func (d *Daemon) Kill() {
	if d.Alive() {
		_ = d.cmd.Process.Kill()
		<-d.done
	}
}

// Reload asks the process to read its configuration anew.
func (d *Daemon) Reload() error { return d.cmd.Process.Signal(syscall.SIGHUP) }

// Stop asks the process to end, and kills it when it has not after 5 s.
func (d *Daemon) Stop() {
	if !d.Alive() {
		return
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.done:
	case <-time.After(5 * time.Second):
		d.Kill()
	}
}

// Process is one running process of the private machine.
type Process struct {
	PID     int
	Command string
}

func (p Process) String() string { return fmt.Sprintf("%d %s", p.PID, p.Command) }

// Processes lists the processes of the private machine, without the harness, the first process,
// the daemons of the cluster, and zombies.
func (c *Cluster) Processes() []Process {
	own := map[int]bool{}
	for _, d := range c.all() {
		if d.Alive() {
			own[d.PID()] = true
		}
	}
	var out []Process
	for _, p := range processes() {
		// slurmctld runs its scripts through a helper of its own.
		if !own[p.PID] && !strings.HasSuffix(p.Command, "slurmscriptd") {
			out = append(out, p)
		}
	}
	return out
}

// processes are those of this private machine, which all have its network.
func processes() []Process {
	var out []Process
	network, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == 1 || pid == os.Getpid() || pid == os.Getppid() {
			continue
		}
		if its, err := os.Readlink(dir + "/ns/net"); err != nil || its != network {
			continue
		}
		line, err := os.ReadFile(dir + "/cmdline")
		if err != nil || len(line) == 0 { // gone, or a zombie
			continue
		}
		out = append(out, Process{pid, strings.TrimRight(strings.ReplaceAll(string(line), "\x00", " "), " ")})
	}
	return out
}

// killStrays ends what the daemons left behind: steps and jobs.
func killStrays() {
	if !inside() {
		return
	}
	until(5*time.Second, 20*time.Millisecond, func() bool {
		left := processes()
		for _, p := range left {
			_ = syscall.Kill(p.PID, syscall.SIGKILL)
		}
		return len(left) == 0
	})
}
