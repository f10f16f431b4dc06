// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/doctor"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// A Slurm in /opt/slurm is in the PATH of administrators, and not in that of gresd and of hooks.
func TestSlurmOutsideOfGresdsPath(t *testing.T) {
	s := up(t, cluster.Options{Cards: twoCards})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	noPath := func(c *exec.Cmd) error {
		c.Env = append(c.Env, "PATH=/nowhere")
		return c.Start()
	}
	restart := func(d *cluster.Daemon, begin func(*exec.Cmd) error) {
		t.Helper()
		d.Stop()
		d.Begin = begin
		must(d.Start())
	}
	must(unix.Mount("tmpfs", "/opt", "tmpfs", 0, "mode=755"))
	t.Cleanup(func() { _ = unix.Unmount("/opt", unix.MNT_DETACH) })
	for _, name := range []string{"/sbin/slurmd", "/bin/scontrol", "/bin/squeue"} {
		must(os.MkdirAll(filepath.Dir("/opt/slurm"+name), 0o755))
		text, err := os.ReadFile("/usr" + name)
		must(err)
		must(os.WriteFile("/opt/slurm"+name, text, 0o755))
	}
	restart(s.Gresd, noPath)
	restart(s.Slurmd, func(c *exec.Cmd) error {
		c.Path = "/opt/slurm/sbin/slurmd"
		return c.Start()
	})
	if out := s.completed(alice, s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", cluster.LookScript)); look(t, out).Total != 8*gib {
		t.Errorf("a job sees %s", out)
	}
	if found, _ := s.findings(); !has(found, "slurm", doctor.Pass, "") || has(found, "gresd", doctor.Fail, "") {
		t.Errorf("doctor: %+v", found)
	}

	// Nor is slurm.conf in /etc/slurm; the sizes of cards may be.
	elsewhere := s.scontrolSays("s|^SLURM_CONF *=.*|SLURM_CONF = /opt/slurm/etc/slurm.conf|")
	if found, _ := s.findings(); has(found, "lua", doctor.Warn, "vgpu_cards.lua") || !has(found, "lua", doctor.Fail, "/opt/slurm/etc/cli_filter.lua") {
		t.Errorf("doctor: %+v", found)
	}
	must(os.Rename("/etc/slurm/vgpu_cards.lua", "/etc/slurm/no_cards.lua"))
	if found, _ := s.findings(); !has(found, "lua", doctor.Warn, "vgpu_cards.lua") {
		t.Errorf("doctor without vgpu_cards.lua: %+v", found)
	}
	must(os.Rename("/etc/slurm/no_cards.lua", "/etc/slurm/vgpu_cards.lua"))
	elsewhere()

	// Where it is not found at all, nothing waits and nothing drains.
	mend := s.edit("/etc/vgpu/vgpu.toml", func(text string) string {
		return text + "\n[slurm]\nscontrol = \"/opt/wrong/bin/scontrol\"\n"
	})
	restart(s.Gresd, noPath)
	const problem = "gresd cannot ask Slurm"
	if r := s.As("root", "vgpuctl", "status"); !strings.Contains(r.Out, problem) || !strings.Contains(r.Out, "/opt/wrong/bin/scontrol") {
		t.Errorf("status: %s", r)
	}
	if found, code := s.findings(); code != 1 || !has(found, "gresd", doctor.Fail, problem) {
		t.Errorf("doctor: exit %d, %+v", code, found)
	}
	for _, args := range []string{"true", "--gres=gpu:1 true"} {
		if r := s.As(bob, append([]string{"srun"}, strings.Fields(args)...)...); r.Code != 0 {
			t.Errorf("srun %s: %s", args, r)
		}
	}
	if r := s.As(alice, "srun", "--gres=vgpu:30", "true"); r.Code == 0 || !strings.Contains(r.Err, "no grant") {
		t.Errorf("srun with a share: %s", r)
	}
	share := s.submit(alice, "--gres=vgpu:30", "echo ran")
	s.eventually(60*time.Second, "the job with a share is back in the queue", func() bool {
		facts, err := s.Job(share)
		return err == nil && facts["Restarts"] != "0"
	})
	if state := s.NodeState(); strings.Contains(state, "DRAIN") {
		t.Errorf("the node is %s", state)
	}
	mend()
	restart(s.Gresd, noPath)
	if out := s.completed(alice, share); !hasWord(out, "ran") {
		t.Errorf("the job with a share: %s", out)
	}
	if r := s.As("root", "vgpuctl", "status"); strings.Contains(r.Out, problem) {
		t.Errorf("status: %s", r)
	}
}
