// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// container runs a program in a root file system of its own, which has the
// system's programs, the program of the test and the (simulated) driver, as
// containers get the driver from their host, and nothing of slurm-vgpu.
const container = `bwrap --unshare-user --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib
	--symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /etc --ro-bind /etc/ld.so.cache /etc/ld.so.cache
	--tmpfs /run --ro-bind ` + cluster.Dir + `/bin ` + cluster.Dir + `/bin --bind ` + cluster.Dir + `/simgpu ` + cluster.Dir + `/simgpu`

// bound are the files that docs/containers.md says to bind in.
var bound = []string{"--ro-bind /etc/ld.so.preload", "--ro-bind /run/vgpu/self/grant", "--bind /run/vgpu/self/cache", "--ro-bind /run/vgpu/gresd.sock", "--ro-bind " + cluster.Dir + "/lib/libvgpu.so"}

func withBinds(binds []string) string {
	command := strings.ReplaceAll(container, "\n", " ")
	for _, b := range binds {
		_, path, _ := strings.Cut(b, " ")
		command += " " + b + " " + path // the same path inside
	}
	return command + " " + cluster.Worker
}

// A container that has what docs/containers.md says has the limit of its job,
// together with what runs outside of it. One without is found by the audit.
func TestContainers(t *testing.T) {
	if _, err := exec.LookPath("bwrap"); err != nil {
		t.Skip("no bwrap: apt-get install bubblewrap")
	}
	opts := oneCard
	opts.Config = "[audit]\ngrace_s = 1\n"
	s := up(t, opts)
	if r := s.As(alice, "bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"); r.Code != 0 {
		t.Skipf("this machine allows no containers: %s", r)
	}
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G",
		cluster.Worker+" --alloc 2G --hold 60 & hold=$!; sleep 1; "+withBinds(append(bound, "--unshare-pid"))+" --report --fill; kill $hold")
	out := s.completed(alice, job)
	if got := look(t, out); got.Total != 8*gib || got.Granted > 6*gib || got.Granted < 4*gib {
		t.Errorf("in the container: saw %d bytes and got %d beside a process with 2 GiB, want 8 GiB and at most 6:\n%s", got.Total, got.Granted, out)
	}
	if taken, _ := cluster.Taken(out); taken != 2*gib {
		t.Errorf("outside of the container: %s", out)
	}
	// In the PID namespace of the node: the simulated driver, unlike the real
	// one, tells gresd the pid that a process has in its own.
	bare := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", withBinds(nil)+" --alloc 10G --hold 300")
	s.running(bare)
	s.eventually(shortWait, "a container without the files is found", func() bool { return s.told(bare, "unregistered") })
	s.cancel(alice, bare)
}
