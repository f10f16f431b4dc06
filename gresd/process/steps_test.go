// SPDX-License-Identifier: Apache-2.0

package process

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// process writes the folder of one process as the kernel shows it.
func process(t *testing.T, proc, pid, comm, title, exe, uid string) {
	t.Helper()
	dir := filepath.Join(proc, pid)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"comm": comm + "\n", "cmdline": title, "status": "Name:\tx\nState:\tS\nUid:\t" + uid + "\t0\t0\t0\nGid:\t0\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(exe, filepath.Join(dir, "exe")); err != nil {
		t.Fatal(err)
	}
}

func TestStepsAreFoundByTheirSlurmstepd(t *testing.T) {
	proc := t.TempDir()
	const program = "/usr/sbin/slurmstepd-wlm"
	process(t, proc, "10", stepd, "slurmstepd: [7.batch]\x00", program, "0")
	process(t, proc, "11", stepd, "slurmstepd: [8.extern]\x00\x00\x00", program+" (deleted)", "0")
	// What a user can start: the title, the name, and one of root's programs under it.
	process(t, proc, "12", stepd, "slurmstepd: [9.batch]\x00", "/home/games/slurmstepd", "1000")
	process(t, proc, "13", stepd, "slurmstepd: [10.batch]\x00", "/usr/bin/sudo", "0")
	process(t, proc, "14", "slurmd", "slurmd", "/usr/sbin/slurmd", "0")

	steps := Steps{Proc: proc}
	asked := []uint32{7, 8, 9, 10, 11}
	if got, want := steps.Living(asked), (map[uint32]bool{7: true, 8: true}); !reflect.DeepEqual(got, want) {
		t.Errorf("living: %v, want %v", got, want)
	}
	got := steps.Jobs()
	slices.Sort(got)
	if want := []uint32{7, 8}; !slices.Equal(got, want) {
		t.Errorf("jobs: %v, want %v", got, want)
	}

	// Job 7 ends, and another process gets its number; job 8 has a new step, too.
	if err := os.RemoveAll(filepath.Join(proc, "10")); err != nil {
		t.Fatal(err)
	}
	process(t, proc, "10", "bash", "bash\x00", "/bin/bash", "1000")
	process(t, proc, "15", stepd, "slurmstepd: [8.0]\x00", program, "0")
	if got, want := steps.Living(asked), (map[uint32]bool{8: true}); !reflect.DeepEqual(got, want) {
		t.Errorf("after the end of job 7: %v, want %v", got, want)
	}
}

// A user can make the title of his process wait for ever for whoever reads it. A pipe without a writer
// does the same.
func TestNobodyIsMadeToWaitByATitle(t *testing.T) {
	proc := t.TempDir()
	process(t, proc, "10", stepd, "slurmstepd: [7.batch]\x00", "/usr/sbin/slurmstepd", "0")
	for pid, what := range map[string][2]string{"11": {"/usr/sbin/slurmstepd", "1000"}, "12": {"/home/games/slurmstep", "0"}} {
		process(t, proc, pid, stepd, "", what[0], what[1])
		title := filepath.Join(proc, pid, "cmdline")
		if err := errors.Join(os.Remove(title), unix.Mkfifo(title, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	jobs := make(chan []uint32, 1)
	go func() { jobs <- (&Steps{Proc: proc}).Jobs() }()
	select {
	case got := <-jobs:
		if !slices.Equal(got, []uint32{7}) {
			t.Errorf("jobs: %v, want 7", got)
		}
	case <-time.After(20 * time.Second):
		t.Error("the title of a user's process is waited for")
	}
}
