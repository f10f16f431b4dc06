// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// siege is a node under attack.
type siege struct {
	*cluster.Cluster
	t *testing.T

	gresd     int // the process
	victim    int // bob's job
	victimPID int // its program
	own       int // alice's job
	grant     libvgpu.GrantSpec
	slow      *pending
	recorder  *recorder
}

// besiege starts the node, the attacked job, and alice's.
func besiege(t *testing.T) *siege {
	t.Helper()
	logs, err := filepath.Abs("../../../build/e2e/hostile")
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Up(cluster.Options{
		Logs:   logs,
		Cards:  slices.Repeat([]cluster.Card{{Name: "Simulated H100 80GB", Memory: "80G"}}, 2),
		Config: "[audit]\nescaped = \"report\"\n[mps]\nengines = [\"mps\", \"concurrent\"]\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &siege{Cluster: c, t: t}
	t.Cleanup(s.end)
	s.ownRunDir()
	s.install()
	s.victim = s.submit(bob, "--gres=vgpu:30", "exec "+cluster.Worker+" --alloc 1G --hold 600")
	s.own = s.submit(alice, "--gres=vgpu:20 --vgpu-mem=8G", "exec "+agentName+" serve agent.sock")
	s.eventually("both jobs have a grant and the victim its memory", func() bool {
		records, err := s.Records()
		view, cacheErr := libvgpu.ReadCache(cluster.JobDir(s.victim) + "/cache")
		if err != nil || len(records) != 2 || cacheErr != nil || len(view.Slots) == 0 || view.Cards[0].MemUsed < gib {
			return false
		}
		s.victimPID = int(view.Slots[0].HostPID)
		return s.victimPID != 0
	})
	if s.grant, _, err = libvgpu.ReadGrant(cluster.JobDir(s.victim) + "/grant"); err != nil {
		t.Fatal(err)
	}
	s.gresd = s.Gresd.PID()
	s.slow = s.start(bob, "slow") // takes its time; see floodAttacks
	return s
}

// end also says what is left of the attackers and of their jobs.
func (s *siege) end() {
	if s.slow != nil {
		_ = s.slow.cmd.Process.Kill()
	}
	if !s.t.Failed() {
		for user, job := range map[string]int{alice: s.own, bob: s.victim} {
			if err := s.Cancel(user, job); err != nil {
				s.t.Error(err)
			}
		}
		for _, left := range s.Leftovers(5 * time.Second) {
			s.t.Errorf("left at the end: %s", left)
		}
	}
	if s.t.Failed() {
		s.t.Logf("the ends of the logs:\n%s", s.Tail(15))
	}
	s.Gresd.Stop()
	if err := unix.Unmount(runDir, unix.MNT_DETACH); err != nil {
		s.t.Error(err)
	}
	if err := s.Close(); err != nil {
		s.t.Error(err)
	}
}

// ownRunDir gives gresd a filesystem of its own, as docs/security.md recommends: the
// rest of /run, where this Slurm keeps its files, is not what is attacked.
func (s *siege) ownRunDir() {
	s.t.Helper()
	s.Gresd.Stop()
	if err := unix.Mount("tmpfs", runDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=24M"); err != nil {
		s.t.Fatal(err)
	}
	var err error
	if s.recorder, err = record(runDir, state); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Gresd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *siege) of(t *testing.T) *siege { c := *s; c.t = t; return &c }

// install puts the attackers' programs where users may run them.
func (s *siege) install() {
	s.t.Helper()
	for from, to := range map[string]string{
		"/proc/self/exe": agentName, "../../../build/tests/vgpu-escape": "vgpu-escape", "../../../build/tests/vgpu-escape-static": "vgpu-escape-static",
	} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(cluster.Dir, "bin", to), data, 0o755)
		}
		if err != nil {
			s.t.Fatalf("%v (run make first)", err)
		}
	}
}

func (s *siege) submit(user, args, script string) int {
	s.t.Helper()
	job, err := s.Sbatch(user, strings.Fields(args), script)
	if err != nil {
		s.t.Fatal(err)
	}
	return job
}

func (s *siege) eventually(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// attack runs an agent as a user, outside of any job.
func (s *siege) attack(user string, args ...string) tally {
	s.t.Helper()
	return s.start(user, args...).wait(s.t)
}

// pending is an agent that runs.
type pending struct {
	cmd      *exec.Cmd
	out, err bytes.Buffer
	done     chan error
}

func (s *siege) start(user string, args ...string) *pending {
	s.t.Helper()
	return s.startWith(user, func(*syscall.Credential) {}, args...)
}

func (s *siege) startWith(user string, change func(*syscall.Credential), args ...string) *pending {
	s.t.Helper()
	cmd, err := s.Command(user, append([]string{agentName}, args...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	change(cmd.SysProcAttr.Credential)
	p := &pending{cmd: cmd, done: make(chan error, 1)}
	cmd.Stdout, cmd.Stderr = &p.out, &p.err
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() { p.done <- cmd.Wait(); close(p.done) }()
	return p
}

func (p *pending) wait(t *testing.T) tally {
	t.Helper()
	select {
	case err := <-p.done:
		if err != nil {
			t.Fatalf("%v: %v: %s", p.cmd.Args, err, p.err.String())
		}
	case <-time.After(90 * time.Second):
		_ = p.cmd.Process.Kill()
		t.Fatalf("%v: hangs", p.cmd.Args)
	}
	return read(t, p.out.Bytes())
}

func read(t *testing.T, text []byte) tally {
	t.Helper()
	var got tally
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("an agent's report: %v: %q", err, text)
	}
	return got
}

// attackInside runs an agent in alice's job.
func (s *siege) attackInside(args ...string) tally {
	s.t.Helper()
	var got tally
	s.eventually("alice's job takes orders", func() bool {
		conn, err := net.Dial("unix", filepath.Join(s.Home(alice), "agent.sock"))
		if err != nil {
			return false
		}
		defer conn.Close()
		err = json.NewEncoder(conn).Encode(args)
		if err == nil {
			err = json.NewDecoder(conn).Decode(&got)
		}
		if err != nil {
			s.t.Fatalf("%v in alice's job: %v; output:\n%s", args, err, s.Output(alice, s.own))
		}
		return true
	})
	return got
}

// serve runs agents in this very process, one after another, for whom connects.
func serve(args []string) tally {
	listener, err := net.Listen("unix", args[0])
	for err == nil {
		var conn net.Conn
		if conn, err = listener.Accept(); err != nil {
			break
		}
		var order []string
		if err := json.NewDecoder(conn).Decode(&order); err == nil {
			_ = json.NewEncoder(conn).Encode(agents[order[0]](order[1:]))
		}
		conn.Close()
	}
	return tally{Said: fmt.Sprint(err)}
}

func init() { agents["serve"] = serve }

func (s *siege) finished(user string, job int) string {
	s.t.Helper()
	state, err := s.Wait(job, 60*time.Second)
	if err != nil || state != "COMPLETED" {
		s.t.Fatalf("job %d: %s, %v, want COMPLETED; output:\n%s", job, state, err, s.Output(user, job))
	}
	return s.Output(user, job)
}

// longestAnswer is how long root may wait for an answer of gresd, whatever users do.
const longestAnswer = 2 * time.Second

// asRoot asks as Prolog and Epilog do.
func (s *siege) asRoot(req wire.Request) (wire.Reply, time.Duration, error) {
	began := time.Now()
	client := wire.Client{Socket: socket, Timeout: 10 * time.Second}
	rep, err := client.Do(context.Background(), req)
	return rep, time.Since(began), err
}

// nuisance asks as root while something goes on, and returns the longest wait.
func (s *siege) nuisance(during func()) time.Duration {
	s.t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); during() }()
	var worst time.Duration
	for {
		// The Epilog of a job that never was: it takes the locks of a real one.
		if _, took, err := s.asRoot(wire.Request{Op: wire.OpRelease, JobID: 4_000_000}); err != nil {
			s.t.Errorf("root is kept out: %v", err)
		} else {
			worst = max(worst, took)
		}
		select {
		case <-done:
			if worst > longestAnswer {
				s.t.Errorf("root waited %s for an answer, want at most %s", worst, longestAnswer)
			}
			return worst
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// unharmed fails the test where an attack has done something to others.
func (s *siege) unharmed() {
	s.t.Helper()
	if !s.Gresd.Alive() {
		s.t.Fatal("gresd has ended")
	}
	if _, took, err := s.asRoot(wire.Request{Op: wire.OpPing}); err != nil || took > longestAnswer {
		s.t.Errorf("gresd answers root after %s: %v", took, err)
	}
	spec, _, err := libvgpu.ReadGrant(cluster.JobDir(s.victim) + "/grant")
	if err != nil || spec.Revoked || spec.UID != s.grant.UID || spec.Cards[0].MemLimit != s.grant.Cards[0].MemLimit ||
		spec.Cards[0].Share != s.grant.Cards[0].Share || spec.Cards[0].UUID != s.grant.Cards[0].UUID {
		s.t.Errorf("the victim's grant is %+v, %v; want %+v", spec, err, s.grant)
	}
	view, err := libvgpu.ReadCache(cluster.JobDir(s.victim) + "/cache")
	if err != nil || view.Cards[0].MemUsed < gib || !slices.ContainsFunc(view.Slots, func(v libvgpu.SlotView) bool {
		return v.Alive && int(v.HostPID) == s.victimPID
	}) {
		s.t.Errorf("the victim's cache is %+v, %v", view, err)
	}
	if state := s.NodeState(); strings.Contains(state, "DRAIN") || strings.Contains(state, "DOWN") {
		s.t.Errorf("the node is %s", state)
	}
}

// honestJob is what must still work at the end.
func (s *siege) honestJob() {
	s.t.Helper()
	looks := cluster.Looks(s.finished(bob, s.submit(bob, "--gres=vgpu:10", cluster.LookScript)))
	if len(looks) != 1 || looks[0].Total != 8*gib || looks[0].Granted > 8*gib {
		s.t.Errorf("an honest job sees %+v, want 8 GiB", looks)
	}
}

// descriptors is how many files a process has open.
func descriptors(pid int) int {
	names, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
	if err != nil {
		return -1
	}
	return len(names)
}
