// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

const library = cluster.Dir + "/lib/libvgpu.so"

// engine runs programs in a root file system of its own, which has the system's
// programs, the program of the test and the (simulated) driver, as containers get
// the driver from their host, and nothing of slurm-vgpu unless it is bound in.
// tests/e2e/containers runs the tests where the engines can be installed.
type engine struct {
	name  string
	alone string // the words before the program, without a PID namespace if that can be
	// bound are the words that docs/containers.md adds to alone, with a PID namespace.
	bound   string
	private bool // it always has a PID namespace
}

var engines = []engine{
	{
		name: "bwrap",
		alone: `bwrap --unshare-user --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib
			--symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /etc --ro-bind /etc/ld.so.cache /etc/ld.so.cache
			--tmpfs /run --ro-bind ` + cluster.Dir + `/bin ` + cluster.Dir + `/bin --bind ` + cluster.Dir + `/simgpu ` + cluster.Dir + `/simgpu`,
		bound: `--ro-bind ` + library + ` ` + library + ` --ro-bind /etc/ld.so.preload /etc/ld.so.preload
			--ro-bind /run/vgpu/self/grant /run/vgpu/self/grant --bind /run/vgpu/self/cache /run/vgpu/self/cache
			--ro-bind /run/vgpu/gresd.sock /run/vgpu/gresd.sock --unshare-pid`,
	},
	{
		name:  "apptainer",
		alone: `apptainer --quiet exec -B /usr,` + cluster.Dir + `/bin,` + cluster.Dir + `/simgpu`,
		bound: `--pid -B ` + library + `,/run/vgpu,/etc/ld.so.preload`,
	},
	{
		name: "podman",
		alone: `podman --log-level=fatal --cgroup-manager=cgroupfs run --rm --cgroups=disabled --network=none -e CUDA_VISIBLE_DEVICES -v /usr:/usr:ro
			-v ` + cluster.Dir + `/bin:` + cluster.Dir + `/bin:ro -v ` + cluster.Dir + `/simgpu:` + cluster.Dir + `/simgpu`,
		// A podman in a job joins the mounts of the user's first one on the node, which
		// has not those of the job: what it binds must be at the same place for both.
		bound: `-v ` + library + `:` + library + `:ro -v /run/vgpu/preload:/etc/ld.so.preload:ro
			-v /run/vgpu/jobs/$SLURM_JOB_ID/grant:/run/vgpu/self/grant:ro
			-v /run/vgpu/jobs/$SLURM_JOB_ID/cache:/run/vgpu/self/cache
			-v /run/vgpu/gresd.sock:/run/vgpu/gresd.sock:ro`,
		private: true,
	},
}

// command is a program in a container, with more words for the engine.
func (e engine) command(words, program string) string {
	image := map[string]string{"apptainer": "image", "podman": "--rootfs $PWD/image"}[e.name]
	return strings.Join(strings.Fields(e.alone+" "+words+" "+image), " ") + " " + program
}

// makeImage makes the folder of a container's root for engines that want one.
const makeImage = `mkdir -p image/usr image/etc image/dev image/proc image/sys image/run image/tmp image/var/tmp image/root image/home
	for l in bin sbin lib lib64; do ln -sfn usr/$l image/$l; done
	touch image/etc/passwd image/etc/group image/etc/resolv.conf image/etc/hosts image/etc/localtime; cp /etc/ld.so.cache image/etc`

// A container that has what docs/containers.md says has the limit of its job,
// together with what runs outside of it. One without is found by the audit.
func TestContainers(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			if _, err := exec.LookPath(e.name); err != nil {
				t.Skipf("no %s on this system: tests/e2e/containers has systems with it", e.name)
			}
			opts := oneCard
			s := up(t, opts)
			s.prepareContainers(e)
			s.containerHasLimit(e, e.bound)
			if e.name == "apptainer" {
				s.bindForAll()
				s.containerHasLimit(e, "--pid")
				// Outside of a job there must be something to bind, too.
				if r := s.As(alice, "sh", "-c", e.command("", "true")); r.Code != 0 {
					t.Errorf("a container outside of a job: %s", r)
				}
				return // what it binds for all cannot be left out by mistake
			}
			s.bareContainerIsFound(e)
		})
	}
}

// prepareContainers skips the test where the engine runs no containers at all.
func (s site) prepareContainers(e engine) {
	s.t.Helper()
	if e.name == "podman" {
		// Where version 1 of cgroups is there as well, crun refuses to start.
		if err := unix.Mount("none", "/sys/fs/cgroup", "cgroup2", 0, ""); err != nil {
			s.t.Skipf("this machine has no cgroup v2: %v", err)
		}
		s.t.Cleanup(func() {
			s.As(alice, "podman", "system", "migrate") // ends the process that keeps its mounts
			_ = unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH)
		})
	}
	if r := s.As(alice, "sh", "-c", makeImage); r.Code != 0 {
		s.t.Fatal(r)
	}
	if r := s.As(alice, "unshare", "--user", "--map-root-user", "true"); r.Code != 0 {
		s.t.Skipf("this machine allows no user namespaces: %s", r)
	}
	if r := s.As(alice, "sh", "-c", e.command("", "true")); r.Code != 0 {
		s.t.Fatalf("a container without anything of ours: %s", r)
	}
}

// bindForAll is what docs/containers.md says for all containers of a node.
func (s site) bindForAll() {
	s.t.Helper()
	conf, err := os.OpenFile("/etc/apptainer/apptainer.conf", os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = fmt.Fprintf(conf, "\nbind path = %s\nbind path = /run/vgpu\nbind path = /etc/ld.so.preload\n", library)
	}
	if err == nil {
		err = conf.Close()
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// containerHasLimit wants the job's limit for a process in a container and one
// outside together, and nothing of the job beside it.
func (s site) containerHasLimit(e engine, words string) {
	s.t.Helper()
	other := s.submit(bob, "--gres=vgpu:40", cluster.Worker+" --alloc 20G --hold 300")
	s.running(other)
	s.eventually(shortWait, "the other job holds memory", func() bool { return strings.Contains(s.Output(bob, other), `"cmd":"alloc"`) })
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", strings.Join([]string{
		cluster.Worker + " --alloc 2G --hold 60 & hold=$!", "sleep 1",
		e.command(words, cluster.Worker+" --report --fill"),
		e.command(words, fmt.Sprintf("sh -c 'cat /run/vgpu/jobs/%d/grant && echo others; true' 2>&1", other)),
		"kill $hold",
	}, "\n"))
	out := s.completed(alice, job)
	if got := look(s.t, out); got.Total != 8*gib || got.Granted > 6*gib || got.Granted < 4*gib {
		s.t.Errorf("in the container: saw %d bytes and got %d beside a process with 2 GiB, want 8 GiB and at most 6:\n%s", got.Total, got.Granted, out)
	}
	if taken, _ := cluster.Taken(out); taken != 2*gib {
		s.t.Errorf("outside of the container: %s", out)
	}
	if !strings.Contains(out, "limit of job "+fmt.Sprint(job)+" ") || hasWord(out, "others") {
		s.t.Errorf("in the container, with the grant of its job and of no other:\n%s", out)
	}
	s.cancel(bob, other)
}

// Containers of one job one after another, each with a PID namespace of its own, have
// the memory of those before, which have ended without freeing it: by themselves or
// killed, and also when gresd never saw them. While there is no gresd they are refused.
func TestContainersOneAfterAnother(t *testing.T) {
	e := engines[0]
	if _, err := exec.LookPath(e.name); err != nil {
		t.Skipf("no %s on this system", e.name)
	}
	s := up(t, oneCard)
	s.prepareContainers(e)
	kill := `killed() {
		` + e.command(e.bound+" --die-with-parent", cluster.Worker+" --alloc 3G --hold 300") + ` >box.$1 & box=$!
		until grep -q '"cmd":"alloc"' box.$1; do sleep 0.05; done
		kill -KILL $box; wait $box; cat box.$1
	}
	`
	// Where the script says "upon WORD", what is to be done first is done.
	run := func(name, script string, want int, upon map[string]func() error) {
		t.Run(name, func(t *testing.T) {
			s := site{s.Cluster, t}
			job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", kill+
				`upon() { echo 1 >$1; until [ -e $1.done ]; do sleep 0.1; done; }
				rm -f box.* *.done
				`+script)
			for _, word := range slices.Sorted(maps.Keys(upon)) {
				s.eventually(shortWait, "the job waits for "+word, func() bool { return s.File(alice, word) != "" })
				if err := upon[word](); err != nil {
					t.Fatal(err)
				}
				if r := s.As(alice, "touch", word+".done"); r.Code != 0 {
					t.Fatal(r)
				}
			}
			out := s.completed(alice, job)
			if got := strings.Count(out, `"size":3221225472,"result":0,`); got < want {
				t.Errorf("%d containers got 3 GiB of 8, want %d:\n%s", got, want, out)
			}
		})
	}
	run("that end", strings.Repeat(e.command(e.bound, cluster.Worker+" --alloc 3G")+"\n", 4), 4, nil)
	run("that are killed", "for i in 1 2 3 4; do killed $i; done", 4, nil)
	// The third is refused, unless its namespace has the number of one that has ended.
	run("without gresd, and with a new one", "killed 1; killed 2; upon a-kill; killed 3; upon b-start; killed 4; killed 5", 4,
		map[string]func() error{"a-kill": func() error { s.Gresd.Kill(); return nil }, "b-start": s.Gresd.Start})
}

// bareContainerIsFound wants the audit to report one without the files. In the PID
// namespace of the node: the simulated driver, unlike the real one, tells gresd
// the pid that a process has in its own.
func (s site) bareContainerIsFound(e engine) {
	s.t.Helper()
	if e.private {
		return
	}
	bare := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", e.command("", cluster.Worker+" --alloc 4G --hold 300"))
	s.running(bare)
	s.eventually(shortWait, "a container without the files is found", func() bool { return s.told(bare, "unregistered") })
	s.cancel(alice, bare)
}
