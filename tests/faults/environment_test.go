// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/storm"
)

// environment is what can go wrong around a node's programs. Each is done while
// one job computes and one takes memory, and both must go on.
var environment = []struct {
	name  string
	quick bool // may be drawn for a short run
	do    func(n *node, stay [2]job)
}{
	{"disk of the ledger full", false, func(n *node, stay [2]job) { n.fullDisk(cluster.StateDir, stay) }},
	{"tmpfs of the grants full", false, func(n *node, stay [2]job) { n.fullDisk(cluster.RunDir, stay) }},
	{"no inode for the ledger", false, func(n *node, stay [2]job) { n.noInodes(cluster.StateDir, stay) }},
	{"no inode for the grants", false, func(n *node, stay [2]job) { n.noInodes(cluster.RunDir, stay) }},
	{"disk of the ledger read-only", false, func(n *node, stay [2]job) { n.failingDisk(syscall.EROFS, stay) }},
	{"EIO from the ledger's disk", false, func(n *node, stay [2]job) { n.failingDisk(syscall.EIO, stay) }},
	{"no descriptors for gresd", false, (*node).noDescriptors},
	{"clock a day ahead", false, func(n *node, stay [2]job) { n.clock(24*time.Hour, stay) }},
	{"clock a day back", false, func(n *node, stay [2]job) { n.clock(-24*time.Hour, stay) }},
	{"pids wrap", true, (*node).wrappedPIDs},
	{"OOM killer takes gresd", true, (*node).outOfMemory},
	{"reboot", false, (*node).reboot},
}

// tryEnvironment is try for a fault of the environment.
func (n *node) tryEnvironment(t *testing.T, i int) bool {
	outer := n.t
	defer func() { n.t = outer }()
	start := time.Now()
	e := environment[i]
	ok := t.Run(e.name, func(t *testing.T) {
		n.t = t
		n.takeTurns(false)
		undo := sync.OnceFunc(n.before(e.name))
		t.Cleanup(undo)
		stay := [2]job{n.submit(alice, 30, workScript), n.submit(bob, 30, takeScript)}
		n.working(30*time.Second, stay[0], stay[1])
		e.do(n, stay)
		if e.name != "reboot" {
			n.goesOn(30*time.Second, stay[0])
			n.working(30*time.Second, stay[1])
		}
		n.takesJobs(60 * time.Second)
		n.end(stay[0], stay[1])
		n.clean(60 * time.Second)
		n.sawItsLimit(stay[1])
		undo()
		n.report()
	})
	if long {
		t.Logf("%s: %.1f s, ok %v", e.name, time.Since(start).Seconds(), ok)
	}
	return ok
}

// before puts gresd on disks of its own, or behind a filter, while there are no jobs.
func (n *node) before(name string) (undo func()) {
	n.t.Helper()
	var dir string
	switch {
	case strings.HasPrefix(name, "EIO"), strings.HasSuffix(name, "read-only"):
		n.Gresd.Stop()
		watch := &storm.Watch{Decide: func(p storm.Point) storm.Verdict {
			if how := failing.Load(); how != 0 && p.File != "reply" {
				failed.Add(1)
				return storm.Verdict{Fail: syscall.Errno(how)}
			}
			return storm.Verdict{}
		}}
		n.Gresd.Begin = func(cmd *exec.Cmd) error { return watch.Start(cmd, []string{cluster.StateDir}) }
		n.must(n.Gresd.Start())
		return func() {
			n.Gresd.Stop()
			n.Gresd.Begin = nil
			n.must(n.Gresd.Start())
		}
	case strings.HasPrefix(name, "OOM"):
		if n.memory = newMemoryGroup(); n.memory.dir == "" {
			return func() {}
		}
		n.Gresd.Stop()
		n.Gresd.Begin = func(cmd *exec.Cmd) error {
			if err := cmd.Start(); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(n.memory.dir, "cgroup.procs"), strconv.AppendInt(nil, int64(cmd.Process.Pid), 10), 0o644)
		}
		n.must(n.Gresd.Start())
		return func() { n.must(os.Remove(n.memory.dir)) }
	case strings.Contains(name, "ledger"):
		dir = cluster.StateDir
	case strings.Contains(name, "grants"):
		dir = cluster.RunDir
	default:
		return func() {}
	}
	n.Gresd.Stop()
	n.must(unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32m,mode=755"))
	n.must(n.Gresd.Start())
	return func() {
		n.Gresd.Stop()
		n.must(unix.Unmount(dir, unix.MNT_DETACH))
		n.must(n.Gresd.Start())
	}
}

// drains submits jobs while nothing can be granted: one of them must get nothing, with
// a reason in gresd's log, and Slurm drains the node, as its Prolog has failed.
// After mend, an administrator resumes the node, and the job runs.
func (n *node) drains(stay [2]job, reason string, mend func()) {
	n.t.Helper()
	n.AllowDrain("Prolog error")
	size := n.Gresd.LogSize()
	drained := func() bool { return strings.Contains(n.NodeState(), "DRAIN") }
	var j job
	for granted := 0; !drained(); granted++ {
		if granted > 40 {
			n.t.Fatalf("%d jobs were granted in spite of the fault", granted)
		}
		if j.id != 0 {
			n.end(j)
		}
		j = n.submit(carol, 5, takeScript)
		n.eventually(30*time.Second, "the job runs, or Slurm drains the node", func() bool { return drained() || len(n.workers(j)) > 0 })
	}
	if said := n.Gresd.LogFrom(size); !strings.Contains(said, reason) {
		n.t.Errorf("gresd lacks %q: %s", reason, said)
	}
	if w := n.workers(j); len(w) > 0 {
		n.t.Errorf("job %d has processes on the card: %v", j.id, w)
	}
	n.goesOn(20*time.Second, stay[0])
	mend()
	n.resume()
	n.release(j) // Slurm holds a job whose Prolog has failed
	n.working(60*time.Second, j)
	n.end(j)
}

// requeues submits jobs while run_dir or state_dir is full, until Slurm requeues one. The first jobs
// can run: their records fit into the last page of the ledger's journal. The node stays in use.
// After mend the requeued job runs.
func (n *node) requeues(stay [2]job, reason string, mend func()) {
	n.t.Helper()
	size := n.Gresd.LogSize()
	var j job
	requeued := func() bool {
		facts, err := n.Job(j.id)
		return err == nil && facts["Restarts"] != "0"
	}
	for granted := 0; j.id == 0 || !requeued(); granted++ {
		if granted > 40 {
			n.t.Fatalf("%d jobs were granted in spite of the fault", granted)
		}
		if j.id != 0 {
			n.end(j)
		}
		j = n.submit(carol, 5, takeScript)
		n.eventually(60*time.Second, "the job runs, or is requeued", func() bool { return requeued() || len(n.workers(j)) > 0 })
	}
	if said := n.Gresd.LogFrom(size); !strings.Contains(said, reason) {
		n.t.Errorf("gresd lacks %q: %s", reason, said)
	}
	if state := n.NodeState(); strings.Contains(state, "DRAIN") {
		n.t.Errorf("the node is %s", state)
	}
	n.goesOn(20*time.Second, stay[0])
	mend()
	n.working(60*time.Second, j)
	n.end(j)
}

// lateScript starts many processes at once, each with a slot of its own, when it is
// told to.
const lateScript = "until [ -e go.$SLURM_JOB_ID ]; do sleep 0.1; done; " +
	"for i in $(seq 12); do " + cluster.Worker + " --alloc 64M --hold 2 2>&1 & done; wait; echo all done; sleep 600"

// resume is what an administrator does with a node that is drained.
func (n *node) resume() {
	n.t.Helper()
	n.eventually(20*time.Second, "the node is resumed", func() bool {
		_, err := n.Scontrol("update", "NodeName=vgpu-node", "State=RESUME")
		return err == nil && !strings.Contains(n.NodeState(), "DRAIN")
	})
	n.eventually(20*time.Second, "the checker sees it", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.slurm != nil && !strings.Contains(n.slurm.State, "DRAIN")
	})
	n.AllowDrain("")
}

func (n *node) fullDisk(dir string, stay [2]job) {
	n.t.Helper()
	late := n.submit(carol, 10, lateScript)
	n.eventually(20*time.Second, "the job has its grant", func() bool { return n.hasRecord(late) })
	filler := dir + "/filler"
	f, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY, 0o600)
	n.must(err)
	page := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(page)
	}
	n.must(f.Close())
	if !errors.Is(err, syscall.ENOSPC) {
		n.t.Fatal(err)
	}
	n.must(os.WriteFile(fmt.Sprintf("%s/go.%d", n.Home(carol), late.id), nil, 0o644))
	n.eventually(30*time.Second, "the processes end", func() bool { return strings.Contains(n.Output(carol, late.id), "all done") })
	n.firstProcessesRun(dir, late)
	n.requeues(stay, "no space left on device", func() { n.must(os.Remove(filler)) })
	n.end(late)
}

// firstProcessesRun: processes of a job that write into its cache for the first time
// when no page is to be had are not ended by the kernel. The first have their room,
// the others are told.
func (n *node) firstProcessesRun(dir string, j job) {
	n.t.Helper()
	out := n.Output(j.user, j.id)
	ran, refused := strings.Count(out, `"cmd":"hold"`), strings.Count(out, "no room left in gresd's run_dir")
	want := 8
	if dir == cluster.StateDir {
		want = 12
	}
	if strings.Contains(out, "Bus error") || strings.Count(out, `"result":0`) < want || ran+refused < 12 {
		n.t.Errorf("of 12 processes, with %s full, %d ran and %d were told that there is no room: %s", dir, ran, refused, out)
	}
}

// noInodes leaves no file to be made. A grant needs some in run_dir. The ledger's are
// there, and the node must take jobs as before; a gresd that is new wants a journal of
// its own.
func (n *node) noInodes(dir string, stay [2]job) {
	n.t.Helper()
	var files []string
	var err error
	n.must(unix.Mount("", dir, "", unix.MS_REMOUNT, "size=32m,nr_inodes=400"))
	for i := 0; err == nil; i++ {
		name := fmt.Sprintf("%s/filler.%d", dir, i)
		var f *os.File
		if f, err = os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			f.Close()
			files = append(files, name)
		}
	}
	if !errors.Is(err, syscall.ENOSPC) || len(files) < 100 {
		n.t.Fatal(err, len(files))
	}
	mend := func() {
		for _, name := range files {
			n.must(os.Remove(name))
		}
	}
	if dir == cluster.StateDir {
		n.takesJobs(30 * time.Second)
		n.Gresd.Kill()
		n.must(n.Gresd.Start())
	}
	n.requeues(stay, "no space left on device", mend)
}

// failing is the error of the ledger's disk, failed how many calls it has had.
var failing, failed atomic.Int64

// failingDisk fails each call on the ledger's disk. (A mount that is made read-only in
// its place would leave the journal, which is open, as it is: a disk does not.)
func (n *node) failingDisk(how syscall.Errno, stay [2]job) {
	n.t.Helper()
	before := failed.Load()
	failing.Store(int64(how))
	defer failing.Store(0)
	n.drains(stay, how.Error(), func() { failing.Store(0) })
	if failed.Load() == before {
		n.t.Error("no call failed")
	}
}

// noDescriptors leaves gresd with no descriptor to open for a while in which a job
// starts and one ends.
func (n *node) noDescriptors(stay [2]job) {
	n.t.Helper()
	ends := n.submit(carol, 10, holdScript)
	n.working(20*time.Second, ends)
	pid := n.Gresd.PID()
	var old unix.Rlimit
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	n.must(err)
	highest := 0
	for _, fd := range fds {
		number, _ := strconv.Atoi(fd.Name())
		highest = max(highest, number)
	}
	// No number below the limit is free but those of gaps.
	n.must(unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old))
	n.must(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(fds)), Max: old.Max}, nil))
	starts := n.submit(carol, 20, takeScript)
	n.end(ends)
	time.Sleep(2 * time.Second)
	if _, err := n.Status(); err == nil && highest < len(fds) {
		n.t.Errorf("gresd answers without a descriptor: the fault is none")
	}
	n.must(unix.Prlimit(pid, unix.RLIMIT_NOFILE, &old, nil))
	if n.Gresd.PID() != pid || !n.Gresd.Alive() {
		n.t.Fatal("gresd ended for want of descriptors")
	}
	n.working(60*time.Second, starts)
	n.end(starts)
	n.eventually(90*time.Second, "what ended is released", func() bool { return !n.hasRecord(ends) })
	_ = stay
}

func (n *node) hasRecord(j job) bool {
	entries, err := storm.ReadLedger(cluster.StateDir + "/ledger.json")
	_, there := entries[uint32(j.id)]
	return err != nil || there
}

// clock steps the wall clock of gresd and of the jobs' processes, and waits for the
// next comparison of gresd with Slurm. Not of slurmctld: after a step back it
// starts no job until its clock has caught up.
func (n *node) clock(d time.Duration, stay [2]job) {
	n.t.Helper()
	step := func(d time.Duration) {
		n.must(stepClock(n.Gresd.PID(), d))
		for _, j := range stay {
			for pid := range n.workers(j) {
				if err := stepClock(pid, d); err != nil && syscall.Kill(pid, 0) == nil {
					n.t.Errorf("clock of process %d: %v", pid, err)
				}
			}
		}
	}
	size := n.Gresd.LogSize()
	step(d)
	defer func() {
		step(0)
	}()
	j := n.submit(carol, 20, takeScript)
	n.working(60*time.Second, j)
	want := time.Now().Add(d).UTC().Format("2006-01-02")
	if said := n.Gresd.LogFrom(size); !strings.Contains(said, "time="+want) {
		n.t.Errorf("gresd's clock is not that of %s: %s", want, said)
	}
	time.Sleep(65 * time.Second) // gresd compares every minute
	n.goesOn(20*time.Second, stay[0])
	for _, j := range []job{j, stay[0], stay[1]} {
		if !n.hasRecord(j) {
			n.t.Errorf("job %d has lost its record when the clock was set by %s", j.id, d)
		}
	}
	n.end(j)
}

// wrappedPIDs lets the numbers of processes begin again, with those of processes
// that have just been killed among the first.
func (n *node) wrappedPIDs(stay [2]job) {
	n.t.Helper()
	const last = "/proc/sys/kernel/ns_last_pid" // of this namespace alone
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	n.must(err)
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	n.must(err)
	victim := n.worker(stay[0])
	n.must(os.WriteFile(last, strconv.AppendInt(nil, int64(most-20), 10), 0))
	n.takesJobs(60 * time.Second)
	out, err := exec.Command("sh", "-c", "echo $$").Output()
	n.must(err)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(out))); err != nil || pid > most/2 {
		n.t.Fatalf("pid %d, %v: the numbers have not wrapped", pid, err)
	}
	// The next worker of the job, or a neighbour in time, has the number of the dead.
	_ = syscall.Kill(victim, syscall.SIGKILL)
	n.eventually(10*time.Second, "the number is free", func() bool { return syscall.Kill(victim, 0) != nil })
	n.must(os.WriteFile(last, strconv.AppendInt(nil, int64(victim-1), 10), 0))
	n.working(20*time.Second, stay[0])
}

// memoryGroup is a memory cgroup (v1 or v2) for gresd alone; "" where none can be made.
type memoryGroup struct{ dir, limit, usage string }

func newMemoryGroup() (g memoryGroup) {
	for root, files := range map[string][2]string{
		"/sys/fs/cgroup/memory": {"memory.limit_in_bytes", "memory.usage_in_bytes"},
		"/sys/fs/cgroup":        {"memory.max", "memory.current"},
	} {
		dir, err := os.MkdirTemp(root, "vgpu-oom-")
		if err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, files[0])); err == nil {
			return memoryGroup{dir, filepath.Join(dir, files[0]), filepath.Join(dir, files[1])}
		}
		_ = os.Remove(dir)
	}
	return memoryGroup{}
}

// outOfMemory lets the kernel's OOM killer end gresd, which before has put into a
// cgroup; where there is none, SIGKILL, as which gresd would see it.
func (n *node) outOfMemory(_ [2]job) {
	n.t.Helper()
	defer func() { n.must(n.Gresd.Start()) }()
	g := n.memory
	if g.dir == "" {
		n.t.Log("no memory cgroup can be made here: gresd is killed by SIGKILL in place of the OOM killer")
		n.Gresd.Kill()
		return
	}
	n.Gresd.Begin = nil // the next one is outside
	usage, err := os.ReadFile(g.usage)
	n.must(err)
	n.must(os.WriteFile(g.limit, usage, 0o644))
	// Many long requests at once need memory.
	var open []net.Conn
	for end := time.Now().Add(20 * time.Second); n.Gresd.Alive() && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("unix", cluster.RunDir+"/gresd.sock"); err == nil {
			_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			_, _ = conn.Write(bytes.Repeat([]byte(" "), 60<<10))
			open = append(open, conn)
		}
	}
	for _, conn := range open {
		conn.Close()
	}
	if n.Gresd.Alive() {
		n.t.Error("gresd lives without memory to be had")
		n.Gresd.Kill()
	}
	if stat := n.Gresd.State(); !strings.Contains(stat, "killed") {
		n.t.Errorf("gresd ended by %q, want the OOM killer", stat)
	}
}

// reboot takes the node's power away while jobs run.
func (n *node) reboot(stay [2]job) {
	n.t.Helper()
	// slurmctld looks for lost jobs among those that are older than the sum.
	time.Sleep(2*bootTimeout + 2*time.Second)
	n.mu.Lock() // no look at a card that is being made
	err := n.Reboot()
	n.mu.Unlock()
	n.must(err)
	n.must(n.Rebooted())
	n.must(os.MkdirAll(scriptDir, 0o755))
	for _, j := range stay { // requeued, and run anew
		n.working(120*time.Second, j)
	}
}
