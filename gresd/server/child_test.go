// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
)

// The test program plays two more parts, in processes of their own: a daemon
// that can be killed, and a client of another user.
func TestMain(m *testing.M) {
	if fake.IsName(os.Args[0]) {
		unix.Exit(fake.Main()) // os.Exit sleeps for a second in a program with the race detector
	}
	var err error
	switch os.Getenv("VGPU_TEST_PART") {
	case "":
		os.Exit(m.Run())
	case "daemon":
		err = daemonPart(os.Getenv("VGPU_TEST_DIR"))
	case "client":
		err = clientPart(os.Getenv("VGPU_TEST_SOCKET"), os.Getenv("VGPU_TEST_REQUEST"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func daemonPart(dir string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, _, err := assemble(testConfig(dir), dir, fakeCluster{filepath.Join(dir, "cluster.json")}, twoCards(), &counter{}, log)
	if err != nil {
		return err
	}
	listener, err := wire.Listen(testConfig(dir).Paths.Socket())
	if err != nil {
		return err
	}
	return s.Run(context.Background(), listener, func() { fmt.Println("ready") })
}

func clientPart(socket, text string) error {
	var req wire.Request
	if err := json.Unmarshal([]byte(text), &req); err != nil {
		return err
	}
	c := wire.Client{Socket: socket, Timeout: 10 * time.Second}
	rep, err := c.Do(context.Background(), req)
	var refused *wire.Error
	if err != nil && !errors.As(err, &refused) {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(rep)
}

// askAs sends a request as another user.
func (n *testNode) askAs(uid uint32, req wire.Request) wire.Reply {
	n.t.Helper()
	return n.askIn(&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}, req)
}

// askIn sends a request as a process with these attributes.
func (n *testNode) askIn(attr *syscall.SysProcAttr, req wire.Request) wire.Reply {
	n.t.Helper()
	text, err := json.Marshal(req)
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(readableCopy(n.t, n.dir))
	cmd.Dir = "/"
	cmd.Env = []string{"VGPU_TEST_PART=client", "VGPU_TEST_SOCKET=" + n.cfg.Paths.Socket(), "VGPU_TEST_REQUEST=" + string(text)}
	cmd.SysProcAttr = attr
	out, err := cmd.Output()
	if err != nil {
		n.t.Fatalf("client: %v: %s", err, out)
	}
	var rep wire.Reply
	if err := json.Unmarshal(out, &rep); err != nil {
		n.t.Fatalf("client: %v: %s", err, out)
	}
	return rep
}

// readableCopy is this program where other users can run it.
func readableCopy(t testing.TB, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "client")
	if exists(path) {
		return path
	}
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// killable is a daemon in a process of its own.
type killable struct {
	cmd *exec.Cmd
}

func startKillable(t *testing.T, dir string) *killable {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "VGPU_TEST_PART=daemon", "VGPU_TEST_DIR="+dir)
	log, err := os.OpenFile(filepath.Join(dir, "daemon.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	k := &killable{cmd}
	t.Cleanup(k.kill)
	if n, err := out.Read(make([]byte, 16)); n == 0 {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("daemon did not start: %v: %s", err, text)
	}
	return k
}

func (k *killable) kill() {
	if k.cmd.ProcessState == nil {
		_ = k.cmd.Process.Kill()
		_ = k.cmd.Wait()
	}
}

// truth is what the daemon answered: what it must still know after a kill.
type truth struct {
	mu      sync.Mutex
	granted map[uint32]uint64 // job: inode of its grant
	ended   map[uint32]bool   // released
}

// TestKillLosesNothing kills the daemon again and again in the middle of grants
// and releases, and holds what it answered against what it knows afterwards.
func TestKillLosesNothing(t *testing.T) {
	n := newTestNode(t)
	known := truth{granted: map[uint32]uint64{}, ended: map[uint32]bool{}}
	next := uint32(1)
	for round := range 8 {
		k := startKillable(t, n.dir)
		known.check(t, n, round)

		var wg sync.WaitGroup
		for range 4 {
			first := next
			next += 6
			var reqs []wire.Request
			for id := first; id < first+6; id++ {
				// Two cards have room for all jobs of this test: none is refused.
				reqs = append(reqs, n.job(id, 1, func(f *slurm.JobFacts) { f.Units = map[int]gpu.Share{int(id % 2): 1} }))
			}
			wg.Go(func() { known.work(n, reqs) })
		}
		time.Sleep(time.Duration(1+rand.IntN(60)) * time.Millisecond)
		k.kill()
		wg.Wait()
	}
	startKillable(t, n.dir)
	known.check(t, n, 8)
	if len(known.granted) == 0 || len(known.ended) == 0 {
		t.Fatalf("%d grants and %d releases were answered: nothing was tried", len(known.granted), len(known.ended))
	}
}

// work grants jobs and releases every third, until the daemon is gone.
func (k *truth) work(n *testNode, reqs []wire.Request) {
	for i, req := range reqs {
		rep, err := n.ask(req)
		if err != nil || rep.Result != wire.Granted {
			return
		}
		k.mu.Lock()
		k.granted[req.JobID] = inode(n.t, n.file(req.JobID, "grant"))
		k.mu.Unlock()
		if i%3 != 2 {
			continue
		}
		k.mu.Lock()
		delete(k.granted, req.JobID) // from now on either is right
		k.mu.Unlock()
		if _, err := n.ask(wire.Request{Op: wire.OpRelease, JobID: req.JobID}); err != nil {
			return
		}
		k.mu.Lock()
		k.ended[req.JobID] = true
		k.mu.Unlock()
	}
}

func (k *truth) check(t *testing.T, n *testNode, round int) {
	t.Helper()
	rep, err := n.ask(wire.Request{Op: wire.OpJobs})
	if err != nil {
		t.Fatalf("round %d: %v", round, err)
	}
	records := map[uint32]bool{}
	for _, j := range rep.Jobs {
		records[j.JobID] = true
		spec, _, err := libvgpu.ReadGrant(n.file(j.JobID, "grant"))
		if err != nil || spec.JobID != j.JobID || spec.UID != nobody || spec.Cards[0].Share != 1 {
			t.Errorf("round %d: job %d: grant %+v, %v", round, j.JobID, spec, err)
		}
		if _, err := libvgpu.ReadCache(n.file(j.JobID, "cache")); err != nil {
			t.Errorf("round %d: job %d: %v", round, j.JobID, err)
		}
	}
	for job, ino := range k.granted {
		if !records[job] {
			t.Errorf("round %d: job %d was granted and is lost", round, job)
		} else if inode(t, n.file(job, "grant")) != ino {
			t.Errorf("round %d: job %d has another grant file than its tasks", round, job)
		}
	}
	for job := range k.ended {
		if records[job] || exists(n.cfg.Paths.Job(job)) {
			t.Errorf("round %d: job %d was released and is back", round, job)
		}
	}
}
