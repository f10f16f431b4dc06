// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

const sshPort = "2222"

// startSSH starts an sshd that lets users in who have a job, and into it.
func (s site) startSSH(module string) {
	s.t.Helper()
	modules, _ := filepath.Glob("/lib/*/security/pam_slurm_adopt.so")
	modules2, _ := filepath.Glob("/lib/security/pam_slurm_adopt.so")
	if _, err := os.Stat("/usr/sbin/sshd"); err != nil || len(modules)+len(modules2) == 0 {
		s.t.Skip("no sshd, or no pam_slurm_adopt: apt-get install openssh-server libpam-slurm-adopt")
	}
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		s.t.Fatal(err)
	}
	home := s.Home(alice)
	line := regexp.MustCompile(`(?m)^(` + alice + `:[^:]*:[^:]*:[^:]*:[^:]*:).*$`)
	for _, f := range []struct {
		path, text string
		mode       os.FileMode
	}{
		{"/etc/passwd", line.ReplaceAllString(string(passwd), "${1}"+home+":/bin/sh"), 0o644},
		{"/etc/pam.d/sshd", "account required pam_slurm_adopt.so\n" + module, 0o644},
		{"/run/sshd.conf", "Port " + sshPort + "\nListenAddress 127.0.0.1\nHostKey /run/sshd.key\nUsePAM yes\nStrictModes no\n" +
			"AuthorizedKeysFile /run/user.key.pub\nPidFile none\n", 0o644},
	} {
		if err := os.WriteFile(f.path, []byte(f.text), f.mode); err != nil {
			s.t.Fatal(err)
		}
	}
	_ = os.Mkdir("/run/sshd", 0o755)
	for _, key := range []string{"/run/sshd.key", "/run/user.key"} {
		_, _ = os.Remove(key), os.Remove(key+".pub")
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
			s.t.Fatalf("%v: %s", err, out)
		}
	}
	sshd := exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", "/run/sshd.conf")
	if err := sshd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = sshd.Process.Kill(); _ = sshd.Wait() })
	s.eventually(shortWait, "sshd listens", func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:"+sshPort)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// ssh runs a command as alice would on the node.
func (s site) ssh(command string) cluster.Result {
	return s.As("root", "ssh", "-p", sshPort, "-i", "/run/user.key", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no",
		"-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", alice+"@127.0.0.1", command)
}

// A session that ssh opens in a job has the job's device cgroup, and with
// pam_vgpu its limits, together with the job's own processes.
func adoptedSessions(s site) {
	s.startSSH("session required " + pamModule(s.t) + " seccomp=1\n")
	if r := s.ssh("true"); r.Code == 0 {
		s.t.Errorf("without a job: let in: %s", r)
	}
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", cluster.Worker+" --alloc 2G --hold 300")
	s.running(job)
	s.eventually(shortWait, "the job has its memory", func() bool {
		taken, _ := cluster.Taken(s.Output(alice, job))
		return taken == 2*gib
	})
	for name, command := range map[string]string{
		"a session":              cluster.LookScript,
		"without an environment": "env -i " + cluster.LookScript,
		"after umount":           "umount /etc/ld.so.preload /run/vgpu/self/grant 2>/dev/null; " + cluster.LookScript,
		"in namespaces":          "unshare --user --map-root-user --mount sh -c 'umount /etc/ld.so.preload; " + cluster.LookScript + "' || " + cluster.LookScript,
	} {
		s.t.Run(name, func(t *testing.T) {
			r := s.ssh(command)
			if got := look(t, r.Out+"\n"+r.Err); got.Total != 8*gib || got.Granted > 6*gib || got.Granted < 4*gib {
				t.Errorf("saw %d bytes and got %d beside a process with 2 GiB, want 8 GiB and at most 6: %s", got.Total, got.Granted, r)
			}
		})
	}
	// Nobody else sees the mounts.
	if r := s.As(alice, "cat", "/etc/ld.so.preload"); r.Out != "" {
		s.t.Errorf("outside of the session: %s", r)
	}
	s.cancel(alice, job)
	free := s.submit(alice, "", "sleep 300")
	if _, err := s.WaitState(free, shortWait, "RUNNING"); err != nil {
		s.t.Fatal(err)
	}
	s.eventually(shortWait, "the session of a job without a share opens", func() bool { return s.ssh("true").Code == 0 })
	s.cancel(alice, free)
}

// What is not held without pam_vgpu is at least found.
func reportedSessions(s site) {
	s.startSSH("session required pam_permit.so\n")
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", "sleep 300")
	s.running(job)
	done := make(chan cluster.Result)
	go func() { done <- s.ssh(cluster.Worker + " --alloc 4G --hold 300") }()
	s.eventually(shortWait, "it is found", func() bool { return s.told(job, "unregistered") })
	s.cancel(alice, job)
	if r := <-done; !strings.Contains(r.Out, `"cmd":"alloc"`) {
		s.t.Errorf("the session: %s", r)
	}
}

// pamModule is the module where sshd may load it.
func pamModule(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../build/spank/pam_vgpu.so")
	if err != nil {
		t.Skipf("%v: apt-get install libpam0g-dev, and make", err)
	}
	path := fmt.Sprintf("%s/lib/pam_vgpu.so", cluster.Dir)
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}
