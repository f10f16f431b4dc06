// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	proc "github.com/slurm-vgpu/slurm-vgpu/gresd/process"
)

// FuzzProcess: what the audit reads of a process in /proc. Its user chooses the
// name, the title, the environment and folders below the job's; none of them makes it a
// process of another job where the cgroup tells the job, and none gets into a log.
func FuzzProcess(f *testing.F) {
	const status = "Name:\tx\nUid:\t1000\t1000\t1000\t1000\n"
	stat := func(name string) string {
		return "77 (" + name + ") S 5 77 77 0 -1 4194304 1 1 0 0 0 0 0 0 20 0 1 0 4242 1 1\n"
	}
	f.Add(stat("python"), status, "0::/system.slice/slurmstepd.scope/job_7/step_0\n", "SLURM_JOB_ID=8\x00", "slurmstepd: [9.0]\x00")
	f.Add(stat("a) Z 1 (b"), "Uid:\t0\n", "4:devices:/slurm/uid_0/job_x/job_8\n", "SLURM_JOB_ID=7", "slurmstepd: [7.extern]")
	f.Add(stat("\x1b[2J\n) R 1"), "Name:\tUid:\t0\nUid:\n", "", "\x00\x00SLURM_JOB_ID=4294967296\x00SLURM_JOB_ID=3", "sleep")
	f.Add("77 () Z", status+"\nUid:\t0", "0::/\n", "", "slurmstepd: [")
	f.Add("77 )(", "", "0::/slurm", "", "")
	root := f.TempDir()
	for _, dir := range []string{"77/fd", "5/fd"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			f.Fatal(err)
		}
	}
	put := func(t testing.TB, name, text string) {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(f, "77/maps", "7f00-7f01 r--p 0 0 0 /usr/lib/libcuda.so.1\n")
	put(f, "5/stat", "5 (p) S 1 5 5 0 -1 4194304 1 1 0 0 0 0 0 0 20 0 1 0 41 1 1\n")
	f.Fuzz(func(t *testing.T, stat, status, cgroup, environ, title string) {
		put(t, "77/stat", stat)
		put(t, "77/status", status)
		put(t, "77/cgroup", cgroup)
		put(t, "77/environ", environ)
		put(t, "5/cmdline", title)
		put(t, "5/status", "Name:\tp\nUid:\t1000\n") // no slurmstepd: that is root's
		table := newTable(root, 3)
		facts, ok := table.look(77)
		if !ok {
			return
		}
		if strings.ContainsFunc(facts.Name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Fatalf("name %q", facts.Name)
		}
		if folder, _ := proc.CgroupOfJob(cgroup); facts.claimed != (facts.Job != 0 && folder == "") {
			t.Fatalf("job %d by %q: claimed %v", facts.Job, cgroup, facts.claimed)
		}
		if again, ok := table.look(77); !ok || again != facts {
			t.Fatalf("%+v, then %+v, %v", facts, again, ok)
		}
	})
}
