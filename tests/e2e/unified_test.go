// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// upUnified is up with Slurm's device control in cgroups of version 2, without systemd. conf is for cgroup.conf.
// Where the machine has the controllers in version 1, Slurm's daemons are shown version 2 alone (tests/e2e/unified):
// the control of devices needs no controller there.
func upUnified(t *testing.T, opts cluster.Options, conf string) site {
	t.Helper()
	own, err := os.MkdirTemp("/sys/fs/cgroup/unified", "vgpu-e2e-")
	if err != nil {
		t.Skipf("this machine lets nobody make a cgroup of version 2: %v", err)
	}
	t.Cleanup(func() { // after the cluster's own
		removeFolders(own)
		if err := os.Remove(own); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(own+"/system.slice", 0o755); err != nil { // systemd's, which 22.05 wants to be there
		t.Fatal(err)
	}
	library, err := os.ReadFile("../../build/tests/unified.so")
	if err != nil {
		t.Fatalf("%v (run make first)", err)
	}
	opts.Slurm += "PrologFlags=Contain\n"
	s := up(t, opts)
	preload := filepath.Join(cluster.Dir, "lib/unified.so")
	s.must(os.WriteFile(preload, library, 0o755))
	s.must(os.WriteFile("/etc/slurm/cgroup.conf", []byte("CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\nConstrainDevices=yes\n"+conf), 0o644))
	s.edit("/etc/slurm/slurm.conf", func(text string) string {
		return strings.NewReplacer(
			"ProctrackType=proctrack/linuxproc", "ProctrackType=proctrack/cgroup", "TaskPlugin=task/none", "TaskPlugin=task/cgroup",
		).Replace(text)
	})
	s.Slurmd.Stop()
	s.Slurmctld.Stop()
	s.must(s.Slurmctld.Start())
	s.Slurmd.Begin = func(c *exec.Cmd) error {
		inside := "mount -t cgroup2 cgroup2 /sys/fs/cgroup; exec env LD_PRELOAD=" + preload + ` "$@"`
		c.Path = "/bin/bash"
		c.Args = append([]string{"bash", "-ec", "echo $$ >" + own + `/cgroup.procs; exec unshare --cgroup --mount bash -ec "$0" bash "$@"`, inside}, c.Args...)
		return c.Start()
	}
	s.must(s.Slurmd.Start())
	return s
}

// A job is kept to the device of its card, and the audit knows whose a process is that has neither a parent nor
// the environment of its job, whatever Slurm calls the job's folder.
func TestUnifiedCgroups(t *testing.T) {
	for name, conf := range map[string]string{"as the release has it": "", "by number": "CgroupJobIdPaths=yes\n"} {
		t.Run(name, func(t *testing.T) {
			if release := installedRelease(t); conf != "" && release < 2605 {
				t.Skipf("Slurm %d has no such setting", release)
			}
			ranOn(t, "v2 without systemd, ConstrainDevices", "a job opens the device of its own card only; the audit knows whose a process is")
			s := upUnified(t, cluster.Options{Cards: twoCards, NoPlugin: true}, conf)
			devicesOfOthers(s)
			job := s.submit(alice, "--gres=vgpu:30", "cat /proc/self/cgroup; setsid bash -c 'env -i "+cluster.Worker+" --alloc 1G --hold 300 & echo $! >pid' & sleep 300")
			s.running(job)
			s.eventually(shortWait, "the process is found, and whose it is", func() bool {
				return s.shows("status", "audit: process "+strings.TrimSpace(s.File(alice, "pid"))+" (vgpu-worker) of job "+fmt.Sprint(job), "without libvgpu")
			})
			if got := audited(t, "stranger"); got != "0" && got != "absent" {
				t.Errorf("%s strangers", got)
			}
			s.cancel(alice, job)
		})
	}
}
