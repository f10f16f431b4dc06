// SPDX-License-Identifier: Apache-2.0

// Package slices tests what gresd finds out of a card that obeys time slices, or does not, and
// how it divides it then. There is no Slurm.
package slices

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/storm"
)

func TestMain(m *testing.M) {
	processor.Prefer()
	if err := cluster.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// node is a gresd and its only card.
type node struct {
	*storm.Node
	t     *testing.T
	m     *simgpu.Machine
	build string
	state string
}

// newNode makes a node whose gresd has not been started.
func newNode(t *testing.T, card simgpu.CardConfig) *node {
	t.Helper()
	return newNodeWith(t, card, "[arbiter]\nslice_test = true\n")
}

func newNodeWith(t *testing.T, card simgpu.CardConfig, more string) *node {
	t.Helper()
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/run", "slices-")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, build: build, state: filepath.Join(dir, "sim/state")}
	if n.Node, err = storm.New(build, dir, filepath.Join(dir, "state"), 1, more+"[log]\nlevel = \"debug\"\n"); err != nil {
		t.Fatal(err)
	}
	if err := simgpu.Init(n.state, simgpu.Config{Version: 1, Count: 1, Model: card}); err != nil {
		t.Fatal(err)
	}
	if n.m, err = simgpu.Open(n.state); err != nil {
		t.Fatal(err)
	}
	n.Env = []string{"SIMGPU_STATE=" + n.state, "LD_PRELOAD=" + filepath.Join(build, "simgpu/lib/libsimrm.so")}
	t.Cleanup(func() {
		n.Stop()
		if log, err := os.ReadFile(n.Log()); t.Failed() && err == nil {
			t.Logf("the end of gresd's log:\n%s", log[max(0, len(log)-5000):])
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *node) start() {
	n.t.Helper()
	if err := n.Start(); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) card() wire.Card {
	n.t.Helper()
	rep, err := n.Client().Do(context.Background(), wire.Request{Op: wire.OpStatus})
	if err != nil || len(rep.Status.Cards) != 1 {
		n.t.Fatalf("status: %+v, %v", rep.Status, err)
	}
	return rep.Status.Cards[0]
}

// eventually waits longer than gresd does between two tests.
func (n *node) eventually(what string, ok func() bool) {
	n.t.Helper()
	for end := time.Now().Add(90 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("not within 90 s: %s; the card: %+v", what, n.card())
		}
	}
}

func (n *node) verdict(want probe.Verdict) {
	n.t.Helper()
	n.eventually("a verdict", func() bool { return n.card().Slices != "" })
	if got := n.card().Slices; got != string(want) {
		n.t.Fatalf("the card: %q, want %q", got, want)
	}
}

// grant makes a job with a share of the card.
func (n *node) grant(job uint32, share int) {
	n.t.Helper()
	j := storm.Job{ID: job, UID: 1000, Share: share}
	if err := n.Submit(j); err != nil {
		n.t.Fatal(err)
	}
	if rep, err := n.Prolog(context.Background(), j); err != nil || rep.Result != wire.Granted {
		n.t.Fatalf("job %d: %+v, %v", job, rep, err)
	}
}

// worker keeps the card busy until the test ends, with such an environment.
func (n *node) worker(env ...string) (pid int) { return n.workerWith(nil, env...) }

// workerWith is worker with more arguments.
func (n *node) workerWith(args []string, env ...string) (pid int) {
	n.t.Helper()
	cmd := exec.Command(filepath.Join(n.build, "tests/vgpu-worker"), append(args, "--kernel-us", "200", "--saturate", "600")...)
	cmd.Env = append([]string{"SIMGPU_STATE=" + n.state, "LD_LIBRARY_PATH=" + filepath.Join(n.Dir, "sim/lib")}, env...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	return cmd.Process.Pid
}

// jobFiles returns the environment with which a process belongs to a job.
func (n *node) jobFiles(job uint32) []string {
	dir := filepath.Join(n.JobsDir(), fmt.Sprint(job))
	return []string{"LD_PRELOAD=" + filepath.Join(n.build, "lib/libvgpu.so"), "VGPU_GRANT=" + dir + "/grant", "VGPU_CACHE=" + dir + "/cache"}
}

// tenant starts a process of a job.
func (n *node) tenant(job uint32) (pid int) { return n.worker(n.jobFiles(job)...) }

// busy is for how long each process had the card, by the card's own count.
func (n *node) busy(pids ...int) []float64 {
	had := make([]float64, len(pids))
	for _, c := range n.m.Status()[0].Contexts {
		for i, pid := range pids {
			if c.PID == pid {
				had[i] = float64(c.BusyNS)
			}
		}
	}
	return had
}

// measureFor is long enough for the parts to be those of the shares, whatever happens to be.
const measureFor = 10 * time.Second

// had returns how long each process has the card in some seconds, and the lateness of each.
func (n *node) had(d time.Duration, pids ...int) (took time.Duration, had, late []float64) {
	n.t.Helper()
	began, before := time.Now(), n.busy(pids...)
	for _, pid := range pids {
		late = append(late, -float64(n.m.Late(pid)))
	}
	time.Sleep(d)
	had, took = n.busy(pids...), time.Since(began)
	for i, pid := range pids {
		had[i] -= before[i]
		late[i] = min(1, (late[i]+float64(n.m.Late(pid)))/float64(took))
	}
	return took, had, late
}

// checkShared checks how two jobs of 30 and 70 percent share the card.
func (n *node) checkShared() {
	n.t.Helper()
	n.grant(1, 30)
	n.grant(2, 70)
	a, b := n.tenant(1), n.tenant(2)
	n.eventually("both work", func() bool { had := n.busy(a, b); return had[0] > 5e8 && had[1] > 5e8 })
	_, had, late := n.had(measureFor, a, b)
	part := 100 * had[0] / (had[0] + had[1])
	n.t.Logf("the first had %.1f %% of what both had; without a processor for %.3f of the time", part, late)
	if low, high := processor.Bounds(0, 30-tolerance, 30+tolerance, []float64{30, 70}, late); part < low || part > high {
		n.t.Errorf("the job of 30 %% had %.1f %%", part)
	}
}

func (n *node) logged(text string) int {
	n.t.Helper()
	log, err := os.ReadFile(n.Log())
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.Count(string(log), text)
}

const tolerance = 2 // points

func TestACardThatObeysIsDividedBySlices(t *testing.T) {
	n := newNode(t, simgpu.CardConfig{})
	n.start()
	n.verdict(probe.Obeyed)
	n.checkShared()
	if n.logged("jobs have exclusive windows") != 0 {
		t.Error("its jobs have exclusive windows")
	}
}

// The driver tells the slices that were set, and the card goes by its own: that is seen, and
// said, and the shares hold.
func TestACardThatIgnoresSlicesIsDividedByWindows(t *testing.T) {
	n := newNode(t, simgpu.CardConfig{IgnoresSlices: true})
	n.start()
	n.verdict(probe.Ignored)
	if got := n.logged("a card does not obey time slices"); got != 1 {
		t.Errorf("gresd says it %d times, want once", got)
	}
	n.checkShared()
	// Jobs are there when it is started again: what it knows, it knows.
	n.Kill()
	n.start()
	if got := n.card(); got.Slices != string(probe.Ignored) {
		t.Errorf("after a restart beside jobs: %q, want %q", got.Slices, probe.Ignored)
	}
}

// A job is granted whatever a test does, and the test ends: that it had not ended by itself shows
// in what gresd says of it.
func TestAJobEndsTheTest(t *testing.T) {
	n := newNode(t, simgpu.CardConfig{})
	// The processes of the test are on their way for so long.
	if err := n.m.Fail(simgpu.Fault{Call: "cuDevicePrimaryCtxRetain", Count: -1, Slow: uint64(5 * time.Second)}); err != nil {
		t.Fatal(err)
	}
	n.start()
	files := filepath.Join(n.Dir, "run/slicetest")
	n.eventually("a test", func() bool { _, err := os.Stat(filepath.Join(files, "long/grant")); return err == nil })
	n.grant(1, 30)
	n.eventually("the end of the test", func() bool { _, err := os.Stat(files); return os.IsNotExist(err) })
	n.eventually("a word of it", func() bool { return n.logged("a job has come") == 1 })
	if c := n.card(); c.Slices != "" || len(n.m.Status()[0].Contexts) != 0 {
		t.Errorf("the card: %+v, and %d contexts on it", c, len(n.m.Status()[0].Contexts))
	}
}

// Where nothing can be found out, gresd starts all the same, and says why.
func TestWhatCannotBeTestedIsSaid(t *testing.T) {
	t.Run("records are denied", func(t *testing.T) {
		n := newNode(t, simgpu.CardConfig{SwitchRecords: "denied"})
		n.start()
		n.eventually("a reason", func() bool { return strings.Contains(n.card().SlicesWhy, "cannot be read") })
	})
	t.Run("slices are refused", func(t *testing.T) {
		n := newNode(t, simgpu.CardConfig{})
		if err := n.m.RefuseSlices(simgpu.Fault{Count: -1}); err != nil {
			t.Fatal(err)
		}
		n.start()
		n.eventually("a reason", func() bool { return strings.Contains(n.card().SlicesWhy, "refuses slices") })
	})
	t.Run("no context", func(t *testing.T) {
		n := newNode(t, simgpu.CardConfig{})
		if err := n.m.Fail(simgpu.Fault{Call: "cuDevicePrimaryCtxRetain", Count: -1, Code: 2}); err != nil {
			t.Fatal(err)
		}
		n.start()
		n.eventually("a reason", func() bool { return strings.Contains(n.card().SlicesWhy, "cuDevicePrimaryCtxRetain: CUDA error 2") })
	})
	t.Run("the card is in use", func(t *testing.T) {
		n := newNode(t, simgpu.CardConfig{})
		pid := n.worker()
		n.eventually("work", func() bool { return n.busy(pid)[0] > 0 })
		n.start()
		n.eventually("a reason", func() bool { return strings.Contains(n.card().SlicesWhy, "in use: by a process") })
	})
}
