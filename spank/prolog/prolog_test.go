// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/spank/options"
)

// fakeGresd keeps the requests it got and gives every one the same answer.
type fakeGresd struct {
	socket string
	mu     sync.Mutex
	got    []wire.Request
}

func startGresd(t *testing.T, socket string, answer wire.Reply) *fakeGresd {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	fake := &fakeGresd{socket: socket}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if req, err := wire.ReadRequest(bufio.NewReader(conn)); err == nil {
				fake.mu.Lock()
				fake.got = append(fake.got, req)
				fake.mu.Unlock()
				_ = wire.WriteReply(conn, answer)
			}
			conn.Close()
		}
	}()
	t.Cleanup(func() { listener.Close(); <-done })
	return fake
}

func (f *fakeGresd) requests() []wire.Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.got
}

type run struct {
	code           int
	stdout, stderr string
	log            []string
	took           time.Duration
}

func runHook(t *testing.T, config Config, env map[string]string, change ...func(*Hook)) run {
	t.Helper()
	var stdout, stderr bytes.Buffer
	var r run
	hook := New(func(name string) string { return env[name] }, config, &stdout, &stderr,
		func(line string) { r.log = append(r.log, line) })
	hook.Patience, hook.AnswerWait = 300*time.Millisecond, 1200*time.Millisecond
	hook.selfGrant = filepath.Join(config.RunDir, "self-grant")
	hook.askSlurmctldAfter = 200 * time.Millisecond
	hook.slurm = fakeSlurm{err: slurm.ErrUnavailable}
	for _, f := range change {
		f(hook)
	}
	start := time.Now()
	r.code = hook.Run(context.Background())
	r.took = time.Since(start)
	r.stdout, r.stderr = stdout.String(), stderr.String()
	return r
}

func testConfig(t *testing.T) Config {
	t.Helper()
	return Config{RunDir: t.TempDir(), Library: "/opt/libvgpu.so"}
}

func (c Config) socket() string { return filepath.Join(c.RunDir, "gresd.sock") }

// jobEnv is what slurmd 22.05 gives a Prolog for a job with a share.
func jobEnv(role string, more ...string) map[string]string {
	env := map[string]string{
		"SLURM_SCRIPT_CONTEXT": role, "SLURM_JOB_ID": "7", "SLURM_JOB_UID": "33", "SLURM_JOB_GID": "34",
		"SLURM_JOB_USER": "www-data", "SLURM_JOB_ACCOUNT": "web", "SLURM_JOB_PARTITION": "main",
		"SLURM_JOB_GPUS": "0,2", "SLURM_CONF": "/etc/slurm/slurm.conf", "SLURMD_NODENAME": "n1",
		"SLURM_JOB_RESTART_COUNT": "1",
	}
	if role == "prolog_task" {
		env["SLURM_STEP_GPUS"] = "0" // a step with --gres=none has no such variable
	}
	for i := 0; i+1 < len(more); i += 2 {
		env[more[i]] = more[i+1]
	}
	return env
}

func TestPrologSendsWhatSlurmSays(t *testing.T) {
	config := testConfig(t)
	gresd := startGresd(t, config.socket(), wire.Reply{OK: true, Result: wire.Granted})
	r := runHook(t, config, jobEnv("prolog_slurmd", "SPANK_VGPU_MEM", "8G", "SPANK_VGPU_CORES", "30",
		"SPANK_VGPU_CARDS", "2", "SPANK_VGPU_MODE", "soft:80", "SPANK_VGPU_PRIORITY", "high", "SPANK_VGPU_POLICY", "spread",
		"SPANK_VGPU_ENGINE", "mps"))
	if r.code != ExitOK || r.stdout != "" || r.stderr != "" {
		t.Errorf("got code %d, stdout %q, stderr %q; want 0 and silence", r.code, r.stdout, r.stderr)
	}
	want := []wire.Request{{
		Op: wire.OpGrant, JobID: 7, UID: 33, GID: 34, User: "www-data", Account: "web", Partition: "main",
		GPUs: []int{0, 2}, Conf: "/etc/slurm/slurm.conf", Node: "n1", Restart: 1,
		Options: wire.Options{Mem: "8G", Cores: "30", Cards: "2", Mode: "soft:80", Priority: "high", Policy: "spread", Engine: "mps"},
	}}
	if got := gresd.requests(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// Options holds a field for each option that the plugin sends.
func TestPrologSendsEveryOption(t *testing.T) {
	config := testConfig(t)
	gresd := startGresd(t, config.socket(), wire.Reply{OK: true, Result: wire.Granted})
	var env []string
	for _, o := range options.List {
		env = append(env, "SPANK_VGPU_"+strings.ToUpper(o.Name), "given-"+o.Name)
	}
	runHook(t, config, jobEnv("prolog_slurmd", env...))
	sent, err := json.Marshal(gresd.requests()[0].Options)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	if err := json.Unmarshal(sent, &got); err != nil {
		t.Fatal(err)
	}
	for _, o := range options.List {
		if got[o.Name] != "given-"+o.Name {
			t.Errorf("--vgpu-%s: gresd is told %q", o.Name, got[o.Name])
		}
	}
}

func TestAnswersBecomeExitCodes(t *testing.T) {
	ok := func(result wire.Result) wire.Reply { return wire.Reply{OK: true, Result: result, Message: "why"} }
	bad := func(kind wire.Kind) wire.Reply { return wire.Reply{Kind: kind, Message: "card lost"} }
	for name, c := range map[string]struct {
		role   string
		answer wire.Reply
		code   int
		log    string
	}{
		"a granted job starts":                        {"prolog_slurmd", ok(wire.Granted), 0, ""},
		"a job without a share starts":                {"prolog_slurmd", ok(wire.None), 0, ""},
		"a refused job does not drain the node":       {"prolog_slurmd", ok(wire.Refused), 0, "refused: why"},
		"a requeued job does not drain the node":      {"prolog_slurmd", ok(wire.Requeued), 0, "requeued: why"},
		"a mistake of the user does not drain":        {"prolog_slurmd", bad(wire.KindUser), 0, "card lost"},
		"a broken node is drained":                    {"prolog_slurmd", bad(wire.KindNode), 1, "card lost"},
		"an error without a kind is a broken node":    {"prolog_slurmd", bad(""), 1, "card lost"},
		"a released job ends":                         {"epilog_slurmd", ok(wire.Released), 0, ""},
		"an unknown job ends":                         {"epilog_slurmd", ok(wire.None), 0, ""},
		"an epilog never drains":                      {"epilog_slurmd", bad(wire.KindNode), 0, "card lost"},
		"a controller prolog has nothing to do":       {"prolog_slurmctld", bad(wire.KindNode), 0, "nothing to do"},
		"a task epilog has nothing to do":             {"epilog_task", bad(wire.KindNode), 0, ""},
		"a context of a later release does not drain": {"prolog_future", bad(wire.KindNode), 0, "nothing to do"},
		"a health check that answers with an error":   {"", bad(wire.KindNode), 0, "health check: card lost"},
		"a health check that answers says nothing":    {"", wire.Reply{OK: true}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig(t)
			startGresd(t, config.socket(), c.answer)
			r := runHook(t, config, jobEnv(c.role))
			log := strings.Join(r.log, "\n")
			if r.code != c.code || !strings.Contains(log, c.log) || (c.log == "") != (log == "") {
				t.Errorf("got code %d, log %q; want %d, %q", r.code, log, c.code, c.log)
			}
			if r.stdout != "" {
				t.Errorf("stdout: %q; want nothing", r.stdout)
			}
		})
	}
}

func TestEpilogReleasesOnlyByJobID(t *testing.T) {
	config := testConfig(t)
	gresd := startGresd(t, config.socket(), wire.Reply{OK: true, Result: wire.Released})
	runHook(t, config, jobEnv("epilog_slurmd", "SPANK_VGPU_MEM", "8G"))
	want := []wire.Request{{Op: wire.OpRelease, JobID: 7}}
	if got := gresd.requests(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestWithoutGresd(t *testing.T) {
	for name, c := range map[string]struct {
		env     map[string]string
		code    int
		patient bool
	}{
		"a job with a card waits, then goes on":  {jobEnv("prolog_slurmd"), 0, true},
		"a job with a token waits, then goes on": {jobEnv("prolog_slurmd", "SLURM_JOB_GPUS", "", "SLURM_JOB_COMMENT", "x vgpu(share=30)"), 0, true},
		"what only looks like a token":           {jobEnv("prolog_slurmd", "SLURM_JOB_GPUS", "", "SLURM_JOB_COMMENT", "xvgpu("), 0, false},
		"a job without cards starts at once":     {jobEnv("prolog_slurmd", "SLURM_JOB_GPUS", ""), 0, false},
		"an epilog waits, then goes on":          {jobEnv("epilog_slurmd"), 0, true},
		"an epilog without cards ends at once":   {jobEnv("epilog_slurmd", "SLURM_JOB_GPUS", ""), 0, false},
		"a health check reports and passes":      {map[string]string{"SLURMD_NODENAME": "n1"}, 0, false},
		"no job id is a mistake, not a bad node": {jobEnv("prolog_slurmd", "SLURM_JOB_ID", ""), 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := runHook(t, testConfig(t), c.env)
			if r.code != c.code {
				t.Errorf("got code %d, want %d (%v)", r.code, c.code, r.log)
			}
			if c.patient != (r.took >= 100*time.Millisecond) {
				t.Errorf("took %v, want to wait: %v", r.took, c.patient)
			}
			if c.patient && len(r.log) != 1 {
				t.Errorf("log %q, want one line", r.log)
			}
		})
	}
}

func TestPrologSurvivesARestartOfGresd(t *testing.T) {
	config := testConfig(t)
	done := make(chan run)
	go func() { done <- runHook(t, config, jobEnv("prolog_slurmd")) }()
	time.Sleep(100 * time.Millisecond)
	gresd := startGresd(t, config.socket(), wire.Reply{OK: true, Result: wire.Granted})
	if got := <-done; got.code != ExitOK || len(gresd.requests()) != 1 {
		t.Errorf("got code %d after %d requests, want 0 after 1", got.code, len(gresd.requests()))
	}
}

func TestHostileOptionsReachGresd(t *testing.T) {
	config := testConfig(t)
	gresd := startGresd(t, config.socket(), wire.Reply{OK: true, Result: wire.Refused})
	r := runHook(t, config, jobEnv("prolog_slurmd", "SPANK_VGPU_MEM", "8G\n\x01", "SPANK_VGPU_MODE", "\xff",
		"SPANK_VGPU_CORES", strings.Repeat("é", 100000), "SLURM_CONF", "relative", "SLURM_JOB_GPUS", "1,1,x,-3,99999999999,2-3"))
	if r.code != ExitOK || len(gresd.requests()) != 1 {
		t.Fatalf("got code %d, %d requests, log %q; want one request", r.code, len(gresd.requests()), r.log)
	}
	got := gresd.requests()[0]
	if got.Options.Mem != "8G??" || got.Options.Mode != "?" || len(got.Options.Cores) > maxText {
		t.Errorf("options: %+v", got.Options)
	}
	if want := []int{1, 2, 3}; !reflect.DeepEqual(got.GPUs, want) || got.Conf != "" {
		t.Errorf("cards %v, conf %q; want %v and none", got.GPUs, got.Conf, want)
	}
}

func TestRunByHandIsAUsageError(t *testing.T) {
	r := runHook(t, testConfig(t), nil)
	if r.code != ExitUsage || !strings.Contains(r.stderr, "run by Slurm") {
		t.Errorf("got code %d, stderr %q", r.code, r.stderr)
	}
}

func TestSocketFromTheEnvironment(t *testing.T) {
	other := filepath.Join(t.TempDir(), "s")
	gresd := startGresd(t, other, wire.Reply{OK: true})
	runHook(t, testConfig(t), map[string]string{"SLURMD_NODENAME": "n1", "VGPU_SOCKET": other})
	if got := gresd.requests(); len(got) != 1 || got[0].Op != wire.OpPing {
		t.Errorf("got %+v, want one ping", got)
	}
}

func writeGrant(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, binary.LittleEndian.AppendUint64(nil, grantMagic), 0o444); err != nil {
		t.Fatal(err)
	}
}

func TestTaskProlog(t *testing.T) {
	jobFile := func(config Config, name string) string { return filepath.Join(config.RunDir, "jobs", "7", name) }
	for name, c := range map[string]struct {
		prepare func(t *testing.T, config Config)
		env     map[string]string
		code    int
		stdout  string // with RUN for the run directory
	}{
		"without a job directory it prints nothing": {
			func(*testing.T, Config) {}, jobEnv("prolog_task"), 0, "",
		},
		"where the plugin has bound the grant it prints nothing": {
			func(t *testing.T, config Config) {
				writeGrant(t, jobFile(config, "grant"))
				writeGrant(t, filepath.Join(config.RunDir, "self-grant"))
			}, jobEnv("prolog_task"), 0, "",
		},
		"an empty mount point is no grant": {
			func(t *testing.T, config Config) {
				writeGrant(t, jobFile(config, "grant"))
				if err := os.WriteFile(filepath.Join(config.RunDir, "self-grant"), nil, 0o444); err != nil {
					t.Fatal(err)
				}
			}, jobEnv("prolog_task"), 0,
			"export LD_PRELOAD=/opt/libvgpu.so\nexport VGPU_GRANT=RUN/jobs/7/grant\nexport VGPU_CACHE=RUN/jobs/7/cache\n",
		},
		"the user's own preload stays, behind ours": {
			func(t *testing.T, config Config) { writeGrant(t, jobFile(config, "grant")) },
			jobEnv("prolog_task", "LD_PRELOAD", "liba.so:libb.so"), 0,
			"export LD_PRELOAD=/opt/libvgpu.so:liba.so:libb.so\nexport VGPU_GRANT=RUN/jobs/7/grant\nexport VGPU_CACHE=RUN/jobs/7/cache\n",
		},
		"our library is not named twice": {
			func(t *testing.T, config Config) { writeGrant(t, jobFile(config, "grant")) },
			jobEnv("prolog_task", "LD_PRELOAD", "liba.so:/opt/libvgpu.so"), 0,
			"export LD_PRELOAD=liba.so:/opt/libvgpu.so\nexport VGPU_GRANT=RUN/jobs/7/grant\nexport VGPU_CACHE=RUN/jobs/7/cache\n",
		},
		"variables that gresd wants are set": {
			func(t *testing.T, config Config) {
				writeGrant(t, jobFile(config, "grant"))
				if err := os.WriteFile(jobFile(config, "environment"), []byte("CUDA_X=1\nCUDA_Y=a b\n"), 0o444); err != nil {
					t.Fatal(err)
				}
			}, jobEnv("prolog_task"), 0,
			"export LD_PRELOAD=/opt/libvgpu.so\nexport VGPU_GRANT=RUN/jobs/7/grant\nexport VGPU_CACHE=RUN/jobs/7/cache\n" +
				"export CUDA_X=1\nexport CUDA_Y=a b\n",
		},
		"tasks of a step on this node divide what is for all of them": {
			func(t *testing.T, config Config) {
				writeGrant(t, jobFile(config, "grant"))
				if err := os.WriteFile(jobFile(config, "environment"), []byte("CUDA_X/tasks=70\nCUDA_Y/tasks=3\n"), 0o444); err != nil {
					t.Fatal(err)
				}
			}, jobEnv("prolog_task", "SLURM_STEP_TASKS_PER_NODE", "2(x3),4", "SLURM_NODEID", "3"), 0,
			"export LD_PRELOAD=/opt/libvgpu.so\nexport VGPU_GRANT=RUN/jobs/7/grant\nexport VGPU_CACHE=RUN/jobs/7/cache\n" +
				"export CUDA_X=17\nexport CUDA_Y=1\n",
		},
		"a step with --gres=none has no card": {
			func(t *testing.T, config Config) {
				writeGrant(t, jobFile(config, "grant"))
				if err := os.WriteFile(jobFile(config, "environment"), []byte("CUDA_VISIBLE_DEVICES=0\n"), 0o444); err != nil {
					t.Fatal(err)
				}
			}, jobEnv("prolog_task", "SLURM_STEP_GPUS", ""), 0,
			"export LD_PRELOAD=/opt/libvgpu.so\nexport VGPU_GRANT=RUN/jobs/7/grant\nexport VGPU_CACHE=RUN/jobs/7/cache\n" +
				"export CUDA_VISIBLE_DEVICES=0\nexport CUDA_VISIBLE_DEVICES=NoDevFiles\n",
		},
		"where gresd chooses the cards no step can be told apart": {
			func(t *testing.T, config Config) {
				writeGrant(t, jobFile(config, "grant"))
				if err := os.WriteFile(filepath.Join(config.RunDir, "ask-gresd"), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}, jobEnv("prolog_task", "SLURM_STEP_GPUS", ""), 0,
			"export LD_PRELOAD=/opt/libvgpu.so\nexport VGPU_GRANT=RUN/jobs/7/grant\nexport VGPU_CACHE=RUN/jobs/7/cache\n",
		},
		"whole cards among MIG instances have names": {
			nameCards, jobEnv("prolog_task", "SLURM_STEP_GPUS", "2,0", "CUDA_VISIBLE_DEVICES", "0,1"), 0,
			"export CUDA_VISIBLE_DEVICES=GPU-c,MIG-a\n",
		},
		"a task with some of its step's cards": {
			nameCards, jobEnv("prolog_task", "SLURM_STEP_GPUS", "0,2", "CUDA_VISIBLE_DEVICES", "0"), 0, "",
		},
		"names that Slurm has given itself": {
			nameCards, jobEnv("prolog_task", "SLURM_STEP_GPUS", "0", "CUDA_VISIBLE_DEVICES", "MIG-a"), 0, "",
		},
		"a refused job does not run": {
			func(t *testing.T, config Config) {
				writeGrant(t, jobFile(config, "grant"))
				if err := os.WriteFile(jobFile(config, "refused"), []byte("vgpu: place: no room\nexport X=1\n"), 0o444); err != nil {
					t.Fatal(err)
				}
			}, jobEnv("prolog_task"), 1, "print vgpu: place: no room\n",
		},
		"a job with shards and no grant does not run": {
			func(*testing.T, Config) {}, jobEnv("prolog_task", "SLURM_SHARDS_ON_NODE", "30"), 1,
			"print vgpu: task: job 7: 30 shards, but no grant on this node: " +
				"is Prolog=vgpu-prolog in slurm.conf, and gresd well (vgpuctl status)?\n",
		},
		"a component of a het job finds its own directory": {
			func(t *testing.T, config Config) { writeGrant(t, jobFile(config, "grant")) },
			jobEnv("prolog_task", "SLURM_JOB_ID", "6", "SLURM_HET_SIZE", "2",
				"SLURM_JOB_ID_HET_GROUP_0", "6", "SLURM_JOB_ID_HET_GROUP_1", "7"), 0,
			"export LD_PRELOAD=/opt/libvgpu.so\nexport VGPU_GRANT=RUN/jobs/7/grant\nexport VGPU_CACHE=RUN/jobs/7/cache\n",
		},
		"a component of a het job of srun finds its own directory": {
			func(t *testing.T, config Config) { writeGrant(t, jobFile(config, "grant")) },
			jobEnv("prolog_task", "SLURM_JOB_ID", "6", "SLURM_HET_SIZE", "2",
				"SLURM_JOB_ID_PACK_GROUP_0", "6", "SLURM_JOB_ID_PACK_GROUP_1", "7"), 0,
			"export LD_PRELOAD=/opt/libvgpu.so\nexport VGPU_GRANT=RUN/jobs/7/grant\nexport VGPU_CACHE=RUN/jobs/7/cache\n",
		},
		"a forged job id leads nowhere": {
			func(t *testing.T, config Config) { writeGrant(t, filepath.Join(config.RunDir, "grant")) },
			jobEnv("prolog_task", "SLURM_JOB_ID", ".."), 0, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig(t)
			c.prepare(t, config)
			r := runHook(t, config, c.env)
			want := strings.ReplaceAll(c.stdout, "RUN", config.RunDir)
			if r.code != c.code || r.stdout != want {
				t.Errorf("got code %d, stdout\n%s\nwant %d\n%s", r.code, r.stdout, c.code, want)
			}
		})
	}
}

func nameCards(t *testing.T, config Config) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(config.RunDir, "cards"), []byte("0 MIG-a\n1 MIG-b\n2 GPU-c\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestGrantMagicIsThatOfTheRegion(t *testing.T) {
	header, err := os.ReadFile("../../libvgpu/region.h")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`#define VGPU_GRANT_MAGIC 0x([0-9a-f]+)ull`).FindSubmatch(header)
	if found == nil {
		t.Fatal("VGPU_GRANT_MAGIC is not in region.h")
	}
	magic, err := strconv.ParseUint(string(found[1]), 16, 64)
	if err != nil || magic != grantMagic {
		t.Errorf("region.h has %#x (%v), here is %#x", magic, err, uint64(grantMagic))
	}
}

func TestReadConfig(t *testing.T) {
	defaults := Config{RunDir: "/run/vgpu", Library: "/usr/lib/vgpu/libvgpu.so", Found: true}
	for name, c := range map[string]struct {
		text string
		want Config
		bad  bool
	}{
		"an empty file":             {"", defaults, false},
		"only other tables":         {"[arbiter]\nperiod_us = 1\n", defaults, false},
		"both paths":                {"[paths]\nrun_dir = \"/r\"\nlibrary = \"/l.so\"\nnew = 1\n", Config{RunDir: "/r", Library: "/l.so", Found: true}, false},
		"Slurm's commands":          {"[slurm]\nscontrol = \"/s\"\nconf = \"/c\"\n", Config{RunDir: "/run/vgpu", Library: "/usr/lib/vgpu/libvgpu.so", Scontrol: "/s", SlurmConf: "/c", Found: true}, false},
		"a broken file is reported": {"[paths\n", defaults, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "vgpu.toml")
			if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			got, err := ReadConfig(path)
			if got != c.want || (err != nil) != c.bad {
				t.Errorf("got %+v, %v; want %+v, an error: %v", got, err, c.want, c.bad)
			}
		})
	}
	defaults.Found = false
	if got, err := ReadConfig(filepath.Join(t.TempDir(), "none")); got != defaults || err != nil {
		t.Errorf("no file: got %+v, %v", got, err)
	}
}
