// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// node is a gresd of our own. In slurmctld's place are two scripts that tell
// what the benchmark wrote into a folder.
type node struct {
	b      *bench
	number int // of the gresds of this run, from 1
	dir    string
	cmd    *exec.Cmd
	ended  chan struct{}
	client wire.Client
	engine string // that jobs ask for; "": none
	mends  []func()
}

// offersConcurrent is the key with which jobs of this node ask for the engine concurrent.
const offersConcurrent = `mps.engines = ["concurrent"]`

// ignoresSlices is a key of the benchmark: gresd takes all cards for such that ignore time slices.
const ignoresSlices = "bench.ignores_slices = true"

// ignoreSlices has gresd find the verdict of an earlier test, or the simulated driver refuse slices.
func (n *node) ignoreSlices(ctx context.Context) error {
	if n.b.sim {
		simgpu := func(ctx context.Context, command string) error {
			return exec.CommandContext(ctx, filepath.Join(n.b.build, "simgpu/bin/simgpu"), command, "--state", filepath.Join(n.b.dir, "card")).Run()
		}
		n.mends = append(n.mends, func() { _ = simgpu(context.WithoutCancel(ctx), "clear") })
		return simgpu(ctx, "refuse-slices")
	}
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=driver_version,uuid", "--format=csv,noheader").Output()
	if err != nil {
		return fmt.Errorf("nvidia-smi: %w", err)
	}
	verdicts := map[string]string{}
	for line := range strings.Lines(string(out)) {
		driver, uuid, _ := strings.Cut(strings.TrimSpace(line), ", ")
		verdicts[driver+"/"+uuid] = "ignored" // as gresd writes it
	}
	if err := os.Mkdir(n.path("state"), 0o700); err != nil {
		return err
	}
	return atomicfile.WriteJSON(n.path("state/slices.json"), verdicts)
}

// Files of the host that gresd makes when it starts; those that were not there
// are removed again.
var hostFiles = []string{"/run/vgpu/self/grant", "/run/vgpu/self/cache", "/run/vgpu/self", "/run/vgpu", "/etc/ld.so.preload"}

const scontrol = `#!/bin/sh
# scontrol --local show job -d -o ID
for id; do :; done
cat "%[1]s/jobs/$id" 2>/dev/null && exit
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
`

const squeue = `#!/bin/sh
cd "%[1]s/jobs" || exit 1
for job in *; do
	[ ! -e "$job" ] || echo "$job RUNNING"
done
`

// prologWait is as long as a Prolog waits for gresd. The first grant of a new gresd waits for six
// writes to the disk, one after another. Each can take seconds if other programs fill the disk's queue.
const prologWait = 150 * time.Second

// nodeName is how Slurm would call this node.
const nodeName = "bench"

// startNode starts gresd. toml are keys of vgpu.toml, separated by
// semicolons: log.level = "debug"; mps.default_engine = "mps".
func startNode(ctx context.Context, b *bench, toml string) (n *node, err error) {
	if conn, err := net.Dial("unix", "/run/vgpu/gresd.sock"); err == nil {
		_ = conn.Close()
		return nil, errors.New("a gresd is running on this node: drain it, wait for its jobs to end, and stop gresd first")
	}
	b.nodes++
	dir := filepath.Join(b.dir, "g"+strconv.Itoa(b.nodes))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	n = &node{b: b, number: b.nodes, dir: dir, ended: make(chan struct{})}
	if strings.Contains(toml, offersConcurrent) {
		n.engine = string(gpu.Concurrent)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	for _, path := range hostFiles {
		if !exists(path) {
			n.mends = append(n.mends, func() { removeEmpty(path) })
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return n, err
	}
	if strings.Contains(toml, ignoresSlices) {
		toml = strings.ReplaceAll(toml, ignoresSlices, "")
		if err := n.ignoreSlices(ctx); err != nil {
			return n, err
		}
	}
	if err := n.writeFiles(toml); err != nil {
		return n, err
	}
	log, err := os.OpenFile(n.logFile(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return n, err
	}
	defer log.Close()
	n.cmd = exec.CommandContext(ctx, b.program("gresd"), "--config", n.path("vgpu.toml"))
	n.cmd.Env, n.cmd.Stdout, n.cmd.Stderr = b.env, log, log
	if b.sim {
		n.cmd.Env = append(slices.Clone(b.env), "LD_PRELOAD="+filepath.Join(b.dir, "simgpu/libsimrm.so"))
	}
	n.cmd.Cancel = func() error { return n.cmd.Process.Signal(syscall.SIGTERM) }
	n.cmd.WaitDelay = 5 * time.Second
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := n.cmd.Start(); err != nil {
		n.cmd = nil
		return n, fmt.Errorf("start gresd: %w", err)
	}
	go func() { _ = n.cmd.Wait(); close(n.ended) }()
	n.client = wire.Client{Socket: n.path("run/gresd.sock"), Timeout: prologWait}
	return n, n.await(ctx)
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// logFile is beside the results, for whoever wonders about them.
func (n *node) logFile() string {
	return filepath.Join(n.b.options.out, fmt.Sprintf("gresd-%d.log", n.number))
}

func (n *node) writeFiles(toml string) error {
	if err := os.Mkdir(n.path("jobs"), 0o755); err != nil {
		return err
	}
	nvml := ""
	if n.b.sim {
		nvml = fmt.Sprintf("[nvml]\nlibrary = %q\n", filepath.Join(n.b.dir, "simgpu/libnvidia-ml.so.1"))
	}
	conf := fmt.Sprintf("version = 1\nmetrics.listen = \"\"\narbiter.slice_test = false\n%s\n[paths]\nrun_dir = %q\nstate_dir = %q\nlibrary = %q\n[slurm]\nscontrol = %q\n%s",
		strings.ReplaceAll(toml, ";", "\n"), n.path("run"), n.path("state"), n.b.program("libvgpu.so"), n.path("scontrol"), nvml)
	for _, f := range []struct {
		name, text string
		mode       os.FileMode
	}{
		{"vgpu.toml", conf, 0o644},
		{"scontrol", fmt.Sprintf(scontrol, n.dir), 0o755},
		{"squeue", fmt.Sprintf(squeue, n.dir), 0o755},
	} {
		if err := os.WriteFile(n.path(f.name), []byte(f.text), f.mode); err != nil {
			return err
		}
	}
	return nil
}

// startWait is TimeoutStartSec of gresd.service.
const startWait = 90 * time.Second

// await waits until gresd answers.
func (n *node) await(ctx context.Context) error {
	for end := time.Now().Add(startWait); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if rep, err := n.client.Do(ctx, wire.Request{Op: wire.OpStatus}); err == nil && rep.Status != nil && rep.Status.Ready {
			return nil
		}
		select {
		case <-n.ended:
			return n.failed("ended at once")
		default:
		}
	}
	return n.failed(fmt.Sprintf("not ready after %s", startWait))
}

// failed adds the end of the log.
func (n *node) failed(what string) error {
	text, _ := os.ReadFile(n.logFile()) // without it the error is shorter
	if len(text) > 800 {
		text = text[len(text)-800:]
	}
	return fmt.Errorf("gresd: %s: %s", what, strings.TrimSpace(string(text)))
}

// facts is what scontrol says of a job that holds shards of its cards.
func (n *node) facts(id uint32, t tenant) string {
	held := slices.Repeat([]string{"0/100"}, int(n.b.gpu))
	for range t.cards() {
		held = append(held, fmt.Sprintf("%d/100", t.share))
	}
	return fmt.Sprintf("JobId=%d JobName=bench UserId=%s(%d) GroupId=%s(%d) MCS_label=N/A Account=(null) JobState=RUNNING "+
		"Restarts=0 BatchFlag=1 Partition=bench NodeList=%s NumNodes=1   Nodes=%s CPU_IDs=0 Mem=0 GRES=shard:%d(%s) MinCPUsNode=1 \n",
		id, n.b.user, n.b.uid, n.b.user, n.b.gid, nodeName, nodeName, t.share*t.cards(), strings.Join(held, ","))
}

// grant makes a job, as its Prolog would, and returns what its tasks get.
func (n *node) grant(ctx context.Context, t tenant) (id uint32, env []string, err error) {
	n.b.nextJob++
	id = n.b.nextJob
	if err := os.WriteFile(n.jobFile(id), []byte(n.facts(id, t)), 0o644); err != nil {
		return id, nil, err
	}
	cards := make([]int, t.cards())
	for i := range cards {
		cards[i] = int(n.b.gpu) + i
	}
	options := wire.Options{Mode: t.mode, Priority: t.priority, Engine: n.engine}
	if len(cards) > 1 { // else it would be a share that slurmctld has split
		options.Cards = strconv.Itoa(len(cards))
	}
	rep, err := n.client.Do(ctx, wire.Request{
		Op: wire.OpGrant, JobID: id, UID: n.b.uid, GID: n.b.gid, User: n.b.user, GPUs: cards, Node: nodeName,
		Options: options,
	})
	switch {
	case err != nil:
		return id, nil, fmt.Errorf("grant: %w; %w", err, n.failed("the end of its log"))
	case rep.Result != wire.Granted:
		return id, nil, fmt.Errorf("grant of %d %%: gresd said %s: %s", t.share, rep.Result, rep.Message)
	}
	folder := n.path(fmt.Sprintf("run/jobs/%d", id))
	env = []string{
		"LD_PRELOAD=" + n.b.program("libvgpu.so"),
		"VGPU_GRANT=" + filepath.Join(folder, "grant"), "VGPU_CACHE=" + filepath.Join(folder, "cache"),
	}
	// What gresd wants its tasks to have besides, where it does: under MPS.
	more, err := os.ReadFile(filepath.Join(folder, "environment"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return id, nil, err
	}
	for _, line := range strings.Fields(string(more)) { // each process is a task
		env = append(env, wire.ForTask(line, t.processes()))
	}
	return id, env, nil
}

func (n *node) jobFile(id uint32) string { return filepath.Join(n.dir, "jobs", strconv.Itoa(int(id))) }

// release ends a job, as its Epilog would.
func (n *node) release(ctx context.Context, id uint32) error {
	_, err := n.client.Do(ctx, wire.Request{Op: wire.OpRelease, JobID: id, Node: nodeName})
	return errors.Join(err, os.Remove(n.jobFile(id)))
}

// left returns how many jobs gresd still holds, by its ledger and by their folders.
func (n *node) left(ctx context.Context) (int, error) {
	rep, err := n.client.Do(ctx, wire.Request{Op: wire.OpJobs})
	if err != nil {
		return 0, err
	}
	folders, err := os.ReadDir(n.path("run/jobs"))
	return max(len(rep.Jobs), len(folders)), err
}

// daemonUse is what gresd has taken of the node's processors.
type daemonUse struct {
	cpu     time.Duration
	wakeups int64 // how often its threads gave up a processor of their own accord
}

// use is what gresd has taken so far.
func (n *node) use() (u daemonUse, err error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", n.cmd.Process.Pid))
	if err != nil || len(tasks) == 0 {
		return u, fmt.Errorf("processor time of gresd: no threads: %w", err)
	}
	for _, task := range tasks {
		times, err1 := os.ReadFile(task + "/schedstat")
		status, err2 := os.ReadFile(task + "/status")
		if err1 != nil || err2 != nil { // the thread has ended
			continue
		}
		ns, _, _ := strings.Cut(string(times), " ")
		_, rest, _ := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
		switches, _, _ := strings.Cut(rest, "\n")
		spent, err1 := strconv.ParseInt(ns, 10, 64)
		woken, err2 := strconv.ParseInt(strings.TrimSpace(switches), 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return u, fmt.Errorf("processor time of gresd: read %s: %w", task, err)
		}
		u.cpu += time.Duration(spent)
		u.wakeups += woken
	}
	return u, nil
}

// removeEmpty removes an empty file or folder, and leaves any other alone.
func removeEmpty(path string) {
	if info, err := os.Lstat(path); err == nil && (info.IsDir() || info.Size() == 0) {
		_ = os.Remove(path) // a folder that is in use stays
	}
}

// close stops gresd and removes what it made on the host.
func (n *node) close() error {
	var err error
	if n.cmd != nil {
		select {
		case <-n.ended:
			err = n.failed("ended before its time")
		default:
			_ = n.cmd.Process.Signal(syscall.SIGTERM) // it may end just now
			select {
			case <-n.ended:
			case <-time.After(10 * time.Second):
				_ = n.cmd.Process.Kill() // the same
				<-n.ended
				err = n.failed("did not stop within 10 s")
			}
		}
	}
	for _, mend := range n.mends {
		mend()
	}
	return err
}
