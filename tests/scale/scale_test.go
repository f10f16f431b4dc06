// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
)

func TestMain(m *testing.M) {
	processor.Prefer()
	if err := cluster.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// size is how large the cluster is.
type size struct {
	nodes, queue int
	// real: gresd beats by itself, for so long a window each; 0: it does not, so many beats are
	// made one after the other, and only counts are looked at.
	window time.Duration
}

const (
	beats = 20
	// pingsPer is how often slurmctld pings each node: each third of SlurmdTimeout, 300 s.
	pingEvery = 100 * time.Second
	user      = "www-data"
)

func sizeOf(t *testing.T) size {
	t.Helper()
	if os.Getenv("VGPU_SCALE") == "" {
		return size{nodes: 4, queue: 50}
	}
	number := func(name string, usual int) int {
		n, err := strconv.Atoi(os.Getenv(name))
		if err != nil {
			return usual
		}
		return n
	}
	return size{
		nodes: number("VGPU_SCALE_NODES", 1000), queue: number("VGPU_SCALE_JOBS", 20000),
		window: time.Duration(number("VGPU_SCALE_WINDOW_S", 120)) * time.Second,
	}
}

// row is what slurmctld received in one phase.
type row struct {
	what    string
	took    time.Duration
	got     rpcs
	pings   int // that slurmctld sent in that time
	largest int // of ours in one second; -1: not looked at
}

// percent is how much ours is of what Slurm sends and receives by itself.
func (r row) percent() float64 {
	return 100 * float64(r.got.ours()) / float64(max(1, r.got.slurms()+r.pings))
}

// verdict holds a phase without starts or ends of jobs against what is promised.
func (r row) verdict(nodes int) error {
	switch {
	case r.got.whole() != 0:
		return fmt.Errorf("%s: %d questions for all of the cluster's jobs or nodes: %s", r.what, r.got.whole(), r.got)
	case r.percent() > 1:
		return fmt.Errorf("%s: %d questions beside %d of Slurm's own: want at most 1 %%: %s", r.what, r.got.ours(), r.got.slurms()+r.pings, r.got)
	case r.largest > max(1, nodes/20):
		return fmt.Errorf("%s: %d questions in one second", r.what, r.largest)
	}
	return nil
}

// rig is the cluster with its nodes.
type rig struct {
	*cluster.Cluster
	t *testing.T
	size
	all  []*node
	rows []row
	log  *os.File // of slurmd and gresd of all nodes
}

func TestManyNodes(t *testing.T) {
	free := freeMemory(t)
	r := up(t, sizeOf(t))
	r.queueUp()

	r.check(r.measure("idle", r.beat))

	started := r.measure("a share starts on each node", func() { r.shares() })
	// scontrol loads the table of nodes as well, once, to print which card a job has. One that
	// does not answer within a second is not waited for, and another asks.
	if n := started.got["REQUEST_JOB_INFO_SINGLE"]; n < r.nodes || n > 4*r.nodes || started.got["REQUEST_NODE_INFO"] > n || started.got["REQUEST_JOB_INFO"] != 0 {
		t.Errorf("%d questions for %d jobs with a share: %s", n, r.nodes, started.got)
	}
	r.check(r.measure("shares run", r.beat))
	t.Logf("%d MiB of memory are taken with a share on each node", (free-freeMemory(t))>>20)

	r.check(r.measure("gresd starts again everywhere", func() { r.restart(); r.beat() }))

	// Epilogs that no gresd heard.
	for _, n := range r.all {
		n.stop()
	}
	r.endShares()
	lost := r.measure("gresd starts where shares have ended", func() { r.restart(); r.beat() })
	most := r.nodes + r.nodes/10
	if r.window == 0 {
		most = 2 * r.nodes // of few nodes, all may be asked twice, as above
	}
	if n := lost.got.ours(); n < r.nodes || n > most || lost.got.whole() != 0 || lost.largest > max(2, r.nodes/5) {
		t.Errorf("%d questions about %d lost Epilogs, %d in one second: %s", n, r.nodes, lost.largest, lost.got)
	}
	for _, n := range r.all {
		if left := n.records.Len(); left != 0 {
			t.Errorf("node %s: %d records are left", n.name, left)
		}
	}

	told := r.measure("a job is told why it waits", func() {
		if err := slurm.New(slurm.Options{}).Explain(context.Background(), 1, "vgpu: place: none"); err != nil {
			t.Error(err)
		}
	})
	if told.got.whole() != 0 || told.got.ours() > 4 {
		t.Errorf("to tell one job took %s", told.got)
	}

	// What gresd did before, and what must not pass.
	storm := r.measure("each node lists its jobs by squeue", r.storm)
	if storm.verdict(r.nodes) == nil {
		t.Errorf("squeue of each node each minute passes: %s", storm.got)
	}
	r.table()
}

// freeMemory is what the machine can still give, in bytes.
func freeMemory(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "MemAvailable:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

func (r *rig) check(row row) {
	r.t.Helper()
	if err := row.verdict(r.nodes); err != nil {
		r.t.Error(err)
	}
}

func up(t *testing.T, s size) *rig {
	t.Helper()
	wrapper := folder + "/prolog"
	first, last := nodeName(0), nodeName(s.nodes-1)
	c, err := cluster.Up(cluster.Options{
		Cards: []cluster.Card{{Name: "Simulated", Memory: "80G"}}, NoPlugin: true, Logs: logs(t),
		Without: []string{"Prolog=", "Epilog=", "TaskProlog=", "HealthCheckProgram=", "CliFilterPlugins=", "HealthCheckInterval="},
		Slurm: fmt.Sprintf("SlurmdTimeout=300\nHealthCheckInterval=0\nSlurmdDebug=info\nSlurmctldDebug=info\nMaxJobCount=100000\nMessageTimeout=60\nBatchStartTimeout=600\n"+
			"Prolog=%[1]s\nEpilog=%[1]s\n"+
			"NodeName=s[%[2]s-%[3]s] NodeAddr=127.0.0.1 Port=[20001-%[4]d] CPUs=4 RealMemory=1000 State=UNKNOWN Gres=gpu:sim:1,shard:sim:100\n"+
			"PartitionName=scale Nodes=s[%[2]s-%[3]s] State=UP\nPartitionName=queue Nodes=s[%[2]s-%[3]s] State=DOWN\n",
			wrapper, first[1:], last[1:], 20000+s.nodes),
	})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(logs(t), "nodes.log"))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Cluster: c, t: t, size: s, log: log}
	daemons := &slurmds{}
	t.Cleanup(func() {
		for _, n := range r.all {
			n.stop()
		}
		daemons.stop()
		_ = log.Close()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("#!/bin/sh\nexec %s/bin/vgpu-prolog --socket %s/$SLURMD_NODENAME/run/gresd.sock\n", cluster.Dir, folder)
	if err := os.WriteFile(wrapper, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	steps := &process.Steps{} // all nodes are on one host
	began := time.Now()
	for i := range s.nodes {
		n := newNode(nodeName(i), steps, s.window == 0)
		n.start(t, r.log)
		r.all = append(r.all, n)
		if err := daemons.start(n.name, "/etc/slurm/slurm.conf", log); err != nil {
			t.Fatal(err)
		}
		if i%20 == 19 {
			r.idle(i + 1) // not all at once on a small machine
		}
	}
	r.idle(s.nodes)
	t.Logf("%d nodes are up after %s", s.nodes, time.Since(began).Round(time.Second))
	return r
}

func logs(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../build/scale")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// idle waits until so many nodes have registered.
func (r *rig) idle(want int) {
	r.t.Helper()
	r.until("nodes are idle", func() bool {
		out, _ := exec.Command("sinfo", "-h", "-p", "scale", "-t", "idle", "-o", "%D").Output()
		n, _ := strconv.Atoi(strings.TrimSpace(string(out)))
		return n >= want
	})
}

func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute + time.Duration(r.nodes)*time.Second); !ok(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("never: %s\n%s", what, r.Tail(15))
		}
	}
}

// tasksOfArray fits slurm.conf's usual MaxArraySize.
const tasksOfArray = 1000

// queueUp fills the queue with jobs that cannot start. Arrays are quick to submit; a task has a record
// of its own once it is changed.
func (r *rig) queueUp() {
	r.t.Helper()
	began := time.Now()
	var changes strings.Builder
	for left := r.queue; left > 0; left -= tasksOfArray {
		n := min(left, tasksOfArray)
		done := r.As(user, "sbatch", "--parsable", "-p", "queue", "-o", "/dev/null", fmt.Sprintf("--array=1-%d", n), "--wrap", "true")
		if done.Code != 0 {
			r.t.Fatalf("sbatch: %s", done)
		}
		for i := range n {
			fmt.Fprintf(&changes, "update JobId=%s_%d Comment=x\n", done.Out, i+1)
		}
	}
	change := exec.Command("scontrol")
	change.Stdin = strings.NewReader(changes.String())
	if out, err := change.CombinedOutput(); err != nil {
		r.t.Fatalf("scontrol: %v: %.1000s", err, out)
	}
	r.t.Logf("%d jobs are in the queue after %s", r.queue, time.Since(began).Round(time.Second))
}

// measure looks at slurmctld before and after, and with a window each second between.
func (r *rig) measure(what string, do func()) row {
	r.t.Helper()
	before := r.received()
	ctx, cancel := context.WithCancel(context.Background())
	largest := make(chan int, 1)
	go func() { largest <- r.largest(ctx, before) }()
	began := time.Now()
	do()
	cancel()
	done := row{what: what, took: time.Since(began), got: r.received().since(before), largest: <-largest}
	if r.window == 0 {
		done.took = beats * time.Minute
	}
	done.pings = int(float64(r.nodes) * done.took.Seconds() / pingEvery.Seconds())
	r.rows = append(r.rows, done)
	return done
}

func (r *rig) received() rpcs {
	r.t.Helper()
	got, err := received()
	if err != nil {
		r.t.Fatal(err)
	}
	return got
}

// largest is the most of ours in one second.
func (r *rig) largest(ctx context.Context, last rpcs) int {
	if r.window == 0 {
		<-ctx.Done()
		return -1
	}
	most, at := 0, time.Now()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return most
		case <-tick.C:
		}
		if now, err := received(); err == nil {
			// sdiag may have waited itself.
			seconds := max(1, time.Since(at).Seconds())
			most = max(most, int(float64(now.since(last).ours())/seconds))
			last, at = now, time.Now()
		}
	}
}

// beat lets gresd of all nodes beat.
func (r *rig) beat() {
	if r.window != 0 {
		time.Sleep(r.window)
		return
	}
	for range beats {
		for _, n := range r.all {
			n.RunPeriodic(context.Background())
		}
	}
}

func (r *rig) restart() {
	r.t.Helper()
	for _, n := range r.all {
		n.stop()
	}
	for _, n := range r.all {
		n.start(r.t, r.log)
	}
}

// shares starts a job with a share on each node.
func (r *rig) shares() {
	r.t.Helper()
	cmd, err := r.Command(user, "sbatch", "-Q", "-p", "scale", "-o", "/dev/null", "-c4", "--gres=vgpu:60",
		"--array=1-"+strconv.Itoa(r.nodes), "--wrap", "exec sleep infinity")
	if err != nil {
		r.t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("sbatch: %v: %s", err, out)
	}
	r.until("each node has a share with a process", func() bool {
		for _, n := range r.all {
			records := n.records.List()
			if len(records) != 1 || !n.steps.Living([]uint32{records[0].JobID})[records[0].JobID] {
				return false
			}
		}
		return true
	})
}

func (r *rig) endShares() {
	r.t.Helper()
	if out, err := exec.Command("scancel", "-p", "scale").CombinedOutput(); err != nil {
		r.t.Fatalf("scancel: %v: %s", err, out)
	}
	r.until("their Epilogs have given up", func() bool {
		out, err := exec.Command("squeue", "-h", "-a", "-p", "scale").Output()
		return err == nil && len(out) == 0
	})
}

// storm is what each node asked each minute: all jobs of the cluster.
func (r *rig) storm() {
	work := make(chan string)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for name := range work {
				_ = exec.Command("squeue", "-h", "-a", "-w", name, "-t", "all", "-o", "%A %T").Run()
			}
		})
	}
	end := time.Now().Add(max(r.window/2, time.Second))
	for _, n := range r.all {
		if r.window != 0 && time.Now().After(end) {
			break
		}
		work <- n.name
	}
	close(work)
	workers.Wait()
}

func (r *rig) table() {
	out := fmt.Sprintf("%d nodes, %d jobs in the queue\n%-40s %8s %8s %8s %8s %9s %s\n", r.nodes, r.queue,
		"", "minutes", "Slurm's", "pings", "ours", "percent", "most in a second")
	for _, row := range r.rows {
		largest := "-"
		if row.largest >= 0 {
			largest = strconv.Itoa(row.largest)
		}
		out += fmt.Sprintf("%-40s %8.1f %8d %8d %8d %8.2f%% %s\n", row.what, row.took.Minutes(), row.got.slurms(), row.pings,
			row.got.ours(), row.percent(), largest)
	}
	for _, row := range r.rows {
		out += fmt.Sprintf("%s: %s\n", row.what, row.got)
	}
	r.t.Log("\n" + out)
}
