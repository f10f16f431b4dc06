// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
)

// TestMain lets copies of the test program be NVIDIA's programs, and plays the client of a guard.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "client" {
		playClient(os.Args[2])
	}
	if fake.IsName(os.Args[0]) {
		unix.Exit(fake.Main()) // os.Exit sleeps for a second in a program with the race detector
	}
	os.Exit(m.Run())
}

const (
	nobody, games = 65534, 5
	card          = gpu.UUID("GPU-5f3c1d2e-0000-1111-2222-333344445555")
)

var quick = Times{
	Start: 3 * time.Second, Answer: 500 * time.Millisecond, Quit: 500 * time.Millisecond, Term: 500 * time.Millisecond,
	Health: 100 * time.Millisecond, Backoff: 50 * time.Millisecond,
}

// node is a place with NVIDIA's programs where a manager can be made again.
type node struct {
	*testing.T
	bin string
	cfg Config
	*Manager
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps") // short: sockets are below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &node{T: t, bin: filepath.Join(dir, "bin")}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(n.bin, 0o755)); err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	n.cfg = Config{Dir: filepath.Join(dir, "mps"), Control: filepath.Join(n.bin, fake.Control), Times: quick, Log: slog.New(slog.DiscardHandler)}
	if err := os.WriteFile(n.cfg.Control, self, 0o755); err != nil {
		t.Fatal(err)
	}
	n.open()
	t.Cleanup(func() {
		n.Behave()
		n.mu.Lock()
		jobs := slices.Collect(keys(n.jobs))
		n.mu.Unlock()
		for _, id := range jobs {
			n.Release(id)
		}
		n.Settle()
		n.eventually("nothing is left", func() bool { return len(n.processes()) == 0 && len(n.files()) == 0 })
		n.Close()
	})
	return n
}

func keys[V any](m map[uint32]V) func(func(uint32) bool) {
	return func(yield func(uint32) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (n *node) open() {
	n.Helper()
	m, err := New(n.cfg)
	if err != nil {
		n.Fatal(err)
	}
	n.Manager = m
}

// reopen is what a restart of gresd amounts to.
func (n *node) reopen() {
	n.Helper()
	n.Close()
	n.open()
}

func (n *node) Behave(words ...string) {
	n.Helper()
	if err := fake.Behave(n.bin, words...); err != nil {
		n.Fatal(err)
	}
}

func (n *node) wait(job uint32) error {
	ctx, cancel := context.WithTimeout(n.Context(), 8*time.Second)
	defer cancel()
	return n.Wait(ctx, job)
}

func (n *node) up(job uint32, key Key, percent gpu.Share) {
	n.Helper()
	n.Keep(job, key, key.UID, percent)
	if err := n.wait(job); err != nil {
		n.Fatalf("job %d: %v", job, err)
	}
	if !n.Serves(job) || n.Holds(job) == key.Everyone {
		n.Fatalf("job %d: served %v, held %v", job, n.Serves(job), n.Holds(job))
	}
}

func (n *node) eventually(what string, ok func() bool) {
	n.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			n.Fatalf("not after 10 s: %s; processes %v, files %v", what, n.processes(), n.files())
		}
	}
}

// processes are those of NVIDIA's programs here, by name: control or server.
func (n *node) processes() map[int]string {
	all := map[int]string{}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		exe, err := os.Readlink(dir + "/exe")
		if err != nil || !strings.HasPrefix(exe, n.bin+"/") {
			continue
		}
		line, _ := os.ReadFile(dir + "/cmdline")
		pid, _ := strconv.Atoi(filepath.Base(dir))
		name, _, _ := strings.Cut(string(line), "\x00")
		if stat, ok := process.Of(pid).Stat(); ok && !stat.Ended && !strings.HasSuffix(string(line), fake.Control+"\x00") { // not a client
			all[pid] = filepath.Base(name)
		}
	}
	return all
}

func (n *node) only(name string) int {
	n.Helper()
	found := 0
	for pid, is := range n.processes() {
		if is == name {
			if found != 0 {
				n.Fatalf("two of %s: %v", name, n.processes())
			}
			found = pid
		}
	}
	if found == 0 {
		n.Fatalf("no %s: %v", name, n.processes())
	}
	return found
}

func (n *node) files() []string {
	var all []string
	_ = filepath.WalkDir(n.cfg.Dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil && path != n.cfg.Dir {
			all = append(all, path)
		}
		return nil
	})
	return all
}

// tell is a command of the job's user, who may also say it by hand.
func (n *node) tell(key Key, command string) string {
	n.Helper()
	cmd := exec.Command(n.cfg.Control)
	cmd.Env = []string{PipeVariable + "=" + folderOf(n.cfg.Dir, key).pipe()}
	cmd.Stdin = strings.NewReader(command + "\n")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: key.UID, Gid: key.UID}}
	out, _ := cmd.CombinedOutput()
	return strings.TrimSpace(string(out))
}

func TestJobsOfAUserShareOneDaemon(t *testing.T) {
	n := newNode(t)
	key := Key{Card: card, UID: nobody}
	n.up(1, key, 30)
	pid := n.only(fake.Control)
	if uid, _ := process.Of(pid).UID(); uid != nobody {
		t.Errorf("the daemon runs as user %d, want the job's", uid)
	}
	env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if !strings.Contains(string(env), "CUDA_VISIBLE_DEVICES="+string(card)+"\x00") {
		t.Errorf("the daemon's environment is %q, want the card in it", env)
	}
	if got := n.tell(key, "get_default_active_thread_percentage"); got != "30.0" {
		t.Errorf("a client may have %q, want 30.0", got)
	}
	n.tell(key, "start_server")
	server := n.only(fake.Server)
	n.up(2, key, 70)
	if n.only(fake.Control) != pid || n.only(fake.Server) != server {
		t.Error("the second job has another daemon or server")
	}
	// The server that runs must allow the second job its part too.
	if got := n.tell(key, "get_active_thread_percentage "+strconv.Itoa(server)); got != "70.0" {
		t.Errorf("a client of the running server may have %q, want 70.0", got)
	}
	n.Release(2)
	n.eventually("30 % is all that is left", func() bool { return n.tell(key, "get_default_active_thread_percentage") == "30.0" })
	n.Settle()
	if !n.Holds(1) || n.Holds(2) {
		t.Errorf("job 1 held %v, job 2 held %v; want only job 1", n.Holds(1), n.Holds(2))
	}
	n.Release(1)
	n.eventually("all is gone", func() bool { return len(n.processes()) == 0 && len(n.files()) == 0 })
}

func TestOtherUsersAndCardsAreApart(t *testing.T) {
	n := newNode(t)
	n.up(1, Key{Card: card, UID: nobody}, 30)
	n.up(2, Key{Card: card, UID: games}, 30)
	n.up(3, Key{Card: card[:len(card)-1] + "6", UID: nobody}, 30)
	if got := len(n.processes()); got != 3 {
		t.Errorf("%d daemons, want 3", got)
	}
	// Nobody gets into the folders of another, whatever the sockets' modes are.
	mine := folderOf(n.cfg.Dir, Key{Card: card, UID: nobody})
	for _, dir := range []string{mine.pipe(), mine.logs()} {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil || st.Uid != nobody || st.Mode&0o777 != 0o700 {
			t.Errorf("%s: user %d mode %o, %v; want the user's own, 0700", dir, st.Uid, st.Mode&0o777, err)
		}
	}
	cmd := exec.Command(n.cfg.Control)
	cmd.Env, cmd.Stdin = []string{PipeVariable + "=" + mine.pipe()}, strings.NewReader("quit\n")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: games, Gid: games}}
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("another user reached the daemon: %s", out)
	}
	// The user must not be able to move its folders: root removes them later.
	for _, dir := range []string{mine.base(), mine.dir} {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil || st.Uid != 0 || st.Mode&0o022 != 0 {
			t.Errorf("%s: user %d mode %o, %v; want root's", dir, st.Uid, st.Mode&0o777, err)
		}
	}
}

func TestADeadDaemonIsStartedAgain(t *testing.T) {
	n := newNode(t)
	key := Key{Card: card, UID: nobody}
	n.up(1, key, 30)
	n.tell(key, "start_server")
	control, server := n.only(fake.Control), n.only(fake.Server)
	if err := unix.Kill(control, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.eventually("another daemon holds the job", func() bool {
		all := n.processes()
		return all[control] == "" && all[server] == "" && len(all) == 1 && n.Holds(1)
	})
}

func TestADaemonThatHangsIsStartedAgain(t *testing.T) {
	n := newNode(t)
	n.up(1, Key{Card: card, UID: nobody}, 30)
	control := n.only(fake.Control)
	n.Behave(fake.Hang)
	start := time.Now()
	n.Holds(1) // does not wait for it
	n.Keep(2, Key{Card: card, UID: nobody}, nobody, 40)
	n.Release(2)
	if took := time.Since(start); took > 100*time.Millisecond {
		t.Errorf("a daemon that hangs held up its manager for %s", took)
	}
	n.eventually("it is ended", func() bool { return n.processes()[control] == "" })
	n.Behave()
	n.eventually("another holds the job", func() bool { return n.Holds(1) && len(n.processes()) == 1 })
}

func TestADaemonThatCannotStartIsAnErrorOfTheJob(t *testing.T) {
	for word, want := range map[string]string{
		fake.Fail: "it said: Failed to start: no device",
		fake.Mute: "does not answer 1s after its start",
	} {
		t.Run(word, func(t *testing.T) {
			n := newNode(t)
			n.Close()
			n.cfg.Times.Start = time.Second
			n.open()
			n.Behave(word)
			n.Keep(1, Key{Card: card, UID: nobody}, nobody, 30)
			if err := n.wait(1); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
			if n.Holds(1) {
				t.Error("the job counts as held")
			}
			if all := n.Problems(); len(all) != 1 {
				t.Errorf("problems %q, want one", all)
			}
			// A later job need not wait for the end of the pause.
			n.Behave()
			n.up(2, Key{Card: card, UID: nobody}, 30)
			n.eventually("the first is held as well", func() bool { return n.Holds(1) })
		})
	}
}

func TestWithoutTheProgram(t *testing.T) {
	n := newNode(t)
	n.Close()
	n.cfg.Control = "nvidia-cuda-mps-control-that-is-not-here"
	n.open()
	if err := n.Available(); !errors.Is(err, ErrNoProgram) {
		t.Errorf("error %v, want ErrNoProgram", err)
	}
	n.Keep(1, Key{Card: card, UID: nobody}, nobody, 30)
	if err := n.wait(1); !errors.Is(err, ErrNoProgram) {
		t.Errorf("error %v, want ErrNoProgram", err)
	}
}

// What does not end when it is asked to is made to.
func TestTheEndIsCertain(t *testing.T) {
	for _, word := range []string{fake.Stay, fake.Stubborn, fake.Hang} {
		t.Run(word, func(t *testing.T) {
			n := newNode(t)
			key := Key{Card: card, UID: nobody}
			n.up(1, key, 30)
			n.tell(key, "start_server")
			n.only(fake.Server)
			n.Settle()
			n.Behave(word)
			n.Release(1)
			n.eventually("all is gone", func() bool { return len(n.processes()) == 0 && len(n.files()) == 0 })
		})
	}
}

func TestARestartAdoptsWhatRuns(t *testing.T) {
	n := newNode(t)
	key := Key{Card: card, UID: nobody}
	n.up(1, key, 30)
	n.tell(key, "start_server")
	before := n.processes()
	n.reopen()
	if len(n.processes()) != 2 {
		t.Fatalf("processes %v after a restart, were %v", n.processes(), before)
	}
	n.Keep(1, key, nobody, 30)
	if !n.Holds(1) {
		t.Error("the job is not held from the first moment")
	}
	n.Settle()
	if err := n.wait(1); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * quick.Health)
	for pid, name := range before {
		if n.processes()[pid] != name {
			t.Errorf("process %d (%s) did not survive the restart", pid, name)
		}
	}
	// It is watched although it is not our child.
	if err := unix.Kill(n.only(fake.Control), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.eventually("another daemon holds the job", func() bool {
		all := n.processes()
		return len(all) == 1 && all[n.processOf(fake.Control)] != "" && n.Holds(1) && before[n.processOf(fake.Control)] == ""
	})
}

// Jobs become known one after the other.
func TestARestartLowersNoPercentageBeforeAllJobsAreKnown(t *testing.T) {
	n := newNode(t)
	key := Key{Card: card, UID: nobody}
	n.up(1, key, 30)
	n.up(2, key, 70)
	n.reopen()
	allowed := func() string { return n.tell(key, "get_default_active_thread_percentage") }
	n.Keep(1, key, nobody, 30)
	time.Sleep(3 * quick.Health)
	n.Keep(2, key, nobody, 70)
	if got := allowed(); !n.Holds(1) || !n.Holds(2) || got != "70.0" {
		t.Errorf("job 1 held %v, job 2 held %v, a client may have %q; want both, and 70.0", n.Holds(1), n.Holds(2), got)
	}
	n.Settle()
	n.Release(2)
	n.eventually("30 % is all that is left", func() bool { return allowed() == "30.0" && n.Holds(1) })
}

func (n *node) processOf(name string) int {
	for pid, is := range n.processes() {
		if is == name {
			return pid
		}
	}
	return 0
}

func TestARestartEndsWhatNobodyWants(t *testing.T) {
	n := newNode(t)
	key := Key{Card: card, UID: nobody}
	n.up(1, key, 30)
	n.tell(key, "start_server")
	n.reopen()
	time.Sleep(3 * quick.Health)
	if len(n.processes()) != 2 {
		t.Errorf("processes %v: ended before it is known that no job wants them", n.processes())
	}
	n.Settle()
	n.eventually("all is gone", func() bool { return len(n.processes()) == 0 && len(n.files()) == 0 })
}

// A kill of gresd between the start of a daemon and the note of its process id,
// and a server that has lost its daemon.
func TestARestartFindsWhatIsNotNoted(t *testing.T) {
	n := newNode(t)
	key := Key{Card: card, UID: nobody}
	n.up(1, key, 30)
	n.tell(key, "start_server")
	n.Close()
	left, err := previousDaemons(n.cfg.Dir)
	if err != nil || len(left) != 1 {
		t.Fatalf("records %v, %v; want one", left, err)
	}
	left[0].identity = identity{}
	if err := folderOf(n.cfg.Dir, key).write(left[0]); err != nil {
		t.Fatal(err)
	}
	// Of the same user, but not ours: it has another token.
	stranger := exec.Command(n.cfg.Control, "-f")
	stranger.Env = []string{PipeVariable + "=" + folderOf(n.cfg.Dir, key).logs(), tokenVariable + "=another"}
	stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
	n.open()
	n.eventually("only the stranger is left", func() bool {
		all := n.processes()
		return len(all) == 1 && all[stranger.Process.Pid] != ""
	})
	if err := stranger.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	n.up(1, key, 30)
}

func TestTheEnvironmentOfAJob(t *testing.T) {
	got := Environment("/run/vgpu/mps", Key{Card: card, UID: 1000}, 30)
	want := []string{
		"CUDA_MPS_PIPE_DIRECTORY=/run/vgpu/mps/" + string(card) + "/1000/pipe",
		"CUDA_MPS_LOG_DIRECTORY=/run/vgpu/mps/" + string(card) + "/1000/log",
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE/tasks=30",
		"CUDA_VISIBLE_DEVICES=" + string(card),
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
