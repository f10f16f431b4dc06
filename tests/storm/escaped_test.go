// SPDX-License-Identifier: Apache-2.0

package storm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// The jobs of these tests are this user's.
const escapedUser = 1000

// tenants are jobs with 8 GiB each, on two cards, and programs in them.
type tenants struct {
	t *testing.T
	*Node
	build string
}

func newTenants(t *testing.T, jobs int) tenants {
	t.Helper()
	n := newNode(t, "")
	if err := os.Chmod(n.Dir, 0o755); err != nil { // users reach their jobs
		t.Fatal(err)
	}
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	for id := 1; id <= jobs; id++ {
		job := Job{ID: uint32(id), UID: escapedUser, Card: cardOf(id), Share: 20, MemMiB: 8 << 10}
		if err := n.Submit(job); err != nil {
			t.Fatal(err)
		}
		if rep, err := n.Prolog(context.Background(), job); err != nil || rep.Result != wire.Granted {
			t.Fatal(saidNo(rep, err))
		}
	}
	return tenants{t, n, n.build}
}

// cardOf is the card of a job: two of them, and odd and even numbers on both.
func cardOf(job int) int { return job / 2 % 2 }

// command is a program of a job, with the library or without.
func (n tenants) command(ctx context.Context, job int, held bool, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	dir := filepath.Join(n.JobsDir(), fmt.Sprint(job))
	cmd.Env = []string{
		fmt.Sprintf("SLURM_JOB_ID=%d", job), fmt.Sprintf("CUDA_VISIBLE_DEVICES=%d", cardOf(job)), "PATH=/usr/bin:/bin:" + filepath.Join(n.build, "tests"),
		"LD_LIBRARY_PATH=" + filepath.Join(n.Dir, "sim/lib"), "SIMGPU_STATE=" + filepath.Join(n.Dir, "sim/state"),
	}
	if held {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+filepath.Join(n.build, "lib/libvgpu.so"),
			"VGPU_GRANT="+filepath.Join(dir, "grant"), "VGPU_CACHE="+filepath.Join(dir, "cache"))
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: escapedUser, Gid: escapedUser}, Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}

// honest programs, all of which the library holds: to the limit and back, beside each other, in
// children, and as another program's after exec.
const honest = `
vgpu-worker --fill >/dev/null || exit
vgpu-worker --alloc 7G --hold 1.3 >/dev/null || exit
vgpu-worker --alloc 3G --hold 0.4 >/dev/null & first=$!
sh -c 'exec sh -c "exec vgpu-worker --alloc 3G --hold 0.2"' >/dev/null || exit
wait $first || exit
forks --libdir "$LD_LIBRARY_PATH" --what cuda --count 3 >/dev/null || exit
echo round`

// rounds runs honest programs in a job until ctx is done, and returns how often all of them ran.
func (n tenants) rounds(ctx context.Context, job int) (rounds int, err error) {
	for ctx.Err() == nil {
		cmd := n.command(context.Background(), job, true, "sh", "-c", honest)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), "round") {
			return rounds, fmt.Errorf("honest programs of job %d: %w: %s%s", job, err, out, errs.Bytes())
		}
		rounds++
	}
	return rounds, nil
}

// escape is one static program.
type escape struct {
	pid  int
	had  uint64        // bytes
	took time.Duration // from its start to its end
}

// static runs a program that is linked statically until something ends it.
func (n tenants) static(ctx context.Context, job int) (e escape, err error) {
	cmd := n.command(ctx, job, false, filepath.Join(n.build, "tests/vgpu-escape-static"), "path:"+filepath.Join(n.Dir, "sim/lib/libcuda.so.1"), "60")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return e, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return e, err
	}
	line, readErr := bufio.NewReader(out).ReadBytes('\n')
	err = cmd.Wait()
	e.took, e.pid = time.Since(start), cmd.Process.Pid
	var got struct{ Granted uint64 }
	if readErr != nil || json.Unmarshal(line, &got) != nil {
		return e, fmt.Errorf("static program of job %d: %w, %q", job, err, line)
	}
	e.had = got.Granted
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL || ctx.Err() != nil {
		return e, fmt.Errorf("static program of job %d with %d bytes: %w after %s, want it killed", job, e.had, err, e.took)
	}
	return e, nil
}

// audited are the processes that gresd has killed, and those that it has only spoken of.
func (n tenants) audited() (killed, reported []int) {
	n.t.Helper()
	text, err := os.ReadFile(n.Log())
	if err != nil {
		n.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var pid int
		if _, after, is := strings.Cut(line, " pid="); !is || !strings.Contains(line, "audit: ") {
			continue
		} else if _, err := fmt.Sscanf(after, "%d", &pid); err != nil {
			n.t.Fatalf("%v: %q", err, line)
		}
		if strings.Contains(line, "audit: killed") {
			killed = append(killed, pid)
		} else {
			reported = append(reported, pid)
		}
	}
	return killed, reported
}

// TestStaticProgramsAboveTheirMemoryAreKilled: no library is in them, so that they take what they
// want. With what gresd does by default they are gone after two looks, and no honest program ever
// is, neither beside them in the same job nor in another.
func TestStaticProgramsAboveTheirMemoryAreKilled(t *testing.T) {
	const (
		jobs   = 8 // of which 6 have static programs
		most   = 3 * time.Second
		enough = 8 << 30
	)
	tries := 24
	if long {
		tries = 1000
	}
	n := newTenants(t, jobs)
	beside, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	var all sync.WaitGroup
	var escapes []escape
	rounds := 0
	for job := 1; job <= jobs; job += 2 { // beside static ones, but for the last
		all.Go(func() {
			done, err := n.rounds(beside, job)
			mu.Lock()
			defer mu.Unlock()
			if rounds += done; err != nil {
				t.Error(err)
			}
		})
	}
	var statics sync.WaitGroup
	for job := 1; job < jobs-1; job++ {
		statics.Go(func() {
			for {
				mu.Lock()
				if tries--; tries < 0 || t.Failed() {
					mu.Unlock()
					return
				}
				mu.Unlock()
				time.Sleep(rand.N(time.Second)) // gresd looks at whole seconds
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				e, err := n.static(ctx, job)
				cancel()
				mu.Lock()
				escapes = append(escapes, e)
				if err != nil {
					t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	statics.Wait()
	stop()
	all.Wait()
	n.tellAndJudge(escapes, rounds, enough)
	if worst := slices.MaxFunc(escapes, func(a, b escape) int { return int(a.took - b.took) }); long && worst.took > most {
		t.Errorf("one had %s, want at most %s", worst.took, most)
	}
}

func (n tenants) tellAndJudge(escapes []escape, rounds int, enough uint64) {
	n.t.Helper()
	slices.SortFunc(escapes, func(a, b escape) int { return int(a.took - b.took) })
	n.t.Logf("%d static programs, median %.2f s, worst %.2f s, each with %d MiB; %d rounds of honest programs",
		len(escapes), escapes[len(escapes)/2].took.Seconds(), escapes[len(escapes)-1].took.Seconds(), escapes[0].had>>20, rounds)
	var pids []int
	for _, e := range escapes {
		pids = append(pids, e.pid)
		if e.had <= enough {
			n.t.Errorf("a static program had %d bytes, and would have been left alone", e.had)
		}
	}
	killed, reported := n.audited()
	for _, pid := range slices.Concat(killed, reported) {
		if !slices.Contains(pids, pid) {
			n.t.Errorf("process %d is honest, and was reported or killed", pid)
		}
	}
	if len(killed) != len(pids) || rounds == 0 {
		n.t.Errorf("%d of %d static programs were killed, beside %d rounds of honest programs", len(killed), len(pids), rounds)
	}
	told, err := os.ReadFile(filepath.Join(n.JobsDir(), "1/messages"))
	if err != nil || !strings.Contains(string(told), "vgpu: audit: killed process ") || !strings.Contains(string(told), "ask for more with --vgpu-mem") {
		n.t.Errorf("job 1 was told %q, %v", told, err)
	}
}
