// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
)

// bin is where make build puts the libraries and programs.
var bin string

func TestMain(m *testing.M) {
	if os.Getenv(meterEnv) != "" {
		readRecords()
		return
	}
	processor.Prefer()
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// build makes what make build has not made.
func build() (err error) {
	if bin, err = filepath.Abs("../../build"); err != nil {
		return err
	}
	for _, part := range []string{".", "../../libvgpu"} {
		if out, err := exec.Command("make", "-s", "-C", part).CombinedOutput(); err != nil {
			return fmt.Errorf("make -C %s: %w\n%s", part, err, out)
		}
	}
	return nil
}

// newMachine makes a machine of its own for a test.
func newMachine(t *testing.T, config string) (*Machine, string) {
	t.Helper()
	c, err := ReadConfig(filepath.Join("configs", config+".toml"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "state")
	if err := Init(path, c); err != nil {
		t.Fatal(err)
	}
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return m, path
}

// A tenant is a running worker.
type tenant struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startTenant(t *testing.T, state string, args ...string) *tenant {
	t.Helper()
	return startTenantWith(t, state, nil, args...)
}

func startTenantWith(t *testing.T, state string, env []string, args ...string) *tenant {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "tests", "vgpu-worker"), args...)
	cmd.Env = append(append(os.Environ(), "SIMGPU_STATE="+state), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill() // it may have ended by itself
			_ = cmd.Wait()
		}
	})
	return &tenant{t: t, cmd: cmd, lines: bufio.NewScanner(out)}
}

func (x *tenant) pid() int { return x.cmd.Process.Pid }

// next reads the worker's next line.
func (x *tenant) next() map[string]any {
	x.t.Helper()
	if !x.lines.Scan() {
		x.t.Fatalf("worker %d ended without a result: %v", x.pid(), x.cmd.Wait())
	}
	var v map[string]any
	if err := json.Unmarshal(x.lines.Bytes(), &v); err != nil {
		x.t.Fatalf("worker %d: %q: %v", x.pid(), x.lines.Text(), err)
	}
	return v
}

// contexts finds the usable contexts of the tenants on card 0; nil while one is missing.
func contexts(m *Machine, tenants []*tenant) []ContextStatus {
	var out []ContextStatus
	have := m.Status()[0].Contexts
	for _, x := range tenants {
		for _, c := range have {
			if c.PID == x.pid() && c.Usable {
				out = append(out, c)
			}
		}
	}
	if len(out) != len(tenants) {
		return nil
	}
	return out
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s: not within 20 s", what)
}

// saturate starts tenants that keep card 0 busy at the same time. The start is
// late enough for all to have measured their kernel before.
func saturate(t *testing.T, m *Machine, state string, n int, seconds string, kernelUS string, more ...string) []*tenant {
	t.Helper()
	at := fmt.Sprintf("%.3f", float64(time.Now().UnixMilli())/1000+1.2+0.3*float64(n))
	var out []*tenant
	for range n {
		args := append([]string{"--kernel-us", kernelUS, "--start-at", at}, more...)
		out = append(out, startTenant(t, state, append(args, "--saturate", seconds)...))
	}
	waitFor(t, "all contexts", func() bool { return contexts(m, out) != nil })
	return out
}

// fractions returns what each tenant counted as done, as part of solo work, and the part of the time in
// which it wanted a processor and had none.
func fractions(tenants []*tenant) (did, late []float64) {
	for _, x := range tenants {
		line := x.next()
		did, late = append(did, line["fraction"].(float64)), append(late, min(1, line["late"].(float64)))
	}
	return did, late
}

// bounded checks what each tenant did. One that was late can have done so much less, and others so much more.
func bounded(t *testing.T, did, late []float64, want ...[2]float64) {
	t.Helper()
	t.Logf("%.3f of solo work; without a processor for %.3f of the time", did, late)
	due := make([]float64, len(did))
	for i := range did {
		due[i] = want[min(i, len(want)-1)][1]
	}
	for i, f := range did {
		w := want[min(i, len(want)-1)]
		low, high := processor.Bounds(i, w[0], w[1], due, late)
		within(t, fmt.Sprintf("tenant %d", i+1), f, low, high)
	}
}

func within(t *testing.T, what string, got, low, high float64) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s: got %.4f, want %.4f to %.4f", what, got, low, high)
	}
}
