// SPDX-License-Identifier: Apache-2.0

package server

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/mps"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
)

// newMPSNode is a node with programs in the place of NVIDIA's.
func newMPSNode(t *testing.T, change ...func(*config.Config)) (n *testNode, programs string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps") // short: sockets are below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	programs = filepath.Join(dir, "bin")
	t.Setenv("PATH", programs+":/usr/sbin:/usr/bin:/sbin:/bin")
	self, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), os.Mkdir(programs, 0o755), os.WriteFile(filepath.Join(programs, fake.Control), self, 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	n = newTestNode(t, append([]func(*config.Config){func(c *config.Config) {
		c.Paths.RunDir = filepath.Join(dir, "run")
		c.MPS = config.MPS{Engines: []gpu.Engine{gpu.MPS}, Trust: config.TrustAccount}
	}}, change...)...)
	t.Cleanup(func() {
		// The server has stopped; daemons outlive it. One that finds them without
		// any job ends them.
		left, err := mps.New(mps.Config{Dir: n.cfg.Paths.MPS(), Control: filepath.Join(programs, fake.Control), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer left.Close()
		left.Settle()
		for end := time.Now().Add(15 * time.Second); len(n.daemons()) > 0; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("daemons are left: %v", n.daemons())
			}
		}
	})
	return n, programs
}

// daemons are the folders of MPS daemons.
func (n *testNode) daemons() []string {
	all, _ := filepath.Glob(filepath.Join(n.cfg.Paths.MPS(), "*", "*", "pipe"))
	return all
}

// withMPS is a job that asks for MPS.
func (n *testNode) withMPS(id uint32, units gpu.Share, change ...func(*slurm.JobFacts)) wire.Request {
	req := n.job(id, units, change...)
	req.Options.Engine = "mps"
	return req
}

func user(uid uint32, name string) func(*slurm.JobFacts) {
	return func(f *slurm.JobFacts) { f.UID, f.GID, f.User = uid, uid, name }
}

func wantMessage(t *testing.T, rep wire.Reply, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(rep.Message, part) {
			t.Errorf("message lacks %q: %s", part, rep.Message)
		}
	}
}

// Where slurmctld has named no cards, CUDA must be told.
func TestTasksLearnTheCardsThatGresdChose(t *testing.T) {
	n := newTestNode(t, gresdPlaces).start()
	n.want(n.counted(1, 60), wire.Granted)
	n.want(n.counted(2, 60), wire.Granted)
	for i, job := range []uint32{1, 2} {
		want := "CUDA_VISIBLE_DEVICES=" + string(n.cards.cards[1-i].UUID) + "\n"
		if text, err := os.ReadFile(n.file(job, "environment")); err != nil || string(text) != want {
			t.Errorf("job %d: environment %q, %v; want %q", job, text, err, want)
		}
	}
	s := newTestNode(t).start()
	s.want(s.job(1, 60), wire.Granted)
	if exists(s.file(1, "environment")) {
		t.Error("there is an environment where slurmctld has named the cards")
	}
}

// loseLedger is a gresd that starts without its ledger and makes it anew of what it finds.
func (n *testNode) loseLedger() {
	n.t.Helper()
	n.stop()
	if err := os.RemoveAll(n.cfg.Paths.StateDir); err != nil {
		n.t.Fatal(err)
	}
	n.start()
	n.want(n.job(9, 1, func(f *slurm.JobFacts) { f.Units = nil }), wire.None) // says the node's name
	if err := n.Reconcile(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
}

func TestAJobOfMPSGetsADaemonAndItsAddress(t *testing.T) {
	n, _ := newMPSNode(t)
	n.start()
	n.want(n.withMPS(1, 30), wire.Granted)
	if !n.mps.Holds(1) {
		t.Error("the grant was answered before the daemon was up")
	}
	text, err := os.ReadFile(n.file(1, "environment"))
	pipe := filepath.Join(n.cfg.Paths.MPS(), string(n.cards.cards[0].UUID), "65534", "pipe")
	if err != nil || !strings.Contains(string(text), mps.PipeVariable+"="+pipe+"\n") || !strings.Contains(string(text), mps.PercentVariable+"/tasks=30\n") {
		t.Errorf("environment %q, %v", text, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(n.file(1, "environment"), &st); err != nil || st.Mode&0o777 != 0o444 {
		t.Errorf("mode %o, %v; want 0444", st.Mode&0o777, err)
	}
	n.want(n.withMPS(1, 30), wire.Granted) // the Prolog again
	n.want(n.withMPS(2, 70), wire.Granted)
	if got := n.daemons(); len(got) != 1 {
		t.Errorf("daemons %v, want one", got)
	}
	if rep, err := n.ask(wire.Request{Op: wire.OpSet, JobID: 1, Cores: 10}); err == nil {
		t.Errorf("the share of a job of MPS was set: %+v", rep)
	}
	n.restart()
	if !n.mps.Holds(1) || !n.mps.Holds(2) {
		t.Error("jobs are not held after a restart")
	}
	// A lost ledger: the engine is known from the job's files.
	n.loseLedger()
	if !n.mps.Holds(1) || !n.mps.Holds(2) {
		t.Error("jobs are not held after the ledger was lost")
	}
	n.want(wire.Request{Op: wire.OpRelease, JobID: 1}, wire.Released)
	if n.mps.Holds(1) || !n.mps.Holds(2) {
		t.Error("after the release of job 1, want only job 2 held")
	}
}

func TestEnginesAreNotMixedOnACard(t *testing.T) {
	n, _ := newMPSNode(t)
	n.start()
	n.want(n.withMPS(1, 30), wire.Granted)
	wantMessage(t, n.want(n.job(2, 30), wire.Refused), "job 1 of user nobody", "divided by MPS", "--gres=vgpu:100")
	refused := n.want(n.withMPS(3, 30, user(5, "games")), wire.Refused)
	wantMessage(t, refused, "divided by MPS for a job of another user", "not be safe", "--vgpu-engine=time")
	if strings.Contains(refused.Message, "nobody") || strings.Contains(refused.Message, "job 1") {
		t.Errorf("%q names a job of another user", refused.Message)
	}
	onOther := func(f *slurm.JobFacts) { f.Units = map[int]gpu.Share{1: 30} }
	n.want(n.job(4, 30, onOther), wire.Granted)
	wantMessage(t, n.want(n.withMPS(5, 30, onOther), wire.Refused), "job 4 of user nobody", "shared by time", "--vgpu-engine=time")
	n.want(wire.Request{Op: wire.OpRelease, JobID: 1}, wire.Released)
	n.end(1)
	n.want(n.withMPS(6, 30, user(5, "games")), wire.Granted)
}

// concurrent is a job that asks for the engine of that name.
func (n *testNode) concurrent(id uint32, units gpu.Share, change ...func(*slurm.JobFacts)) wire.Request {
	req := n.job(id, units, change...)
	req.Options.Engine, req.Options.Mode = "concurrent", "soft"
	return req
}

func offersConcurrent(c *config.Config) { c.MPS.Engines = append(c.MPS.Engines, gpu.Concurrent) }

func TestJobsOfAllUsersShareTheServerOfACard(t *testing.T) {
	n, _ := newMPSNode(t, offersConcurrent)
	n.start()
	n.want(n.concurrent(1, 30), wire.Granted)
	n.want(n.concurrent(2, 30, user(5, "games")), wire.Granted)
	if got := n.daemons(); len(got) != 1 || !strings.HasSuffix(got[0], "/all/pipe") {
		t.Errorf("daemons %v, want one for all users", got)
	}
	for _, job := range []uint32{1, 2} {
		text, err := os.ReadFile(n.file(job, "environment"))
		if err != nil || !strings.Contains(string(text), "/all/pipe\n") || strings.Contains(string(text), "PERCENTAGE") {
			t.Errorf("job %d: environment %q, %v; want the pipe of all users and no percentage", job, text, err)
		}
		spec, ok := n.grants.Spec(job)
		if !ok || spec.Cards[0].Engine != libvgpu.EngineConcurrent || n.mps.Holds(job) {
			t.Errorf("job %d: %+v, held by MPS %v; want its grant to name the engine, and the arbiter to hold it", job, spec, n.mps.Holds(job))
		}
	}
	if rep, err := n.ask(wire.Request{Op: wire.OpSet, JobID: 1, Cores: 10}); err != nil || rep.Result != wire.Changed {
		t.Errorf("the share of a job was not set: %+v, %v", rep, err)
	}
	// Nobody else shares the card.
	wantMessage(t, n.want(n.job(3, 30), wire.Refused), "shared by the engine concurrent with job", "--gres=vgpu:100")
	wantMessage(t, n.want(n.withMPS(4, 30), wire.Refused), "shared by the engine concurrent with job", "--vgpu-engine=concurrent")
	onOther := func(f *slurm.JobFacts) { f.Units = map[int]gpu.Share{1: 30} }
	n.want(n.withMPS(5, 30, onOther), wire.Granted)
	wantMessage(t, n.want(n.concurrent(6, 30, onOther), wire.Refused), "divided by MPS for job 5", "--vgpu-engine=mps")
	// A lost ledger: the engine is known from the grants.
	n.loseLedger()
	if rec, _ := n.ledger.Get(2); rec.Request.Engine != gpu.Concurrent {
		t.Errorf("after the ledger was lost, job 2 has the engine %q", rec.Request.Engine)
	}
	if rec, _ := n.ledger.Get(5); rec.Request.Engine != gpu.MPS {
		t.Errorf("after the ledger was lost, job 5 has the engine %q", rec.Request.Engine)
	}
}

func TestSeveralUsersWhereTheSiteAllowsIt(t *testing.T) {
	n, _ := newMPSNode(t, func(c *config.Config) { c.MPS.AllowAcrossUsers = true })
	n.start()
	n.want(n.withMPS(1, 30), wire.Granted)
	n.want(n.withMPS(2, 30, user(5, "games")), wire.Granted)
	if got := n.daemons(); len(got) != 2 {
		t.Errorf("daemons %v, want one for each user", got)
	}
}

func TestWhatMPSCannotDoIsSaid(t *testing.T) {
	two := func(f *slurm.JobFacts) { f.Units = map[int]gpu.Share{0: 30, 1: 30} }
	for name, c := range map[string]struct {
		change  func(*config.Config)
		job     func(*testNode) wire.Request
		message string
	}{
		"switched off": {
			func(c *config.Config) { c.MPS.Engines = nil },
			func(n *testNode) wire.Request { return n.withMPS(1, 30) }, "this node does not offer it; want --vgpu-engine=time",
		},
		"concurrent, switched off": {
			func(*config.Config) {},
			func(n *testNode) wire.Request { return n.concurrent(1, 30) }, "this node does not offer it; want --vgpu-engine=time",
		},
		"concurrent, two cards": {
			offersConcurrent,
			func(n *testNode) wire.Request { n.asks(1, byTask(30)); return n.concurrent(1, 60, two) }, "the job has 2 on this node",
		},
		"not installed": {
			func(*config.Config) { t.Setenv("PATH", "/nonexistent") },
			func(n *testNode) wire.Request { return n.withMPS(1, 30) }, "not installed here; want --vgpu-engine=time",
		},
		"two cards": {
			func(*config.Config) {},
			func(n *testNode) wire.Request { n.asks(1, byTask(30)); return n.withMPS(1, 60, two) }, "the job has 2 on this node",
		},
		"soft": {
			func(*config.Config) {},
			func(n *testNode) wire.Request { r := n.withMPS(1, 30); r.Options.Mode = "soft"; return r }, "want --vgpu-mode=hard",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, _ := newMPSNode(t, c.change)
			n.start()
			wantMessage(t, n.want(c.job(n), wire.Refused), "--vgpu-engine", c.message)
		})
	}
}

func TestADefaultOfMPSIsForJobsThatItSuits(t *testing.T) {
	n, _ := newMPSNode(t, func(c *config.Config) { c.MPS.DefaultEngine = gpu.MPS })
	n.start()
	two := n.job(1, 60, func(f *slurm.JobFacts) { f.Units = map[int]gpu.Share{0: 30, 1: 30} })
	n.asks(1, byTask(30))
	n.want(two, wire.Granted)
	if n.mps.Holds(1) || exists(n.file(1, "environment")) {
		t.Error("a job of two cards got MPS")
	}
	n.want(wire.Request{Op: wire.OpRelease, JobID: 1}, wire.Released)
	n.want(n.job(2, 30), wire.Granted)
	if !n.mps.Holds(2) {
		t.Error("a job that asked for nothing did not get the site's default")
	}
}

func TestADaemonThatFailsRefusesItsJob(t *testing.T) {
	n, programs := newMPSNode(t)
	if err := fake.Behave(programs, fake.Fail); err != nil {
		t.Fatal(err)
	}
	n.start()
	wantMessage(t, n.want(n.withMPS(1, 30), wire.Refused), "Failed to start: no device", "--vgpu-engine=time")
	n.want(n.job(2, 100), wire.Granted) // nothing is held for it
}

// gresd chooses a card where the engines go together.
func TestGresdChoosesACardOfTheSameEngine(t *testing.T) {
	n, _ := newMPSNode(t, gresdPlaces)
	n.start()
	counted := func(f *slurm.JobFacts) { f.Units, f.Counted = nil, 30 }
	on := func(id uint32) gpu.UUID {
		rec, _ := n.ledger.Get(id)
		return rec.Placement.Cards[0].UUID
	}
	n.want(n.withMPS(1, 30, counted), wire.Granted)
	n.want(n.job(2, 30, counted), wire.Granted)
	n.want(n.withMPS(3, 30, counted), wire.Granted)
	if on(1) == on(2) || on(1) != on(3) {
		t.Errorf("cards %s, %s, %s; want the first and third alike, the second another", on(1), on(2), on(3))
	}
	wantMessage(t, n.want(n.withMPS(4, 30, counted, user(5, "games")), wire.Refused), "a job of another user")
}
