// SPDX-License-Identifier: Apache-2.0

// Package tell tests what the library tells the job's user on stderr.
package tell

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
)

// uuid is that of card 0 of a simulated machine.
func uuid(t *testing.T, m *simgpu.Machine) string {
	t.Helper()
	return m.Status()[0].UUID
}

// job is a grant of 30 % and 8 GiB of a simulated card.
type job struct {
	t   *testing.T
	env []string
}

func newJob(t *testing.T) job {
	t.Helper()
	build, err := filepath.Abs("../../build")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config, err := simgpu.ReadConfig("../simgpu/configs/one-card.toml")
	if err == nil {
		err = simgpu.Init(filepath.Join(dir, "state"), config)
	}
	if err != nil {
		t.Fatal(err)
	}
	m, err := simgpu.Open(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	spec := libvgpu.GrantSpec{JobID: 4217, Cards: []libvgpu.GrantCard{{
		UUID: uuid(t, m), MemLimit: 8 << 30, MemOverhead: 1 << 30, Share: 30, Cores: 30, Mode: libvgpu.ModeHard,
	}}}
	grant, err := libvgpu.CreateGrant(filepath.Join(dir, "grant"), spec)
	if err == nil {
		defer grant.Close()
		err = libvgpu.CreateCache(filepath.Join(dir, "cache"), spec, uint32(os.Getuid()), uint32(os.Getgid()))
	}
	if err != nil {
		t.Fatal(err)
	}
	return job{t, []string{
		"PATH=" + os.Getenv("PATH"), "SIMGPU_STATE=" + filepath.Join(dir, "state"), "LD_LIBRARY_PATH=" + filepath.Join(build, "simgpu/lib"),
		"LD_PRELOAD=" + filepath.Join(build, "lib/libvgpu.so"), "VGPU_GRANT=" + filepath.Join(dir, "grant"), "VGPU_CACHE=" + filepath.Join(dir, "cache"),
	}}
}

func (j job) command(more []string, args ...string) *exec.Cmd {
	j.t.Helper()
	cmd := exec.Command("../../build/tests/vgpu-worker", args...)
	cmd.Env = append(append([]string{}, j.env...), more...)
	return cmd
}

// run returns what the program wrote. Its stdout must be its own.
func (j job) run(more []string, args ...string) (stderr string) {
	j.t.Helper()
	cmd := j.command(more, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		j.t.Fatalf("%v (run make first): %s", err, errs.String())
	}
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "{") {
			j.t.Errorf("not the program's own line on stdout: %s", line)
		}
	}
	return errs.String()
}

// One line, however often it is refused: limit, use by process, what to do.
func TestARefusedAllocationIsExplainedOnce(t *testing.T) {
	j := newJob(t)
	got := j.run(nil, "--fine", "--fill")
	want := regexp.MustCompile(`^vgpu: memory: 256 MiB refused: the limit of job 4217 on card 0 is 8 GiB, used are \S+ GiB, ` +
		`of which this process \(\d+\) holds \S+ GiB\. To have more: submit with --vgpu-mem=9G\n$`)
	if !want.MatchString(got) {
		t.Errorf("got %q, want one line like %s", got, want)
	}
}

func TestOtherProcessesAreNamed(t *testing.T) {
	j := newJob(t)
	holder := j.command(nil, "--alloc", "3G", "--hold", "60")
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Process.Kill(); _ = holder.Wait() }()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it has its memory
		t.Fatal(err)
	}
	if got := j.run(nil, "--fill"); !strings.Contains(got, fmt.Sprintf(", process %d 4 GiB.", holder.Process.Pid)) {
		t.Errorf("got %q, want process %d with 3 GiB and its context named", got, holder.Process.Pid)
	}
}

func TestSilenceAndSpeechAreChosen(t *testing.T) {
	j := newJob(t)
	if got := j.run([]string{"VGPU_OOM_MESSAGE=0"}, "--fill"); got != "" {
		t.Errorf("VGPU_OOM_MESSAGE=0: got %q", got)
	}
	if got := j.run(nil, "--report", "--alloc", "1G"); got != "" {
		t.Errorf("a program that has enough: got %q", got)
	}
	want := regexp.MustCompile(`^vgpu: process \d+ of job 4217: card 0: compute 30% \(hard\), memory 8 GiB\n$`)
	if got := j.run([]string{"VGPU_VERBOSE=1"}, "--report"); !want.MatchString(got) {
		t.Errorf("VGPU_VERBOSE=1: got %q", got)
	}
}

// With nothing of CUDA called, nothing is said.
func TestNothingBeforeTheFirstCall(t *testing.T) {
	j := newJob(t)
	cmd := exec.Command("/bin/true")
	cmd.Env = append(append([]string{}, j.env...), "VGPU_VERBOSE=1")
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("got %q, %v", out, err)
	}
}

// A pipe that is full or has no reader neither stops nor ends the program.
func TestStderrThatCannotBeWritten(t *testing.T) {
	for name, prepare := range map[string]func(r, w *os.File) error{
		"closed": func(r, _ *os.File) error { return r.Close() },
		"full": func(_, w *os.File) error {
			fd := int(w.Fd()) // it also makes the pipe a blocking one
			if err := unix.SetNonblock(fd, true); err != nil {
				return err
			}
			for _, n := range []int{4096, 1} {
				for {
					if _, err := unix.Write(fd, make([]byte, n)); err != nil {
						break
					}
				}
			}
			return unix.SetNonblock(fd, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t)
			r, w, err := os.Pipe()
			if err == nil {
				err = prepare(r, w)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			for _, says := range [][]string{
				{"VGPU_LOG_LEVEL=0"}, // a refused allocation
				{"VGPU_LOG_LEVEL=4"}, // and what the library does
				{"VGPU_GRANT=", "CUDA_DEVICE_MEMORY_LIMIT=8G", "CUDA_DEVICE_SM_LIMIT=much"}, // and a mistake
			} {
				cmd := j.command(says, "--fill")
				cmd.Stderr = w
				late := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
				if out, err := cmd.Output(); err != nil || !bytes.Contains(out, []byte(`"refusals":1`)) {
					t.Errorf("%q: got %v: %s", says, err, out)
				}
				late.Stop()
			}
		})
	}
}
