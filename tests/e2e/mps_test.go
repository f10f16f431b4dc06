// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
)

const mpsPrograms = cluster.Dir + "/mps"

// mpsCard is a card that MPS may divide, with programs that stand in for
// NVIDIA's. They do not limit the simulated card. engines are further ones that it offers.
func mpsCard(more string, engines ...string) cluster.Options {
	opts := oneCard
	opts.Config = fmt.Sprintf("[mps]\nengines = [\"%s\"]\n%s", strings.Join(append(engines, "mps"), `", "`), more)
	return opts
}

// mpsProcesses are the control daemons and servers that run.
func (s site) mpsProcesses() []cluster.Process { return append(s.mpsDaemons(), s.mpsServers()...) }

func (s site) mpsDaemons() []cluster.Process { return s.programs(fake.Control) }
func (s site) mpsServers() []cluster.Process { return s.programs(fake.Server) }

// programs are the processes of a program of that name, not shells or srun that speak with it.
func (s site) programs(name string) []cluster.Process {
	var all []cluster.Process
	for _, p := range s.Processes() {
		if program, _, _ := strings.Cut(p.Command, " "); filepath.Base(program) == name {
			all = append(all, p)
		}
	}
	return all
}

const showMPS = `env | grep -E '^CUDA_(MPS|VISIBLE)' | sort; echo get_default_active_thread_percentage | ` +
	mpsPrograms + "/" + fake.Control

func TestMPSServesTheJobsOfOneUser(t *testing.T) {
	s := up(t, mpsCard(""))
	a := s.submit(alice, "--gres=vgpu:30 --vgpu-engine=mps", showMPS+"; sleep 300")
	b := s.submit(alice, "--gres=vgpu:60 --vgpu-engine=mps", "srun sh -c \""+strings.ReplaceAll(showMPS, `"`, `\"`)+"\"; sleep 300")
	for job, want := range map[int][]string{a: {"PERCENTAGE=30\n"}, b: {"PERCENTAGE=60\n", "60.0\n"}} {
		var out string
		s.eventually(shortWait, "the job tells its environment", func() bool {
			out = s.Output(alice, job)
			return strings.Contains(out, ".0\n")
		})
		// Slurm's own CUDA_VISIBLE_DEVICES counts cards that the daemon does not see.
		for _, part := range append(want, "CUDA_VISIBLE_DEVICES=GPU-", "CUDA_MPS_PIPE_DIRECTORY=/run/vgpu/mps/GPU-") {
			if !strings.Contains(out, part) {
				t.Errorf("job %d lacks %q:\n%s", job, part, out)
			}
		}
	}
	if got := s.mpsDaemons(); len(got) != 1 {
		t.Errorf("%d control daemons, want one: %v", len(got), got)
	}
	// Memory is libvgpu's, whatever divides the compute.
	c := look(t, s.completed(alice, s.submit(alice, "--gres=vgpu:10 --vgpu-mem=8G --vgpu-engine=mps", cluster.LookScript)))
	if c.Total != 8*gib || c.Granted > 8*gib || c.Refusal != "CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("saw %d bytes, took %d until %q, want 8 GiB at most", c.Total, c.Granted, c.Refusal)
	}
	s.cancel(alice, a)
	if got := s.mpsDaemons(); len(got) != 1 {
		t.Errorf("%d control daemons while a job needs one: %v", len(got), got)
	}
	s.cancel(alice, b)
	s.eventually(shortWait, "the daemon ends with its last job", func() bool { return len(s.mpsProcesses()) == 0 })
	// The limit of MPS is one of each process: four ranks of 70 would have 280.
	for _, r := range []struct{ tasks, want string }{{"4", "=17\n"}, {"1", "=70\n"}} {
		out := s.completed(alice, s.submit(alice, "--gres=vgpu:70 --vgpu-engine=mps --overcommit -n"+r.tasks,
			"srun --overlap --overcommit -n"+r.tasks+" env | grep PERCENTAGE"))
		if n := strings.Count(out, "PERCENTAGE"+r.want); strconv.Itoa(n) != r.tasks {
			t.Errorf("%d of %s tasks have PERCENTAGE%s:\n%s", n, r.tasks, strings.TrimSpace(r.want), out)
		}
	}
}

func TestMPSKeepsToItself(t *testing.T) {
	s := up(t, mpsCard(""))
	first := s.submit(alice, "--gres=vgpu:30 --vgpu-engine=mps", "sleep 300")
	s.running(first)
	who := fmt.Sprintf("job %d of user %s", first, alice)
	for _, r := range []struct{ name, user, args, want string }{
		{"MPS of another user", bob, "--vgpu-engine=mps", "a job of another user"},
		{"shared by time", alice, "--vgpu-engine=time", who},
		{"shared by time, without the option", bob, "", "a job of another user"},
		{"soft", alice, "--vgpu-engine=mps --vgpu-mode=soft", "--vgpu-mode=hard"},
	} {
		t.Run(r.name, func(t *testing.T) {
			s := site{s.Cluster, t}
			job := s.submit(r.user, "--gres=vgpu:20 "+r.args, "true")
			state, out := s.ended(r.user, job)
			if state != "FAILED" {
				t.Errorf("%s, want FAILED", state)
			}
			checkLine(t, out, "vgpu: place: job ", "--vgpu-engine", r.want, "want ")
			if node := s.NodeState(); node != "MIXED" {
				t.Errorf("node: %s, want MIXED", node)
			}
		})
	}
	// A restart of gresd, even by a kill, leaves the daemon as it is.
	before := s.mpsProcesses()
	s.Gresd.Kill()
	if err := s.Gresd.Start(); err != nil {
		t.Fatal(err)
	}
	// Clients that gresd asks it with live for a moment.
	s.eventually(shortWait, "the daemon from before is the only one", func() bool {
		after := s.mpsProcesses()
		return len(before) == 1 && len(after) == 1 && before[0].PID == after[0].PID
	})
	s.cancel(alice, first)
	s.completed(bob, s.submit(bob, "--gres=vgpu:20", "true"))

	// The other way round.
	first = s.submit(bob, "--gres=vgpu:30", "sleep 300")
	s.running(first)
	state, out := s.ended(alice, s.submit(alice, "--gres=vgpu:20 --vgpu-engine=mps", "true"))
	if state != "FAILED" {
		t.Errorf("MPS beside a job that is shared by time: %s, want FAILED", state)
	}
	checkLine(t, out, "vgpu: place: job ", "a job of another user")
	s.cancel(bob, first)
}

func TestMPSThatDoesNotWorkRefusesTheJobAlone(t *testing.T) {
	s := up(t, mpsCard(""))
	if err := fake.Behave(mpsPrograms, fake.Fail); err != nil {
		t.Fatal(err)
	}
	state, out := s.ended(alice, s.submit(alice, "--gres=vgpu:20 --vgpu-engine=mps", "true"))
	if state != "FAILED" {
		t.Errorf("%s, want FAILED", state)
	}
	checkLine(t, out, "vgpu: mps: job ", "Failed to start: no device", "--vgpu-engine=time")
	if err := os.Remove(filepath.Join(mpsPrograms, fake.Control)); err != nil {
		t.Fatal(err)
	}
	state, out = s.ended(alice, s.submit(alice, "--gres=vgpu:20 --vgpu-engine=mps", "true"))
	if state != "FAILED" {
		t.Errorf("%s, want FAILED", state)
	}
	checkLine(t, out, "vgpu: place: job ", "no MPS on this node", "--vgpu-engine=time")
	s.eventually(10*time.Second, "the node is not drained", func() bool { return s.NodeState() == "IDLE" })
	s.completed(bob, s.submit(bob, "--gres=vgpu:20", "true"))
}

// Jobs of two users on one card have one server; when it dies, its clients lose their work, the next
// program has another one, and nothing else on the node is touched.
func TestOneServerForTheJobsOfAllUsers(t *testing.T) {
	s := up(t, mpsCard("", "concurrent"))
	const engine = " --vgpu-engine=concurrent --vgpu-mode=soft"
	work := "env | grep ^CUDA_MPS; " + cluster.Worker + " --kernel-us 1000 --saturate 300 || echo lost; touch next.$SLURM_JOB_ID; sleep 300"
	a := s.submit(alice, "--gres=vgpu:30"+engine, work)
	b := s.submit(bob, "--gres=vgpu:60"+engine, work)
	s.running(a, b)
	s.eventually(shortWait, "one server for both", func() bool { return len(s.mpsServers()) == 1 && len(s.programs("vgpu-worker")) == 2 })
	for user, job := range map[string]int{alice: a, bob: b} {
		s.eventually(shortWait, "the job tells its environment", func() bool {
			return strings.Contains(s.Output(user, job), "/all/pipe\n")
		})
		if out := s.Output(user, job); strings.Contains(out, "PERCENTAGE") {
			t.Errorf("job %d has a percentage:\n%s", job, out)
		}
	}
	checkLine(t, s.Output(bob, s.refusedJob(bob, "--gres=vgpu:5 --vgpu-engine=time")), "vgpu: place: job ", "shared by the engine concurrent with a job of another user")
	// A program that does not find the server has none of the card.
	out := s.Output(alice, s.failedJob(alice, "--gres=vgpu:5"+engine, "env -u CUDA_MPS_PIPE_DIRECTORY "+cluster.Worker+" --report 2>&1"))
	checkLine(t, out, "vgpu: engine: job ", "no client of its card's MPS server")

	daemon, server := s.mpsDaemons(), s.mpsServers()
	if len(daemon) != 1 || !strings.HasSuffix(daemon[0].Command, fake.Control+" -f -M") || len(server) != 1 {
		t.Fatalf("daemons %v, servers %v", daemon, server)
	}
	if err := syscall.Kill(server[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for user, job := range map[string]int{alice: a, bob: b} {
		s.eventually(shortWait, "its clients have lost their work", func() bool { return strings.Contains(s.Output(user, job), "lost\n") })
	}
	s.running(a, b) // the jobs themselves go on
	c := s.submit(bob, "--gres=vgpu:5"+engine, cluster.Worker+" --kernel-us 1000 --saturate 1")
	s.completed(bob, c)
	if after := s.mpsServers(); len(after) != 1 || after[0].PID == server[0].PID {
		t.Errorf("servers before %v, after %v; want another one", server, after)
	}
	if now := s.mpsDaemons(); len(now) != 1 || now[0].PID != daemon[0].PID {
		t.Errorf("the control daemon was %v and is %v; want the same", daemon, now)
	}
	s.cancel(alice, a)
	s.cancel(bob, b)
	s.eventually(shortWait, "the daemon ends with the last job", func() bool { return len(s.mpsProcesses()) == 0 })
	if node := s.NodeState(); node != "IDLE" {
		t.Errorf("node: %s, want IDLE", node)
	}
}

// refusedJob is a job that is refused, and failedJob one that fails.
func (s site) refusedJob(user, args string) int { return s.failedJob(user, args, "true") }

func (s site) failedJob(user, args, script string) int {
	s.t.Helper()
	job := s.submit(user, args, script)
	if state, out := s.ended(user, job); state != "FAILED" {
		s.t.Errorf("job %d: %s, want FAILED: %s", job, state, out)
	}
	return job
}

// Without the SPANK plugin the option is vgpu-srun's and the variables come
// from TaskProlog.
func TestMPSByDefaultWithoutThePlugin(t *testing.T) {
	opts := mpsCard("default_engine = \"mps\"\n")
	opts.NoPlugin = true
	s := up(t, opts)
	out := s.completed(alice, s.submit(alice, "--gres=vgpu:30", showMPS))
	for _, part := range []string{"PERCENTAGE=30\n", "CUDA_VISIBLE_DEVICES=GPU-", "30.0\n"} {
		if !strings.Contains(out, part) {
			t.Errorf("lacks %q:\n%s", part, out)
		}
	}
	r := s.As(alice, "vgpu-srun", "--gres=vgpu:30", "-n2", "--overcommit", "env")
	if n := strings.Count(r.Out+"\n", "PERCENTAGE=15\n"); n != 2 {
		t.Errorf("%d of 2 tasks have half of the share: %s", n, r)
	}
	r = s.As(alice, "vgpu-srun", "--gres=vgpu:30", "--vgpu-engine=time", "env")
	if r.Code != 0 || strings.Contains(r.Out, "CUDA_MPS") {
		t.Errorf("--vgpu-engine=time does not beat the site's default: %s", r)
	}
}

// Jobs of one account work side by side on a card, those of another one on the next card, and a third
// account finds no card on which everybody is trusted. What was chosen, and why, survives gresd.
func TestAutoPutsTheJobsOfAnAccountSideBySide(t *testing.T) {
	opts := mpsCard("default_engine = \"auto\"\n", "concurrent")
	opts.Cards, opts.GresdPlaces, opts.Config = twoCards, true, "wait_s = 3\n"+opts.Config
	s := up(t, opts)
	jobs := map[int]string{}
	var order []int
	for _, j := range []struct{ user, args string }{
		{alice, "--account=phys"}, {bob, "--account=chem"}, {bob, "--account=phys --vgpu-engine=auto"},
	} {
		job := s.submit(j.user, "--gres=vgpu:30 "+j.args, cluster.Worker+" --kernel-us 1000 --saturate 300")
		s.running(job)
		jobs[job], order = j.user, append(order, job)
	}
	s.eventually(shortWait, "each card has a server, and all three jobs work", func() bool {
		return len(s.mpsServers()) == 2 && len(s.programs("vgpu-worker")) == 3
	})
	records, err := s.Records()
	if err != nil {
		t.Fatal(err)
	}
	cards := map[int]int{}
	for _, r := range records {
		cards[int(r.JobID)] = r.Cards[0].Index
	}
	if cards[order[0]] != cards[order[2]] || cards[order[0]] == cards[order[1]] {
		t.Errorf("cards of the jobs %v: %v; want the first and last side by side, and the other account's elsewhere", order, cards)
	}
	whys := []string{"no other job was on the card", "no other job was on the card", "all jobs on the card were of the same account"}
	explained := func() {
		t.Helper()
		for i, job := range order {
			r := s.As(jobs[job], "vgpuctl", "explain", strconv.Itoa(job))
			if want := "\nengine concurrent: " + whys[i] + "\n"; r.Code != 0 || !strings.Contains(r.Out, want) {
				t.Errorf("job %d: want %q: %s", job, want, r)
			}
		}
	}
	explained()
	s.Gresd.Kill()
	if err := s.Gresd.Start(); err != nil {
		t.Fatal(err)
	}
	explained()
	for _, engine := range []string{"", " --vgpu-engine=concurrent"} {
		checkLine(t, s.Output(carol, s.refusedJob(carol, "--gres=vgpu:5 --account=bio"+engine)), "vgpu: place: job ",
			"--vgpu-engine=auto is for jobs of the same account there")
	}
	for job, user := range jobs {
		s.cancel(user, job)
	}
	s.eventually(shortWait, "the daemons end with the last jobs", func() bool { return len(s.mpsProcesses()) == 0 })
	// A card that is divided by time stays so.
	first := s.submit(alice, "--gres=vgpu:30 --account=phys --vgpu-engine=time", "sleep 300")
	s.running(first)
	second := s.submit(alice, "--gres=vgpu:30 --account=phys", "sleep 300")
	s.running(second)
	if r := s.As(alice, "vgpuctl", "explain", strconv.Itoa(second)); !strings.Contains(r.Out, "\nengine time: a job with the engine time was on the card\n") {
		t.Errorf("beside a job by time: %s", r)
	}
	s.cancel(alice, first)
	s.cancel(alice, second)
}
