// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/platforms"
)

// upConfined is up with Slurm's device cgroup (v1), as installations have it.
// What the test shows is for docs/platforms.md. Each run has hierarchies of its own below those of the machine.
func upConfined(t *testing.T, opts cluster.Options, what string) site {
	t.Helper()
	for _, controller := range []string{"devices", "freezer"} {
		mount := "/sys/fs/cgroup/" + controller
		if _, err := os.Stat(mount + "/cgroup.procs"); err != nil {
			t.Skipf("this machine has no cgroup v1 %s: %v", controller, err)
		}
		own, err := os.MkdirTemp(mount, "vgpu-e2e-")
		if err != nil {
			t.Skipf("this machine lets nobody make a cgroup: %v", err)
		}
		if err := unix.Mount(own, mount, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // after the cluster's own
			removeFolders(mount)
			if err := unix.Unmount(mount, 0); err != nil {
				t.Error(err)
			}
			if err := os.Remove(own); err != nil {
				t.Error(err)
			}
		})
	}
	ranOn(t, "v1, ConstrainDevices", what)
	s := up(t, opts)
	conf, err := os.ReadFile("/etc/slurm/slurm.conf")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(
		"ProctrackType=proctrack/linuxproc", "ProctrackType=proctrack/cgroup",
		"TaskPlugin=task/none", "TaskPlugin=task/cgroup",
	).Replace(string(conf)) + "PrologFlags=Contain\n"
	for file, text := range map[string]string{
		"slurm.conf":  text,
		"cgroup.conf": "CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n",
	} {
		if err := os.WriteFile(filepath.Join("/etc/slurm", file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.Slurmd.Stop()
	s.Slurmctld.Stop()
	for _, d := range []*cluster.Daemon{s.Slurmctld, s.Slurmd} {
		if err := d.Start(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// removeFolders removes what a folder has in it, the innermost first. A cgroup's
// files go with it.
func removeFolders(dir string) {
	var inner []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != dir {
			inner = append(inner, path)
		}
		return nil
	})
	for _, path := range slices.Backward(inner) {
		_ = os.Remove(path)
	}
}

// The simulated cards have device files without a driver behind them: a file
// that may be opened says so.
const tryDevices = `for i in 0 1; do ( exec 3<` + cluster.Dir + `/dev/nvidia$i ) 2>&1 | sed "s/.*: /card $i: /"; done`

const (
	mayOpen    = "No such device or address"
	mayNotOpen = "Operation not permitted"
)

// One cluster, because it takes long to start.
func TestJobsInADeviceCgroup(t *testing.T) {
	opts := cluster.Options{Cards: slices.Repeat(oneCard.Cards, 2)}
	s := upConfined(t, opts, "a job opens the devices of its own card only; adopted sessions have its limits")
	t.Run("devices outside the grant cannot be opened", func(t *testing.T) { devicesOfOthers(site{s.Cluster, t}) })
	t.Run("sessions that are adopted have the limits of the job", func(t *testing.T) { adoptedSessions(site{s.Cluster, t}) })
	t.Run("without pam_vgpu they are reported", func(t *testing.T) { reportedSessions(site{s.Cluster, t}) })
}

func devicesOfOthers(s site) {
	first := s.submit(bob, "--gres=vgpu:100", "sleep 300")
	s.running(first)
	out := s.completed(alice, s.submit(alice, "--gres=vgpu:30", strings.Join([]string{
		tryDevices,
		"unshare --user --map-root-user sh -c '" + tryDevices + "'",
		"srun --overlap --gres=none sh -c '" + tryDevices + "'",
	}, "\n")))
	own := fmt.Sprintf("card 0: %s\ncard 1: %s\n", mayNotOpen, mayOpen)
	none := fmt.Sprintf("card 0: %[1]s\ncard 1: %[1]s\n", mayNotOpen)
	if want := own + own + none; out != want {
		s.t.Errorf("in the job, as root of a user namespace, in a step with --gres=none:\n%swant\n%s", out, want)
	}
	s.cancel(bob, first)
}

// ranOn has a test, once it has passed, in docs/platforms.md.
func ranOn(t *testing.T, cgroup, what string) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			return
		}
		c := platforms.Of("/")
		test, _, _ := strings.Cut(t.Name(), "/")
		c.Cgroup, c.What, c.Driver, c.Card, c.Command = cgroup, what, "simulated", "simulated", "make test-e2e RUN="+test
		if err := platforms.RecordBuilt("../../build", c); err != nil {
			t.Error(err)
		}
	})
}
