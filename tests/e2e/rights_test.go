// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// Each line must fail when a job's own user runs it in the job.
var forbidden = []string{
	"echo x >>/run/vgpu/self/grant",
	"echo x >/run/vgpu/self/grant",
	"chmod u+w /run/vgpu/self/grant",
	"rm -f /run/vgpu/self/grant",
	"mv /run/vgpu/self/grant /run/vgpu/self/old",
	"umount /run/vgpu/self/grant",
	"echo x >>/run/vgpu/jobs/$SLURM_JOB_ID/grant",
	"chmod 666 /run/vgpu/jobs/$SLURM_JOB_ID/grant",
	"rm -f /run/vgpu/jobs/$SLURM_JOB_ID/grant",
	"touch /run/vgpu/jobs/$SLURM_JOB_ID/new",
	"echo >/etc/ld.so.preload",
	"umount /etc/ld.so.preload",
	"ls /run/vgpu/jobs",
}

func TestUserCannotChangeTheGrant(t *testing.T) {
	s := up(t, oneCard)
	script := cluster.LookScript + "\n"
	for _, line := range forbidden {
		script += fmt.Sprintf("if ( %s ) 2>/dev/null; then echo 'ALLOWED: %s'; fi\n", line, strings.ReplaceAll(line, "'", ""))
	}
	out := s.completed(alice, s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", script+cluster.LookScript))
	for line := range strings.Lines(out) {
		if what, ok := strings.CutPrefix(line, "ALLOWED: "); ok {
			t.Errorf("the job's user may: %s", what)
		}
	}
	if got := look(t, out); got.Total != 8*gib {
		t.Errorf("limit after all: %d bytes, want 8 GiB", got.Total)
	}
}

func TestUserCannotReadAnotherJob(t *testing.T) {
	s := up(t, oneCard)
	other := s.submit(bob, "--gres=vgpu:30", cluster.BusyScript(300))
	s.running(other)
	s.eventually(shortWait, "the other job has a folder", func() bool {
		records, err := s.Records()
		return err == nil && len(records) == 1
	})
	dir := cluster.JobDir(other)
	job := s.submit(alice, "--gres=vgpu:30", fmt.Sprintf(
		`for try in "ls %[1]s" "cat %[1]s/grant" "cat %[1]s/cache" "touch %[1]s/new" "ls /run/vgpu/jobs/$SLURM_JOB_ID"; do
			$try >/dev/null 2>&1 && echo "may: $try"
		done; true`, dir))
	want := fmt.Sprintf("may: ls /run/vgpu/jobs/%d\n", job)
	if out := s.completed(alice, job); out != want {
		t.Errorf("got %q, want only %q", out, want)
	}
	// Nor may the login user, outside of any job.
	if r := s.As(alice, "cat", dir+"/cache"); r.Code == 0 {
		t.Error("another user may read the job's cache outside of a job")
	}
	s.cancel(bob, other)
}

// A user may see only his own records.
func TestUserSeesOnlyHisOwnRecords(t *testing.T) {
	s := up(t, oneCard)
	a := s.submit(alice, "--gres=vgpu:20", "sleep 300")
	b := s.submit(bob, "--gres=vgpu:20", "sleep 300")
	s.running(a, b)
	for user, own := range map[string]int{alice: a, bob: b} {
		r := s.As(user, "vgpuctl", "jobs")
		if r.Code != 0 || !hasWord(r.Out, fmt.Sprint(own)) || hasWord(r.Out, fmt.Sprint(a+b-own)) {
			t.Errorf("vgpuctl jobs of %s: want job %d alone: %s", user, own, r)
		}
	}
	s.cancel(alice, a)
	s.cancel(bob, b)
}
