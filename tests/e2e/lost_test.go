// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// door is a way to slurmctld that can be shut: who comes then waits.
type door struct {
	shut sync.RWMutex // held for writing while it is
}

// behindADoor starts slurmd again, with a way to slurmctld of its own.
func (s site) behindADoor() *door {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	d := &door{}
	s.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go d.pass(conn)
		}
	}()

	const own = "/etc/slurm-node"
	s.must(os.CopyFS(own, os.DirFS("/etc/slurm")))
	text, err := os.ReadFile(own + "/slurm.conf")
	s.must(err)
	text = fmt.Appendf(text, "\nSlurmctldPort=%d\n", listener.Addr().(*net.TCPAddr).Port)
	s.must(os.WriteFile(own+"/slurm.conf", text, 0o644))
	s.Slurmd.Stop()
	s.Slurmd.Begin = func(c *exec.Cmd) error {
		for i, arg := range c.Args {
			c.Args[i] = strings.ReplaceAll(arg, "/etc/slurm/", own+"/")
		}
		return c.Start()
	}
	s.must(s.Slurmd.Start())
	return d
}

func (d *door) pass(conn net.Conn) {
	defer conn.Close()
	d.shut.RLock()
	out, err := net.Dial("tcp", "127.0.0.1:6817")
	d.shut.RUnlock()
	if err != nil {
		return
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, conn)
		_ = out.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(conn, out)
}

// withDevice gives the node a /dev of its own, with the device file of a card. That of /dev/zero
// does: whoever may open it can.
func (s site) withDevice() {
	s.t.Helper()
	own := s.t.TempDir()
	s.must(unix.Mount("dev", own, "tmpfs", 0, "mode=755"))
	s.t.Cleanup(func() { _ = unix.Unmount("/dev", unix.MNT_DETACH) })
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9, "nvidia0": 5} {
		s.must(unix.Mknod(filepath.Join(own, name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))))
		s.must(os.Chmod(filepath.Join(own, name), 0o666))
	}
	s.must(os.Symlink("/proc/self/fd", filepath.Join(own, "fd")))
	s.must(os.Symlink("pts/ptmx", filepath.Join(own, "ptmx")))
	for _, dir := range []string{"pts", "shm"} {
		s.must(os.Mkdir(filepath.Join(own, dir), 0o755))
		s.must(unix.Mount("/dev/"+dir, filepath.Join(own, dir), "", unix.MS_BIND, ""))
	}
	s.must(unix.Mount(own, "/dev", "", unix.MS_MOVE, ""))
}

// Slurm 22.05, restarted, starts jobs on a node that answers and has not registered yet, without
// the shards that they ask for: what a job asks for and has not got must not be all of the card.
// Whatever is the matter with gresd meanwhile, no such job sees one, and a job without a share runs.
func TestJobsThatLostTheirShardsSeeNoCard(t *testing.T) {
	s := up(t, cluster.Options{
		Cards: twoCards, Slurm: "PrologEpilogTimeout=30\n",
		Config: "[slurm]\nconf = \"/etc/slurm/slurm.conf\"\nscontrol = \"" + scontrolThatFails + "\"\n",
	})
	if year, month, err := s.Release(); err != nil || year*100+month >= 2411 {
		t.Skipf("Slurm %d.%02d loses no shards: %v", year, month, err)
	}
	s.makeScontrolThatFails()
	s.withDevice()
	d := s.behindADoor()
	s.completed(alice, s.submit(alice, "--gres=vgpu:20", "true"))

	for _, trouble := range append([]trouble{{name: "well", begin: func(site) {}, mend: func(site) {}}}, troubles[1:]...) {
		if !t.Run(trouble.name, func(t *testing.T) { site{s.Cluster, t}.loseShards(trouble, d) }) {
			return
		}
	}
}

// loseShards has a job started without its shards under a trouble.
func (s site) loseShards(trouble trouble, d *door) {
	s.t.Helper()
	const script = "echo ran on ${CUDA_VISIBLE_DEVICES-every} card; (exec 3</dev/nvidia0) && echo opens; true"
	begun, goOn := s.Home(alice)+"/begun", s.Home(alice)+"/go"
	_, _ = os.Remove(begun), os.Remove(goOn)
	open := sync.OnceFunc(d.shut.Unlock)
	s.must(s.WaitIdle(shortWait)) // a node that is still completing is given no job
	d.shut.Lock()
	defer open()
	s.Slurmctld.Stop()
	s.must(s.Slurmctld.Start())

	// slurmctld refuses here a step that asks for what its job asks for: not so the script of
	// sbatch, nor this step.
	told := make(chan cluster.Result, 1)
	go func() {
		told <- s.As(alice, "salloc", "--gres=vgpu:30", "sh", "-c",
			"echo $SLURM_JOB_ID >begun; until [ -e go ]; do sleep 0.1; done; srun --gres=none sh -c '"+script+"'")
	}()
	var job string
	s.eventually(2*shortWait, "salloc has its allocation", func() bool {
		text, _ := os.ReadFile(begun)
		job = strings.TrimSpace(string(text))
		return job != ""
	})
	out, err := s.Scontrol("show", "job", "-d", job)
	if err != nil || !strings.Contains(out, "TresPerNode=gres:shard:30") || strings.Contains(out, "GRES=shard:sim:30") {
		s.t.Fatalf("want a job that has lost its shards: %v\n%s", err, out)
	}
	open()
	s.eventually(2*shortWait, "the node has registered", func() bool {
		out, err := s.Scontrol("show", "node", "-d", s.Name())
		return err == nil && strings.Contains(out, "GresUsed=gpu:")
	})
	trouble.begin(s)
	s.must(os.WriteFile(goOn, nil, 0o644))
	s.completed(carol, s.submit(carol, "", script))
	if trouble.name == "hanging" {
		trouble.mend(s)
	}
	r := <-told
	if trouble.name != "hanging" {
		trouble.mend(s)
	}
	s.t.Log(r)
	// Where not even slurmctld can be asked, it may be a job without a share, which runs.
	if ran := strings.Contains(r.Out, "ran on"); ran != (trouble.name == "no Slurm") || strings.Contains(r.Out, "every") || !ran && !strings.Contains(r.Err, "vgpu:") {
		s.t.Errorf("srun: %s", r)
	}
	// Nor can a program take it that does not ask CUDA.
	if strings.Contains(r.Out, "opens") {
		s.t.Error("srun: the card's device file can be opened")
	}
	if state := s.NodeState(); strings.Contains(state, "DRAIN") {
		s.t.Errorf("the node is %s", state)
	}
}
