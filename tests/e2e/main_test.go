// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the whole of slurm-vgpu on a real Slurm, with simulated
// cards, as the users of a node see it.
package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
)

func TestMain(m *testing.M) {
	processor.Prefer()
	if err := cluster.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Users that every Debian has; none of them is in a group of another.
const (
	alice = "www-data"
	bob   = "games"
	carol = "nobody"
)

const (
	gib       = 1 << 30
	shortWait = 20 * time.Second
)

// isLong says that tests may take their time: VGPU_LONG=1.
func isLong() bool { return os.Getenv("VGPU_LONG") != "" }

// onlyLong leaves a test out of the runs that must be short.
func onlyLong(t *testing.T) {
	t.Helper()
	if !isLong() {
		t.Skip("takes long: set VGPU_LONG=1")
	}
}

// site is a cluster whose errors end the test.
type site struct {
	*cluster.Cluster
	t *testing.T
}

// up starts a cluster for one test. When the test ends, every job must be gone
// without a trace; a failed test leaves its logs in build/e2e, or in the folder that VGPU_E2E_LOGS names.
func up(t *testing.T, opts cluster.Options) site {
	t.Helper()
	folder := "../../build/e2e"
	if own := os.Getenv("VGPU_E2E_LOGS"); own != "" {
		folder = own // for runs beside each other
	}
	logs, err := filepath.Abs(filepath.Join(folder, strings.ReplaceAll(t.Name(), "/", "_")))
	if err != nil {
		t.Fatal(err)
	}
	opts.Logs = logs
	c, err := cluster.Up(opts)
	if err != nil {
		t.Fatal(err)
	}
	s := site{c, t}
	t.Cleanup(func() {
		if !t.Failed() {
			s.nothingLeft()
		}
		if !opts.NoPlugin { // libvgpu is in every program
			nobodyIsOverItsLimit(t, logs)
		}
		if t.Failed() {
			t.Logf("logs are in %s; their ends:\n%s", logs, c.Tail(25))
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if !t.Failed() {
			_ = os.RemoveAll(logs)
		}
	})
	return s
}

// nobodyIsOverItsLimit fails the test when a gresd has called an honest job one above its hard limit.
func nobodyIsOverItsLimit(t *testing.T, logs string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(logs, "*gresd*.log"))
	if err != nil || len(files) == 0 {
		t.Errorf("gresd's logs: %v, %v", files, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "its hard limit is") {
				t.Errorf("an honest job was named: %s", line)
			}
		}
	}
}

// nothingLeft fails the test when an ended job left something.
func (s site) nothingLeft() {
	s.t.Helper()
	if err := s.WaitIdle(10 * time.Second); err != nil {
		s.t.Fatal(err)
	}
	// A gresd that was away when an Epilog came makes up for it within 20 s of its start.
	for _, left := range s.Leftovers(25 * time.Second) {
		s.t.Errorf("left at the end: %s", left)
	}
}

// submit submits a job that must be accepted.
func (s site) submit(user string, args, script string) int {
	s.t.Helper()
	job, err := s.Sbatch(user, strings.Fields(args), script)
	if err != nil {
		s.t.Fatal(err)
	}
	return job
}

// running waits until jobs with a share run. Slurm says RUNNING before Prolog
// has run: gresd's record is what a test may build on.
func (s site) running(jobs ...int) {
	s.t.Helper()
	for _, job := range jobs {
		if _, err := s.WaitState(job, 20*time.Second, "RUNNING"); err != nil {
			s.t.Fatal(err)
		}
		s.eventually(shortWait, fmt.Sprintf("job %d has a record", job), func() bool {
			records, err := s.Records()
			return err == nil && slices.ContainsFunc(records, func(r wire.Job) bool { return r.JobID == uint32(job) })
		})
	}
}

// ended waits for the end of a job and returns its state and output.
func (s site) ended(user string, job int) (state, output string) {
	s.t.Helper()
	state, err := s.Wait(job, 60*time.Second)
	if err != nil {
		s.t.Fatalf("%v\noutput: %s", err, s.Output(user, job))
	}
	return state, s.Output(user, job)
}

// completed is ended for a job that must succeed.
func (s site) completed(user string, job int) string {
	s.t.Helper()
	state, output := s.ended(user, job)
	if state != "COMPLETED" {
		s.t.Fatalf("job %d: %s, want COMPLETED; output:\n%s", job, state, output)
	}
	return output
}

// cancel cancels jobs and waits for their end.
func (s site) cancel(user string, jobs ...int) {
	s.t.Helper()
	for _, job := range jobs {
		if r := s.As(user, "scancel", fmt.Sprint(job)); r.Code != 0 {
			s.t.Fatalf("scancel %d: %s", job, r)
		}
	}
	for _, job := range jobs {
		if state, _ := s.ended(user, job); state != "CANCELLED" {
			s.t.Errorf("job %d: %s, want CANCELLED", job, state)
		}
	}
}

// look reads what a job saw of its card, once.
func look(t *testing.T, output string) cluster.Look {
	t.Helper()
	looks := cluster.Looks(output)
	if len(looks) == 0 {
		t.Fatalf("the job told nothing of its memory:\n%s", output)
	}
	return looks[len(looks)-1]
}

// hasWord says whether a text has a word.
func hasWord(text, word string) bool { return slices.Contains(strings.Fields(text), word) }

// eventually fails the test unless ok becomes true in time.
func (s site) eventually(limit time.Duration, what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("not within %s: %s", limit, what)
		}
	}
}
