// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// fakeSlurm knows one job.
type fakeSlurm struct {
	facts    slurm.JobFacts
	err      error
	requeued *int
	called   func(context.Context)
}

func (f fakeSlurm) Job(ctx context.Context, _ uint32, _ string) (slurm.JobFacts, error) {
	if f.called != nil {
		f.called(ctx)
	}
	return f.facts, f.err
}

func (f fakeSlurm) Requeue(ctx context.Context, _ uint32) error {
	if f.called != nil {
		f.called(ctx)
	}
	if f.requeued != nil {
		*f.requeued++
	}
	if !f.facts.Batch {
		return slurm.ErrNotBatch
	}
	return f.err
}

// No job drains a node because gresd is away, hangs, starts or waits for slurmctld.
func TestAJobWithoutAnAnswer(t *testing.T) {
	share := slurm.JobFacts{Batch: true, Units: map[int]gpu.Share{0: 30}}
	for name, c := range map[string]struct {
		slurm    fakeSlurm
		requeued int
		says     string
	}{
		"whole cards start":        {fakeSlurm{facts: slurm.JobFacts{Batch: true, WholeCards: []int{0}}}, 0, "starts"},
		"a batch job with a share": {fakeSlurm{facts: share}, 1, "back in the queue"},
		"a batch job with a count": {fakeSlurm{facts: slurm.JobFacts{Batch: true, Counted: 30}}, 1, "back in the queue"},
		"srun with a share":        {fakeSlurm{facts: slurm.JobFacts{Units: share.Units}}, 1, "its tasks are refused"},
		"slurmctld is away, too":   {fakeSlurm{facts: share, err: slurm.ErrUnavailable}, 1, "its tasks are refused"},
	} {
		for how, answer := range map[string]*wire.Reply{"away": nil, "busy": {Kind: wire.KindBusy, Message: "gresd is still starting"}} {
			t.Run(name+", gresd "+how, func(t *testing.T) {
				config := testConfig(t)
				if answer != nil {
					startGresd(t, config.socket(), *answer)
				}
				n := 0
				c.slurm.requeued = &n
				r := runHook(t, config, jobEnv("prolog_slurmd"), func(h *Hook) { h.slurm = c.slurm })
				if r.code != ExitOK || n != c.requeued || len(r.log) != 1 || !strings.Contains(r.log[0], c.says) {
					t.Errorf("code %d, requeued %d times, log %q; want 0, %d, %q", r.code, n, r.log, c.requeued, c.says)
				}
			})
		}
	}
}

// Nothing shows that a job had its shards lost: slurmctld is asked, and what it knows counts. Where
// it does not answer either, the job runs, and its tasks are shown no card.
func TestAJobThatMayHaveLostItsShards(t *testing.T) {
	asks := slurm.JobFacts{OnNode: true, MayAskForShards: true}
	batch := asks
	batch.Batch = true
	for name, c := range map[string]struct {
		slurm    fakeSlurm
		options  string
		requeued int
		says     string
		state    string
	}{
		"a CPU job":              {fakeSlurm{facts: slurm.JobFacts{OnNode: true}}, "", 0, "", noShare},
		"lost, a batch job":      {fakeSlurm{facts: batch}, "", 1, "back in the queue", lostShards},
		"lost, srun":             {fakeSlurm{facts: asks}, "", 1, "its tasks are refused", lostShards},
		"nobody knows":           {fakeSlurm{err: slurm.ErrUnavailable}, "", 0, "starts without a card", undecided},
		"its options tell of it": {fakeSlurm{err: slurm.ErrUnavailable}, "8G", 1, "its tasks are refused", ""},
	} {
		for how, answer := range map[string]*wire.Reply{"away": nil, "busy": {Kind: wire.KindBusy, Message: "ask slurmctld"}} {
			t.Run(name+", gresd "+how, func(t *testing.T) {
				config := testConfig(t)
				if err := os.WriteFile(filepath.Join(config.RunDir, "loses-shards"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
				if answer != nil {
					startGresd(t, config.socket(), *answer)
				}
				n := 0
				c.slurm.requeued = &n
				env := jobEnv("prolog_slurmd", "SLURM_JOB_GPUS", "", "SPANK_VGPU_MEM", c.options)
				r := runHook(t, config, env, func(h *Hook) { h.slurm = c.slurm })
				said := strings.Join(r.log, "\n")
				if r.code != ExitOK || n != c.requeued || !strings.Contains(said, c.says) || (said == "") != (c.says == "") {
					t.Errorf("code %d, requeued %d times, log %q; want 0, %d, %q", r.code, n, said, c.requeued, c.says)
				}
				if state := (&Hook{Config: config}).state("7"); state != c.state {
					t.Errorf("state %q, want %q", state, c.state)
				}
				// A task that must not run does not, and one that nobody knows sees no card.
				task := runHook(t, config, jobEnv("prolog_task", "SLURM_JOB_GPUS", "", "SLURM_STEP_GPUS", ""))
				stops, hidden := task.code == ExitFault, strings.Contains(task.stdout, "CUDA_VISIBLE_DEVICES=NoDevFiles")
				if stops != (c.state == lostShards) || hidden != (c.state == undecided || c.state == "") {
					t.Errorf("a task: code %d, %q", task.code, task.stdout)
				}
			})
		}
	}
}

// A node on which nothing of ours is set up runs every job at once.
func TestANodeThatTakesNoPart(t *testing.T) {
	config := testConfig(t)
	config.RunDir += "/absent"
	for _, role := range []string{"prolog_slurmd", "epilog_slurmd", ""} {
		env := jobEnv(role, "SLURM_JOB_COMMENT", "vgpu(share=30)")
		if role == "" {
			env = map[string]string{"SLURMD_NODENAME": "n1"}
		}
		if r := runHook(t, config, env); r.code != ExitOK || len(r.log) != 0 || r.took > 200*time.Millisecond {
			t.Errorf("%q: code %d after %v, log %q; want 0 at once and no word", role, r.code, r.took, r.log)
		}
	}
}

// The Prolog ends before Slurm ends it.
func TestWithinSlurmsPatience(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 0,
		"ClusterName=c\nPrologEpilogTimeout=30\n":     14 * time.Second,
		"prologepilogtimeout = 160":                   144 * time.Second,
		"PrologTimeout=60":                            44 * time.Second,
		"PrologEpilogTimeout=300\nPrologTimeout=30\n": 14 * time.Second,
		"PrologTimeout=300\nPrologEpilogTimeout=30\n": 284 * time.Second,
		"PrologEpilogTimeout=5":                       time.Second,
		"PrologEpilogTimeout=65534":                   0,
		"#PrologEpilogTimeout=30":                     0,
		"ClusterName=C\nInclude more-%c.conf\n":       24 * time.Second,
	} {
		path := filepath.Join(t.TempDir(), "slurm.conf")
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), "more-c.conf"), []byte("PrologTimeout=40"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		h := New(func(name string) string { return map[string]string{"SLURM_CONF": path}[name] }, Config{}, nil, nil, nil)
		got := h.timeout()
		if got != 0 {
			got = answerDeadline(got)
		}
		if got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	config := testConfig(t)
	gresd := startGresd(t, config.socket(), wire.Reply{OK: true, Result: wire.Granted})
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(conf, []byte("PrologEpilogTimeout=30\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	runHook(t, config, jobEnv("prolog_slurmd", "SLURM_CONF", conf), func(h *Hook) { h.AnswerWait = 150 * time.Second })
	if got := gresd.requests(); len(got) != 1 || got[0].Within != 11 {
		t.Errorf("asked %+v, want an answer within 11 s", got)
	}
}

// If gresd is down and slurmctld hangs, all commands together end before Slurm's timeout.
func TestCommandsShareOneDeadline(t *testing.T) {
	for _, timeout := range []time.Duration{2 * time.Second, 10 * time.Second, 16 * time.Second, 30 * time.Second} {
		config := testConfig(t)
		config.SlurmConf = filepath.Join(t.TempDir(), "slurm.conf")
		if err := os.WriteFile(config.SlurmConf, fmt.Appendf(nil, "PrologEpilogTimeout=%d\n", int(timeout.Seconds())), 0o644); err != nil {
			t.Fatal(err)
		}
		calls := map[time.Time]int{}
		runHook(t, config, jobEnv("prolog_slurmd"), func(h *Hook) {
			h.slurm = fakeSlurm{err: slurm.ErrSilent, called: func(ctx context.Context) {
				deadline, set := ctx.Deadline()
				calls[deadline]++
				if left := time.Until(deadline); !set || left >= timeout {
					t.Errorf("timeout %s: a command may take %s", timeout, left)
				}
			}}
		})
		if len(calls) != 1 {
			t.Errorf("timeout %s: %d deadlines, want one for all commands", timeout, len(calls))
		}
	}
}

// Where gresd chooses the cards, tasks of jobs without a share need not ask.
func TestPrologWritesTheStateOfJobsWithoutAShare(t *testing.T) {
	config := testConfig(t)
	env := jobEnv("prolog_slurmd", "SLURM_JOB_GPUS", "")
	is := func() bool { return (&Hook{Config: config}).state("7") == noShare }
	runHook(t, config, env)
	if is() {
		t.Error("a state where slurmctld chooses the cards")
	}
	if err := os.WriteFile(filepath.Join(config.RunDir, "ask-gresd"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if r := runHook(t, config, env); r.code != ExitOK || is() {
		t.Errorf("nobody knows: exit code %d, state %v", r.code, is())
	}
	plain := func(h *Hook) { h.slurm = fakeSlurm{} }
	if r := runHook(t, config, env, plain); r.code != ExitOK || !is() || len(r.log) != 0 {
		t.Errorf("without gresd: exit code %d, state %v, log %q", r.code, is(), r.log)
	}
	if runHook(t, config, jobEnv("epilog_slurmd", "SLURM_JOB_GPUS", "")); is() {
		t.Error("a state after Epilog")
	}
	startGresd(t, config.socket(), wire.Reply{OK: true, Result: wire.Granted})
	if runHook(t, config, env); is() {
		t.Error("a job with a grant has the state")
	}
}

// The file may name the cluster in any way that Slurm reads.
func TestClusterIsThatOfSlurmConf(t *testing.T) {
	for text, want := range map[string]string{
		"ClusterName=Alpha\nNodeName=x\n": "alpha", "# ClusterName=no\n clustername = \"b-2\"\n": "b-2", "include other.conf\n": "other", "include none.conf\n": "",
	} {
		path := filepath.Join(t.TempDir(), "slurm.conf")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), "other.conf"), []byte("ClusterName=Other\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		h := &Hook{Getenv: func(name string) string { return map[string]string{"SLURM_CONF": path}[name] }}
		if got := h.cluster(); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// Where gresd chooses the cards, a job whose whole card has shares waits in its Prolog, for as long as
// gresd is there.
func TestWholeCardsWaitForTheSharesOnThem(t *testing.T) {
	for name, c := range map[string]struct {
		answer time.Duration // to the grant; 0: never
		hangs  bool          // gresd answers nothing at all
		says   string
	}{
		"gresd is well":        {answer: 600 * time.Millisecond},
		"gresd hangs":          {hangs: true, says: "starts"},
		"gresd hangs from now": {says: "starts"},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig(t)
			if err := os.WriteFile(filepath.Join(config.RunDir, "ask-gresd"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			listener, err := net.Listen("unix", config.socket())
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			var answered atomic.Bool
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					go func() {
						defer conn.Close()
						req, err := wire.ReadRequest(bufio.NewReader(conn))
						switch {
						case err != nil, c.hangs, req.Op == wire.OpGrant && c.answer == 0:
							<-t.Context().Done()
						case req.Op == wire.OpGrant:
							time.Sleep(c.answer)
							answered.Store(true)
							_ = wire.WriteReply(conn, wire.Reply{OK: true, Result: wire.None})
						default:
							_ = wire.WriteReply(conn, wire.Reply{OK: true})
						}
					}()
				}
			}()
			r := runHook(t, config, jobEnv("prolog_slurmd"), func(h *Hook) {
				h.slurm = fakeSlurm{facts: slurm.JobFacts{Batch: true, WholeCards: []int{0, 2}}}
			})
			if said := strings.Join(r.log, "\n"); r.code != ExitOK || answered.Load() != (c.answer > 0) || (said == "") != (c.says == "") || !strings.Contains(said, c.says) {
				t.Errorf("code %d after %s, with gresd's word: %v, log %q", r.code, r.took, answered.Load(), said)
			}
		})
	}
}

// If the state no-share cannot be written, the job starts if gresd answers its tasks. If only gresd can
// answer and does not, the job is requeued.
func TestAJobWithoutAShareWhoseStateCannotBeWritten(t *testing.T) {
	for name, c := range map[string]struct {
		marker   string
		answers  bool
		requeued int
	}{
		"gresd places and answers":         {"ask-gresd", true, 0},
		"gresd places and does not answer": {"ask-gresd", false, 1},
		"slurmctld places":                 {"loses-shards", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig(t)
			for _, file := range []string{c.marker, "state"} { // also root can write no file in a file
				if err := os.WriteFile(filepath.Join(config.RunDir, file), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if c.answers {
				startGresd(t, config.socket(), wire.Reply{OK: true, Result: wire.None})
			}
			n := 0
			r := runHook(t, config, jobEnv("prolog_slurmd", "SLURM_JOB_GPUS", ""), func(h *Hook) {
				h.slurm = fakeSlurm{facts: slurm.JobFacts{Batch: true}, requeued: &n}
			})
			if said := strings.Join(r.log, "\n"); r.code != ExitOK || n != c.requeued || !strings.Contains(said, "write the job's state") {
				t.Errorf("code %d, requeued %d times, log %q; want 0, %d and the error", r.code, n, said, c.requeued)
			}
		})
	}
}

// If the state of a job cannot be written or removed, the job goes back into the queue.
// Tasks of a job that stays ask gresd, and see no card.
func TestAJobWhoseStateCannotBeWritten(t *testing.T) {
	lost := slurm.JobFacts{Batch: true, OnNode: true, MayAskForShards: true}
	for name, c := range map[string]struct {
		slurm fakeSlurm
		stale bool // the state of an earlier run cannot be removed
		says  string
	}{
		"lost its shards":    {slurm: fakeSlurm{facts: lost}, says: "back in the queue"},
		"nobody knows":       {slurm: fakeSlurm{err: slurm.ErrUnavailable}, says: "its tasks see no card"},
		"an old state stays": {slurm: fakeSlurm{facts: lost}, stale: true, says: "remove the job's state"},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig(t)
			if err := os.WriteFile(filepath.Join(config.RunDir, "loses-shards"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			states := filepath.Join(config.RunDir, "state")
			err := os.WriteFile(states, nil, 0o644) // also root can write no file in a file
			if c.stale {
				err = errors.Join(os.Remove(states), os.MkdirAll(filepath.Join(states, "7", "full"), 0o755))
			}
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			c.slurm.requeued = &n
			env := jobEnv("prolog_slurmd", "SLURM_JOB_GPUS", "")
			r := runHook(t, config, env, func(h *Hook) { h.slurm = c.slurm })
			said := strings.Join(r.log, "\n")
			if r.code != ExitOK || n != 1 || !strings.Contains(said, "the job's state") || !strings.Contains(said, c.says) {
				t.Errorf("code %d, requeued %d times, log %q; want 0, 1, %q", r.code, n, said, c.says)
			}
			env["SLURM_SCRIPT_CONTEXT"] = latePrologContext
			if task := runHook(t, config, env); task.code != ExitUnknown {
				t.Errorf("late prolog: code %d, want %d", task.code, ExitUnknown)
			}
		})
	}
}

// A task must not run unless gresd has decided, whatever Prolog would have done
// to the node.
func TestLatePrologFailsWhatIsNotDecided(t *testing.T) {
	for name, test := range map[string]struct {
		answer *wire.Reply
		code   int
	}{
		"granted":      {&wire.Reply{OK: true, Result: wire.Granted}, ExitOK},
		"refused":      {&wire.Reply{OK: true, Result: wire.Refused, Message: "vgpu: no"}, ExitOK}, // the plugin reads why
		"no share":     {&wire.Reply{OK: true, Result: wire.None}, ExitOK},
		"requeued":     {&wire.Reply{OK: true, Result: wire.Requeued, Message: "full"}, ExitFault},
		"user's fault": {&wire.Reply{Kind: wire.KindUser, Message: "no such job"}, ExitFault},
		"node's fault": {&wire.Reply{Kind: wire.KindNode, Message: "disk"}, ExitFault},
		"no gresd":     {nil, ExitFault},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig(t)
			if test.answer != nil {
				startGresd(t, config.socket(), *test.answer)
			}
			// As where gresd chooses the card: nothing shows that the job has a share.
			r := runHook(t, config, jobEnv(latePrologContext, "SLURM_JOB_GPUS", "", "SLURMD_NODENAME", ""))
			if r.code != test.code || (r.stderr != "") != (test.code != ExitOK) {
				t.Errorf("exit code %d, said %q; want %d", r.code, r.stderr, test.code)
			}
		})
	}
}

// Nobody knew whether the job has lost a share: its tasks run without a card until gresd says that
// it has none, also where gresd has found meanwhile that this Slurm loses no shards.
func TestATaskOfWhichNobodyKnowsAsksAgain(t *testing.T) {
	config := testConfig(t)
	h := &Hook{Config: config}
	if err := h.setState(7, undecided); err != nil {
		t.Fatal(err)
	}
	env := jobEnv(latePrologContext, "SLURM_JOB_GPUS", "", "SLURMD_NODENAME", "")
	if r := runHook(t, config, env); r.code != ExitUnknown || h.state("7") != undecided {
		t.Errorf("without gresd: exit code %d, state %q", r.code, h.state("7"))
	}
	startGresd(t, config.socket(), wire.Reply{OK: true, Result: wire.None})
	if r := runHook(t, config, env); r.code != ExitOK || h.state("7") != noShare {
		t.Errorf("gresd says that it has none: exit code %d, state %q", r.code, h.state("7"))
	}
	if runHook(t, config, jobEnv("epilog_slurmd", "SLURM_JOB_GPUS", "")); h.state("7") != "" {
		t.Error("a state after Epilog")
	}
}
