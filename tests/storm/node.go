// SPDX-License-Identifier: Apache-2.0

// Package storm runs the real gresd on simulated cards, without a Slurm, for
// storms of grants and releases: tests that kill it at any point, and a tool that
// measures it under load. What the Prologs and Epilogs of jobs would ask is asked
// over gresd's socket, and a small program plays scontrol and squeue.
package storm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

const (
	// NodeName is what Slurm would call the node.
	NodeName = "n1"
	// CardMiB is the memory of each simulated card.
	CardMiB = 80 << 10

	// startWait is how long systemd lets gresd start (TimeoutStartSec of gresd.service).
	startWait = 90 * time.Second
	// answerWait is how long a Prolog waits for the answer of a gresd that runs (spank/prolog).
	answerWait = 150 * time.Second
)

// Node is one node with its cards and its jobs. Call cluster.Enter first: gresd
// also uses paths that cannot be configured.
type Node struct {
	Dir   string // of everything but the ledger
	State string // gresd's state_dir
	Cards int
	// Watch, if set, is told of each point of gresd from the next Start on.
	Watch *Watch
	// Favour and CPUs, if set, are for gresd and what it starts: a priority as that
	// of nice, and the processors that it may use.
	Favour int
	CPUs   []int
	// Env, if set, is more of gresd's environment.
	Env []string

	build string
	cmd   *exec.Cmd
	done  chan struct{}
}

// Job is one job as slurmctld knows it: a share of one card.
type Job struct {
	ID, UID uint32
	Card    int
	Share   int // hundredths of the card
	MemMiB  int // 0: as much as the share
}

// contextCosts are the costs of a context for the simulated driver and its card models. With this
// file, gresd starts no process to measure them.
const contextCosts = `{
"580.159.04/Simulated": {"context_bytes": 543162368, "uncounted_bytes": 9437184, "idle": true},
"580.159.04/NVIDIA H100 80GB HBM3": {"context_bytes": 543162368, "uncounted_bytes": 9437184, "idle": true}}`

// New makes a node in an empty folder. build is the folder of built programs;
// more are lines for vgpu.toml.
func New(build, dir, state string, cards int, more string) (*Node, error) {
	n := &Node{Dir: dir, State: state, Cards: cards, build: build}
	for _, d := range []string{filepath.Join(dir, "slurm/jobs"), filepath.Join(dir, "sim/lib"), state} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(state, "context.json"), []byte(contextCosts), 0o600); err != nil {
		return nil, err
	}
	for from, to := range map[string]string{
		"tests/vgpu-storm-slurm": "slurm/scontrol", "simgpu/lib/libnvidia-ml.so.1": "sim/lib/libnvidia-ml.so.1",
		"simgpu/lib/libcuda.so.1": "sim/lib/libcuda.so.1",
	} {
		data, err := os.ReadFile(filepath.Join(build, from))
		if err != nil {
			return nil, fmt.Errorf("%w (run make first)", err)
		}
		if err := os.WriteFile(filepath.Join(dir, to), data, 0o755); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"squeue", "scancel", "slurmstepd"} {
		if err := os.Link(filepath.Join(dir, "slurm/scontrol"), filepath.Join(dir, "slurm", name)); err != nil {
			return nil, err
		}
	}
	machine := fmt.Sprintf("version = 1\n[model]\nname = \"Simulated\"\ntype = \"sim\"\nmemory = \"%dM\"\n", CardMiB)
	for i := range cards {
		machine += fmt.Sprintf("[[card]]\npci = \"00000000:%02X:00.0\"\n", i+1)
	}
	conf := fmt.Sprintf(`version = 1
[paths]
run_dir = %q
state_dir = %q
library = %q
[nvml]
library = %q
[slurm]
scontrol = %q
`, n.run(), state, filepath.Join(build, "lib/libvgpu.so"), filepath.Join(dir, "sim/lib/libnvidia-ml.so.1"), filepath.Join(dir, "slurm/scontrol"))
	// Its processes are not to be seen beside what is watched.
	for table, line := range map[string]string{"[metrics]": `listen = ""`, "[arbiter]": "slice_test = false"} {
		if !strings.Contains(more, table) {
			conf += table + "\n" + line + "\n"
		}
	}
	for name, text := range map[string]string{"sim/machine.toml": machine, "vgpu.toml": conf + more} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	tool := exec.Command(filepath.Join(build, "simgpu/bin/simgpu"), "init",
		"--state", filepath.Join(dir, "sim/state"), "--config", filepath.Join(dir, "sim/machine.toml"))
	if out, err := tool.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("simgpu init: %w: %s", err, out)
	}
	return n, nil
}

func (n *Node) run() string { return filepath.Join(n.Dir, "run") }

// JobsDir has a folder for each job that holds a share.
func (n *Node) JobsDir() string { return filepath.Join(n.run(), "jobs") }

// Ledger is the file that survives a reboot.
func (n *Node) Ledger() string { return filepath.Join(n.State, "ledger.json") }

// Log is what gresd has said.
func (n *Node) Log() string { return filepath.Join(n.Dir, "gresd.log") }

// Client talks to gresd.
func (n *Node) Client() *wire.Client {
	return &wire.Client{Socket: filepath.Join(n.run(), "gresd.sock"), Timeout: answerWait}
}

// ErrEnded says that gresd ended before it was ready.
var ErrEnded = errors.New("gresd ended before it was ready")

// Start starts gresd and waits until it serves grants.
func (n *Node) Start() error {
	log, err := os.OpenFile(n.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(n.build, "bin/gresd"), "--config", filepath.Join(n.Dir, "vgpu.toml"))
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, n.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if n.Watch != nil {
		err = n.Watch.Start(cmd, []string{n.run(), n.State})
	} else {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("start gresd: %w", err)
	}
	done := make(chan struct{})
	n.cmd, n.done = cmd, done
	if err := errors.Join(Favour(cmd.Process.Pid, n.Favour), Pin(cmd.Process.Pid, n.CPUs)); err != nil {
		return err
	}
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	client := n.Client()
	client.Timeout = startWait
	for end := time.Now().Add(startWait); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if !n.Alive() {
			return ErrEnded
		}
		rep, err := client.Do(context.Background(), wire.Request{Op: wire.OpStatus})
		if err == nil && rep.Status.Ready {
			return nil
		}
	}
	return fmt.Errorf("gresd is not ready after %s", startWait)
}

// PID is that of the gresd started last.
func (n *Node) PID() int { return n.cmd.Process.Pid }

// Alive says whether gresd runs.
func (n *Node) Alive() bool {
	if n.done == nil {
		return false
	}
	select {
	case <-n.done:
		return false
	default:
		return true
	}
}

// Wait waits for the end of gresd.
func (n *Node) Wait() { <-n.done }

// Kill ends gresd with SIGKILL.
func (n *Node) Kill() { n.end(syscall.SIGKILL) }

// Stop asks gresd to end.
func (n *Node) Stop() { n.end(syscall.SIGTERM) }

func (n *Node) end(signal syscall.Signal) {
	if n.done == nil {
		return
	}
	_ = n.cmd.Process.Signal(signal)
	<-n.done
}

// Submit makes a job live in Slurm.
func (n *Node) Submit(job Job) error {
	cards := make([]string, n.Cards)
	for i := range cards {
		cards[i] = "0/100"
	}
	cards[job.Card] = fmt.Sprintf("%d/100", job.Share)
	mem := ""
	if job.MemMiB != 0 {
		mem = fmt.Sprintf("mem=%dM,", job.MemMiB)
	}
	text := fmt.Sprintf("JobId=%d JobName=storm UserId=user%d(%d) GroupId=users(100) MCS_label=N/A Account=(null) JobState=RUNNING "+
		"Restarts=0 BatchFlag=0 Partition=gpu NodeList=%s   Nodes=%s CPU_IDs=0 Mem=0 GRES=shard:sim:%d(%s) MinCPUsNode=1 "+
		"Comment=vgpu(%sshare=%d) TresPerNode=gres/shard:%d\n",
		job.ID, job.UID, job.UID, NodeName, NodeName, job.Share, strings.Join(cards, ","), mem, job.Share, job.Share)
	return os.WriteFile(n.slurmJob(job.ID), []byte(text), 0o644)
}

// End ends a job in Slurm, after its Epilog.
func (n *Node) End(id uint32) error {
	err := os.Remove(n.slurmJob(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Slurmstepd starts a process of a job, which ends with the caller at the latest.
func (n *Node) Slurmstepd(id uint32) (end func(), err error) {
	cmd := exec.Command(filepath.Join(n.Dir, "slurm/slurmstepd"))
	cmd.Args = []string{fmt.Sprintf("slurmstepd: [%d.batch]", id)}
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	end = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	return end, cmd.Start()
}

func (n *Node) slurmJob(id uint32) string {
	return filepath.Join(n.Dir, "slurm/jobs", fmt.Sprint(id))
}

// Prolog asks as the Prolog of a job does.
func (n *Node) Prolog(ctx context.Context, job Job) (wire.Reply, error) {
	return n.Client().Do(ctx, wire.Request{
		Op: wire.OpGrant, JobID: job.ID, UID: job.UID, GID: 100, GPUs: []int{job.Card}, Node: NodeName,
	})
}

// Epilog asks as the Epilog of a job does.
func (n *Node) Epilog(ctx context.Context, id uint32) (wire.Reply, error) {
	return n.Client().Do(ctx, wire.Request{Op: wire.OpRelease, JobID: id})
}
