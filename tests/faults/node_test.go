// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// Users that every Debian has.
const (
	alice = "www-data"
	bob   = "games"
	carol = "nobody"
)

var uids = map[string]uint32{alice: 33, bob: 5, carol: 65534}

const (
	gib       = 1 << 30
	scriptDir = cluster.Dir + "/phase" // where Prolog and Epilog say that they are at work
)

// siteScript is Prolog and Epilog: those of an installation between two moments
// of which a test can hear, so that faults hit them at all.
const siteScript = `#!/bin/bash
touch ` + scriptDir + `/${SLURM_SCRIPT_CONTEXT%%_*}.$SLURM_JOB_ID
sleep "$(cat ` + scriptDir + `/before)"
` + cluster.Dir + `/bin/vgpu-prolog || exit
sleep "$(cat ` + scriptDir + `/after)"
`

// node is a cluster of one card under a checker. Its errors end the test.
type node struct {
	*cluster.Cluster
	*Checker
	t      *testing.T
	turns  bool
	memory memoryGroup
	logs   string
}

// slurmConf: the daemons may be away for a while without the node being called
// down, and a job whose node has lost it is found soon.
const slurmConf = `Prolog=` + cluster.Dir + `/bin/site-hook
Epilog=` + cluster.Dir + `/bin/site-hook
SlurmdTimeout=120
SlurmctldTimeout=120
MessageTimeout=5
BatchStartTimeout=5
`

// bootTimeout is each of the last two.
const bootTimeout = 5 * time.Second

func up(t *testing.T, more string) *node {
	t.Helper()
	folder := "../../build/faults"
	if own := os.Getenv("VGPU_E2E_LOGS"); own != "" {
		folder = own
	}
	logs, err := filepath.Abs(filepath.Join(folder, strings.ReplaceAll(t.Name(), "/", "_")))
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Up(cluster.Options{
		Cards: []cluster.Card{{Name: "Simulated H100", Memory: "80G"}}, Logs: logs,
		Config: "[arbiter]\nslice_test = false\n" + more, Slurm: slurmConf, Without: []string{"Prolog=", "Epilog="},
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Cluster: c, t: t, logs: logs}
	t.Cleanup(func() {
		if n.Checker != nil {
			n.Stop()
			n.report()
		}
		if t.Failed() {
			t.Logf("logs are in %s; their ends:\n%s", logs, c.Tail(15))
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if !t.Failed() {
			_ = os.RemoveAll(logs)
		}
	})
	n.must(os.MkdirAll(scriptDir, 0o755))
	n.must(os.WriteFile(cluster.Dir+"/bin/site-hook", []byte(siteScript), 0o755))
	n.pause(0, 0)
	name, err := HostName()
	n.must(err)
	n.Checker, err = Watch(name, 50*time.Millisecond)
	n.must(err)
	return n
}

// report fails the test for what the checker has found.
func (n *node) report() {
	n.t.Helper()
	for _, w := range n.Wrong() {
		n.t.Errorf("checker: %s", w)
	}
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// pause makes Prolog and Epilog wait before and after the work of vgpu-prolog.
func (n *node) pause(before, after time.Duration) {
	for name, length := range map[string]time.Duration{"before": before, "after": after} {
		path := filepath.Join(scriptDir, name)
		n.must(os.WriteFile(path+".new", fmt.Appendf(nil, "%.3f", length.Seconds()), 0o644))
		n.must(os.Rename(path+".new", path)) // a script may be reading it: never an empty one
	}
}

// eventually fails the test unless ok becomes true in time.
func (n *node) eventually(limit time.Duration, what string, ok func() bool) {
	n.t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("not within %s: %s\nqueue: %s\nnode: %s", limit, what, n.queue(), n.NodeState())
		}
	}
}

func (n *node) queue() string {
	return n.As("root", "squeue", "-a").Out
}

// job is one that was submitted.
type job struct {
	id    int
	user  string
	share int
}

// submit submits a job and tells the checker what it asked for. slurmctld may be
// away: as users do, it is tried again.
func (n *node) submit(user string, share int, script string) job {
	n.t.Helper()
	var id int
	var err error
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(300 * time.Millisecond) {
		// Held until the checker knows of it.
		if id, err = n.Sbatch(user, []string{"--hold", "--requeue", fmt.Sprintf("--gres=vgpu:%d", share)}, script); err == nil {
			break
		}
		if time.Now().After(end) {
			n.t.Fatal(err)
		}
	}
	j := job{id, user, share}
	n.Expect(id, Want{UID: uids[user], Share: share, Memory: uint64(share) * 80 * gib / 100})
	n.release(j)
	return j
}

func (n *node) release(j job) {
	n.t.Helper()
	n.eventually(60*time.Second, fmt.Sprintf("job %d is released", j.id), func() bool {
		_, err := n.Scontrol("release", strconv.Itoa(j.id))
		return err == nil
	})
}

// working waits until the jobs have a context on the card.
func (n *node) working(limit time.Duration, jobs ...job) {
	n.t.Helper()
	for _, j := range jobs {
		n.eventually(limit, fmt.Sprintf("job %d has a process on the card", j.id), func() bool { return len(n.workers(j)) > 0 })
	}
}

// workers are the processes of a job that have a context, with their GPU time.
func (n *node) workers(j job) map[int]uint64 {
	n.mu.Lock()
	o := n.eyes.Look()
	n.mu.Unlock()
	out := map[int]uint64{}
	for _, card := range o.Cards {
		for _, c := range card.Contexts {
			if o.Jobs[c.PID] == uint32(j.id) {
				out[c.PID] = c.BusyNS
			}
		}
	}
	return out
}

// goesOn waits until a job has computed more.
func (n *node) goesOn(limit time.Duration, j job) {
	n.t.Helper()
	start := n.workers(j)
	n.eventually(limit, fmt.Sprintf("job %d goes on", j.id), func() bool {
		for pid, busy := range n.workers(j) {
			if busy > start[pid] {
				return true
			}
		}
		return false
	})
}

// end cancels jobs, again and again while slurmctld does not hear it or, just
// started, forgets it.
func (n *node) end(jobs ...job) {
	n.t.Helper()
	ids := map[string]bool{}
	for _, j := range jobs {
		ids[strconv.Itoa(j.id)] = true
	}
	next := time.Time{}
	n.eventually(60*time.Second, "jobs are cancelled", func() bool {
		if time.Now().After(next) {
			n.As("root", append([]string{"scancel"}, sortedKeys(ids)...)...)
			next = time.Now().Add(2 * time.Second)
		}
		r := n.As("root", "squeue", "-h", "-t", "PD,R,S,CF", "-o", "%i")
		return r.Code == 0 && !slices.ContainsFunc(strings.Fields(r.Out), func(id string) bool { return ids[id] })
	})
}

// clean waits until nothing is left of any job, and checks it.
func (n *node) clean(limit time.Duration) {
	n.t.Helper()
	n.eventually(limit, "the node is idle", func() bool { return n.NodeState() == "IDLE" })
	for _, left := range n.Leftovers(limit) {
		n.t.Errorf("left at the end: %s", left)
	}
	for _, w := range n.Released() {
		n.t.Error(w)
	}
}

// takesJobs runs a job that looks at its limit, as the first after a fault.
func (n *node) takesJobs(limit time.Duration) {
	n.t.Helper()
	j := n.submit(carol, 20, cluster.LookScript)
	n.eventually(limit, fmt.Sprintf("job %d runs after the fault", j.id), func() bool { return len(cluster.Looks(n.Output(carol, j.id))) > 0 })
	n.sawItsLimit(j)
}

// sawItsLimit checks what a job has said that it saw and got.
func (n *node) sawItsLimit(j job) {
	n.t.Helper()
	limit := uint64(j.share) * 80 * gib / 100
	for i, look := range cluster.Looks(n.Output(j.user, j.id)) {
		if look.Total != limit || look.NVMLTotal != limit || look.Granted > limit || look.Refusal == "" {
			n.t.Errorf("job %d, look %d: %+v, want a limit of %d", j.id, i, look, limit)
		}
	}
}

// find waits for a process whose command line starts so, and has the word.
func (n *node) find(prefix, word string) int {
	n.t.Helper()
	pid := 0
	n.eventually(20*time.Second, "a process "+prefix+" "+word, func() bool {
		for _, p := range n.Processes() {
			if strings.HasPrefix(p.Command, prefix) && strings.Contains(p.Command, word) {
				pid = p.PID
				return true
			}
		}
		return false
	})
	return pid
}

// runs says whether there is a process whose command line starts so.
func (n *node) runs(prefix string) bool {
	return slices.ContainsFunc(n.Processes(), func(p cluster.Process) bool { return strings.HasPrefix(p.Command, prefix) })
}

// stepd is the slurmstepd of a batch job.
func (n *node) stepd(j job) int { return n.find("slurmstepd: ["+strconv.Itoa(j.id)+".", "") }

// worker is a process of a job on the card.
func (n *node) worker(j job) int {
	n.t.Helper()
	n.working(20*time.Second, j)
	found := 0
	// Some jobs run one process after another.
	n.eventually(20*time.Second, fmt.Sprintf("a process of job %d is on the card", j.id), func() bool {
		for pid := range n.workers(j) {
			found = pid
			return true
		}
		return false
	})
	return found
}

// stopped stops a process for a while.
func (n *node) stopped(pid int, d time.Duration) {
	n.t.Helper()
	n.must(syscall.Kill(pid, syscall.SIGSTOP))
	time.Sleep(d)
	_ = syscall.Kill(pid, syscall.SIGCONT)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
