// SPDX-License-Identifier: Apache-2.0

package slices

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/mps"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/storm"
)

// newServedNode is a node that offers the engines concurrent and mps.
func newServedNode(t *testing.T) *node {
	t.Helper()
	programs, err := os.MkdirTemp("/run", "mps-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(programs) })
	control, err := os.ReadFile("../../build/tests/" + fake.Control)
	if err == nil {
		err = errors.Join(os.Chmod(programs, 0o755), os.WriteFile(filepath.Join(programs, fake.Control), control, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	n := newNodeWith(t, simgpu.CardConfig{}, "[mps]\nengines = [\"mps\", \"concurrent\"]\n")
	n.Env = append(n.Env, "PATH="+programs+":/usr/sbin:/usr/bin:/sbin:/bin")
	if err := os.Chmod(n.Dir, 0o755); err != nil { // for daemons of users
		t.Fatal(err)
	}
	n.start()
	return n
}

// serve makes a job of the engine concurrent.
func (n *node) serve(job uint32, share int, mode string) {
	n.t.Helper()
	n.serveBy("concurrent", job, share, mode)
}

func (n *node) serveBy(engine string, job uint32, share int, mode string) {
	n.t.Helper()
	if err := n.Submit(storm.Job{ID: job, UID: 1000 + job, Share: share}); err != nil {
		n.t.Fatal(err)
	}
	req := wire.Request{Op: wire.OpGrant, JobID: job, UID: 1000 + job, GID: 100, GPUs: []int{0}, Node: storm.NodeName}
	req.Options.Engine, req.Options.Mode = engine, mode
	if rep, err := n.Client().Do(context.Background(), req); err != nil || rep.Result != wire.Granted {
		n.t.Fatalf("job %d: %+v, %v", job, rep, err)
	}
	n.t.Cleanup(func() { _, _ = n.Epilog(context.Background(), job) })
}

// environment is what a task of a job gets.
func (n *node) environment(job uint32) []string {
	n.t.Helper()
	dir := filepath.Join(n.JobsDir(), fmt.Sprint(job))
	text, err := os.ReadFile(filepath.Join(dir, "environment"))
	if err != nil {
		n.t.Fatal(err)
	}
	return append(strings.Fields(string(text)), "LD_PRELOAD="+filepath.Join(n.build, "lib/libvgpu.so"), "VGPU_GRANT="+dir+"/grant", "VGPU_CACHE="+dir+"/cache",
		"SIMGPU_STATE="+n.state, "LD_LIBRARY_PATH="+filepath.Join(n.Dir, "sim/lib"))
}

// client starts a process of a job that keeps the card busy until the test ends. It is told what a
// unit of work takes on the simulated card (tests/gpu/kernel.c): measured beside others, a longer
// kernel may seem to take less time than a shorter one, and the process would end.
func (n *node) client(job uint32, args ...string) (pid int) {
	n.t.Helper()
	cmd := exec.Command(filepath.Join(n.build, "tests/vgpu-worker"), append(args, "--unit-ns", "20", "--saturate", "600")...)
	cmd.Env, cmd.Stderr = n.environment(job), os.Stderr
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	return cmd.Process.Pid
}

// work returns the fraction of the time that each process's work needs alone, and the lateness of each. It
// measures while all processes work.
func (n *node) work(pids ...int) (parts, late []float64) {
	n.t.Helper()
	n.eventually("all work", func() bool {
		for _, had := range n.busy(pids...) {
			if had < 1e9 {
				return false
			}
		}
		return true
	})
	time.Sleep(2 * time.Second) // the first moments without company are over
	took, had, late := n.had(measureFor/2, pids...)
	for i := range had {
		had[i] *= 100 / float64(took)
	}
	n.t.Logf("%.1f %% of the card; without a processor for %.3f of the time", had, late)
	return had, late
}

func TestWorkSideBySideIsDividedByShares(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second []string // of the worker
		modes         string
		want          float64 // the first's part of the work of both, %
		least         float64 // of the card, both
	}{
		{"kernels of 1 ms", []string{"--kernel-us", "1000"}, []string{"--kernel-us", "1000"}, "soft", 30, 93},
		{"short beside long", []string{"--kernel-us", "100"}, []string{"--kernel-us", "20000"}, "soft", 30, 93},
		{"graphs", []string{"--kernel-us", "100", "--launch", "graph"}, []string{"--kernel-us", "100", "--launch", "graph"}, "soft", 30, 93},
		// 18 where each is taken to cost what both do, 24 where one that is on its way when a moment without company ends is not counted.
		{"two streams that take turns", []string{"--kernel-us", "500", "--streams", "2"}, []string{"--kernel-us", "1000"}, "soft", 30, 93},
		{"the card has room", []string{"--kernel-us", "1000", "--part", "50"}, []string{"--kernel-us", "1000", "--part", "50"}, "soft", 50, 190},
		{"hard, and room", []string{"--kernel-us", "1000", "--part", "50"}, []string{"--kernel-us", "1000", "--part", "50"}, "hard", 30, 93},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newServedNode(t)
			n.serve(1, 30, c.modes)
			n.serve(2, 70, c.modes)
			first, second := n.client(1, c.first...), n.client(2, c.second...)
			// On hosts that are late, costs may not be learned in the first moment without company.
			n.eventually("parts as the shares", func() bool {
				had, late := n.work(first, second)
				got := 100 * had[0] / (had[0] + had[1])
				want := []float64{c.want, 100 - c.want}
				low, high := processor.Bounds(0, c.want-3, c.want+3, want, late)
				return got >= low && got <= high && had[0]+had[1] >= c.least*(1-(want[0]*late[0]+want[1]*late[1])/100)
			})
		})
	}
}

// What the launches of one of them cost is no less where they are on the card at the same time.
func TestSeveralProcessesHaveTheShareOfTheirJobSideBySide(t *testing.T) {
	n := newServedNode(t)
	n.serve(1, 50, "soft")
	n.serve(2, 50, "soft")
	pids := []int{n.client(2, "--kernel-us", "1000")}
	for range 4 {
		pids = append(pids, n.client(1, "--kernel-us", "1000"))
	}
	n.eventually("parts as the shares", func() bool {
		all, latest := 0.0, 0.0
		had, late := n.work(pids...)
		for i, one := range had {
			all += one
			latest = max(latest, late[i])
		}
		return math.Abs(100*had[0]/all-50) <= 3+50*latest && all >= 93*(1-latest)
	})
}

func TestAJobWithoutCompanyHasAllOfTheCard(t *testing.T) {
	n := newServedNode(t)
	n.serve(1, 30, "soft")
	if had, late := n.work(n.client(1, "--kernel-us", "1000")); had[0] < 97*(1-late[0]) {
		t.Errorf("it had %.1f %%", had[0])
	}
}

// What a killed client had launched goes on, and must find its memory.
func TestAKilledClientDoesNotEndTheOthers(t *testing.T) {
	n := newServedNode(t)
	n.serve(1, 50, "soft")
	n.serve(2, 50, "soft")
	other := n.client(2, "--kernel-us", "1000")
	for range 5 {
		n.eventually("the card has the memory back", func() bool { return len(n.kept()) == 1 })
		victim := n.client(1, "--kernel-us", "20000")
		n.eventually("both work", func() bool { had := n.busy(victim, other); return min(had[0], had[1]) > 0 })
		n.eventually("gresd has seen both", func() bool { return len(n.kept()) == 2 })
		if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	before := n.busy(other)[0]
	n.eventually("the other works on", func() bool { return n.busy(other)[0] > before })
}

// kept are the descriptors that gresd has of clients' address spaces.
func (n *node) kept() (all []string) {
	n.t.Helper()
	dir := process.Of(n.PID())
	for _, fd := range dir.Open(4096) {
		if filepath.Base(dir.Link("fd/"+fd)) == "nvidia-uvm" {
			all = append(all, fd)
		}
	}
	return all
}

// A program that is no client of the server would have the card beside it, whatever its share is.
func TestAProgramThatIsNoClientIsRefused(t *testing.T) {
	n := newServedNode(t)
	n.serve(1, 30, "soft")
	own, err := os.MkdirTemp("/run", "own-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(own)
	daemon := exec.Command("../../build/tests/"+fake.Control, "-f")
	daemon.Env = []string{mps.PipeVariable + "=" + own}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		_ = daemon.Wait()
	}()
	if err := os.Chmod(own, 0o777); err != nil { // as a folder that is not root's alone
		t.Fatal(err)
	}
	n.eventually("a daemon of its own", func() bool { _, err := os.Stat(own + "/control"); return err == nil })
	for name, change := range map[string]string{"without a folder": "", "another folder": own, "a server of its own": own} {
		t.Run(name, func(t *testing.T) {
			var env []string
			for _, line := range n.environment(1) {
				if !strings.HasPrefix(line, mps.PipeVariable+"=") {
					env = append(env, line)
				}
			}
			if change != "" {
				env = append(env, mps.PipeVariable+"="+change)
			}
			cmd := exec.Command(filepath.Join(n.build, "tests/vgpu-worker"), "--report")
			cmd.Env = env
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "vgpu: engine: job 1 has the engine concurrent") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// When the server or its daemon dies, its clients lose their work, the next program finds another one,
// and gresd goes on.
func TestAServerThatDiesIsStartedAnew(t *testing.T) {
	for _, name := range []string{fake.Server, fake.Control} {
		t.Run(name, func(t *testing.T) {
			n := newServedNode(t)
			n.serve(1, 30, "soft")
			n.serve(2, 70, "soft")
			n.client(1, "--kernel-us", "1000")
			n.eventually("a server", func() bool { return len(n.programs(fake.Server)) == 1 })
			before := n.programs(name)
			if len(before) != 1 {
				t.Fatalf("%s: %v, want one", name, before)
			}
			if err := syscall.Kill(before[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			n.eventually("another daemon or the same, and no old server", func() bool {
				now := n.programs(name)
				return len(n.programs(fake.Control)) == 1 && (len(now) == 0 || now[0] != before[0])
			})
			n.eventually("the next program works", func() bool {
				cmd := exec.Command(filepath.Join(n.build, "tests/vgpu-worker"), "--kernel-us", "1000", "--saturate", "0.2")
				cmd.Env = n.environment(2)
				return cmd.Run() == nil
			})
			if !n.Alive() {
				t.Error("gresd has ended")
			}
		})
	}
}

// whileDown kills the daemon, and lets another one start when what is expected meanwhile has come.
func (n *node) whileDown(what string, ok func() bool) {
	n.t.Helper()
	daemons := n.programs(fake.Control)
	if len(daemons) != 1 {
		n.t.Fatalf("daemons %v, want one", daemons)
	}
	folder := filepath.Dir(process.Of(daemons[0]).Link("exe"))
	if err := errors.Join(fake.Behave(folder, fake.Fail), syscall.Kill(daemons[0], syscall.SIGKILL)); err != nil {
		n.t.Fatal(err)
	}
	n.eventually(what, ok)
	if err := fake.Behave(folder); err != nil {
		n.t.Fatal(err)
	}
}

// idle is for a client that lives on without its server, and has its job looked at.
var idle = []string{"--hold", "600"}

// While its daemon is down, nothing of MPS holds a job.
func TestTheArbiterHoldsAJobWhoseDaemonIsDown(t *testing.T) {
	n := newServedNode(t)
	n.serveBy("mps", 1, 30, "hard")
	n.client(1, idle...)
	n.eventually("gresd has seen it", func() bool { return len(n.kept()) == 1 })
	if n.arbitrated(1) {
		t.Error("the arbiter holds it beside MPS")
	}
	n.whileDown("the arbiter holds it", func() bool { return n.arbitrated(1) })
	n.eventually("MPS holds it again", func() bool { return !n.arbitrated(1) })
}

// arbitrated says whether the arbiter looks at a job.
func (n *node) arbitrated(job uint32) bool {
	n.t.Helper()
	rep, err := n.Client().Do(context.Background(), wire.Request{Op: wire.OpJobs, JobID: job})
	if err != nil || len(rep.Jobs) != 1 || len(rep.Jobs[0].Cards) != 1 {
		n.t.Fatalf("jobs: %+v, %v", rep.Jobs, err)
	}
	return rep.Jobs[0].Cards[0].Busy != nil
}

func TestClientsOfAnotherDaemonAreKept(t *testing.T) {
	n := newServedNode(t)
	n.serve(1, 30, "soft")
	n.client(1, idle...)
	n.eventually("gresd has seen it", func() bool { return len(n.kept()) == 1 })
	n.whileDown("it is no client of a server", func() bool { return len(n.kept()) == 0 })
	n.eventually("it is one of another", func() bool { return len(n.kept()) == 1 })
}

// programs are the processes of one of NVIDIA's programs that this node has started: other tests have some, too.
func (n *node) programs(name string) (pids []int) {
	pipe := "\x00" + mps.PipeVariable + "=" + n.Dir + "/"
	for _, dir := range process.All("/proc") {
		line, _ := os.ReadFile(string(dir) + "/cmdline")
		program, args, _ := strings.Cut(string(line), "\x00")
		if filepath.Base(program) != name || name == fake.Control && !strings.HasPrefix(args, "-f") {
			continue
		}
		if env, _ := os.ReadFile(string(dir) + "/environ"); !strings.Contains("\x00"+string(env), pipe) {
			continue
		}
		var pid int
		if _, err := fmt.Sscan(filepath.Base(string(dir)), &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
