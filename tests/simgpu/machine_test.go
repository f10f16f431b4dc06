// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// go test takes an old result from its cache unless a file that the test has
// looked at has changed; make looks at the C sources, so this looks too.
func lookAtSources(t *testing.T) {
	t.Helper()
	for _, dir := range []string{".", "../gpu"} {
		err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err == nil {
				_, err = os.Stat(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The cases of apitest/, each in a process and on a machine of its own.
func TestDriverAPI(t *testing.T) {
	lookAtSources(t)
	prog := filepath.Join(bin, "simgpu", "bin", "apitest")
	list, err := exec.Command(prog).Output()
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(string(list))
	if len(names) < 30 {
		t.Fatalf("apitest lists %d cases", len(names))
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			config := "one-card"
			if name == "visible" {
				config = "four-cards"
			}
			_, state := newMachine(t, config)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, prog, name)
			cmd.Env = append(os.Environ(), "SIMGPU_STATE="+state)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		})
	}
}

func num(v map[string]any, key string) uint64 { return uint64(v[key].(float64)) }

func TestEveryRouteFillsTheCardAndGivesItBack(t *testing.T) {
	// Managed memory is not refused: what does not fit stays with the host.
	for _, route := range []string{"linear", "pitch", "async", "pool", "vmm", "array"} {
		t.Run(route, func(t *testing.T) {
			_, state := newMachine(t, "one-card")
			v := startTenant(t, state, "--route", route, "--chunk", "1G", "--fine", "--fill").next()
			const free = 80<<30 - 500<<20
			if got := num(v, "before_free"); got != free {
				t.Errorf("free before: got %d, want %d", got, uint64(free))
			}
			if got := num(v, "granted"); got > free || got < free-4<<20 {
				t.Errorf("granted: got %d of %d", got, uint64(free))
			}
			if num(v, "result") != 2 {
				t.Errorf("refused with %v, want CUDA_ERROR_OUT_OF_MEMORY", v["error"])
			}
			if num(v, "free")+num(v, "nvml_used") != 80<<30 || num(v, "nvml2_used") != num(v, "nvml_used") {
				t.Errorf("driver and NVML differ: %v", v)
			}
			if got := num(v, "after_free"); got != free {
				t.Errorf("free afterwards: got %d, want %d", got, uint64(free))
			}
		})
	}
}

func TestManagedMemoryBeyondTheCardStaysWithTheHost(t *testing.T) {
	_, state := newMachine(t, "one-card")
	tenant := startTenant(t, state, "--route", "managed", "--alloc", "60G", "--alloc", "30G", "--route", "linear", "--alloc", "30G")
	for i, want := range []struct{ result, used uint64 }{{0, 60 << 30}, {0, 60 << 30}, {2, 60 << 30}} {
		v := tenant.next()
		if num(v, "result") != want.result || num(v, "nvml_used") < want.used || num(v, "nvml_used") > want.used+1<<30 {
			t.Errorf("allocation %d: %v, %d bytes of the card; want %d and %d", i, v["error"], num(v, "nvml_used"), want.result, want.used)
		}
	}
}

func TestMemoryOfSeveralProcessesAddsUp(t *testing.T) {
	m, state := newMachine(t, "one-card")
	a := startTenant(t, state, "--alloc", "30G", "--hold", "60")
	if got := num(a.next(), "result"); got != 0 {
		t.Fatalf("first: result %d", got)
	}
	b := startTenant(t, state, "--alloc", "60G", "--alloc", "40G", "--hold", "60")
	if got := num(b.next(), "result"); got != 2 {
		t.Errorf("60 GiB beside 30 GiB: result %d, want 2", got)
	}
	if got := num(b.next(), "result"); got != 0 {
		t.Errorf("40 GiB beside 30 GiB: result %d", got)
	}
	if got := m.Status()[0].Used; got != 70<<30+1000<<20 {
		t.Errorf("used: got %d", got)
	}
}

// A process that replaces itself by another program keeps its number and
// loses what it had on the card, as its device files close on exec.
func TestExecGivesMemoryBack(t *testing.T) {
	m, state := newMachine(t, "one-card")
	lib := filepath.Join(bin, "simgpu", "lib", "libcuda.so.1")
	script := `import ctypes, os
cu = ctypes.CDLL("` + lib + `")
ctx, p = ctypes.c_void_p(), ctypes.c_uint64()
assert cu.cuInit(0) == 0
assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(ctx), 0) == 0
os.execv("/bin/sleep", ["sleep", "60"])`
	cmd := exec.Command("python3", "-c", script)
	cmd.Env = append(os.Environ(), "SIMGPU_STATE="+state)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill() // sleeps on
		_ = cmd.Wait()
	}()
	waitFor(t, "exec", func() bool {
		comm, err := os.ReadFile(filepath.Join("/proc", itoa(cmd.Process.Pid), "comm"))
		return err == nil && strings.TrimSpace(string(comm)) == "sleep"
	})
	if s := m.Status()[0]; s.Used != 0 || len(s.Contexts) != 0 {
		t.Errorf("after exec: %d bytes, %d contexts", s.Used, len(s.Contexts))
	}
}

// The libraries find the machine beside themselves when nothing names it.
func TestLibrariesFindTheMachineWithoutEnvironment(t *testing.T) {
	c, err := ReadConfig("configs/four-cards.toml")
	if err != nil {
		t.Fatal(err)
	}
	// In a folder of their own: in build other programs would find the machine, too.
	dir := t.TempDir()
	for _, name := range []string{"tests/vgpu-worker", "simgpu/lib/libcuda.so.1", "simgpu/lib/libnvidia-ml.so.1"} {
		data, err := os.ReadFile(filepath.Join(bin, name))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := Init(filepath.Join(dir, "simgpu", "state"), c); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "tests", "vgpu-worker"), "--count", "--device", "3", "--report")
	cmd.Env = []string{}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), `"devices":4`) || !strings.Contains(string(out), "nvml2_total") {
		t.Errorf("got %s", out)
	}
}

// The tool does what its usage says, and says what is wrong.
func TestTool(t *testing.T) {
	tool := filepath.Join(bin, "simgpu", "bin", "simgpu")
	state := filepath.Join(t.TempDir(), "state")
	run := func(want int, text string, args ...string) {
		t.Helper()
		cmd := exec.Command(tool, args...)
		cmd.Env = append(os.Environ(), "SIMGPU_STATE="+state)
		out, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != want || !strings.Contains(string(out), text) {
			t.Errorf("simgpu %v: exit %d, %v, %q; want exit %d and %q", args, got, err, out, want, text)
		}
	}
	run(2, "usage:")
	run(1, "no such file", "status")
	run(0, "", "init", "--config", "configs/four-cards.toml")
	run(0, "card 3", "status")
	run(0, `"index":3`, "status", "--json")
	run(1, "want a process", "set-slice", "--pid", "1", "--us", "100")
	run(1, "want an error code", "fail", "--call", "cuMemAlloc")
	run(0, "", "fail", "--call", "cuMemAlloc", "--code", "2", "--count", "1")
	x := startTenant(t, state, "--alloc", "1M", "--alloc", "1M", "--alloc", "1M", "--hold", "60")
	if first, second := num(x.next(), "result"), num(x.next(), "result"); first != 2 || second != 0 {
		t.Errorf("allocations with one failure asked for: results %d and %d", first, second)
	}
	run(0, "", "set-slice", "--pid", itoa(x.pid()), "--us", "4321")
	run(0, "slice 4321 us", "status")
	run(0, "", "slow", "--call", "cuMemAlloc", "--ms", "50", "--count", "1")
	run(0, "", "refuse-slices", "--count", "1")
	run(0, "", "xid", "--card", "1", "--code", "48", "--ecc", "1", "--lost", "214")
	run(1, "the machine has 4", "xid", "--card", "4")
	run(0, "", "clear")
	run(1, "want one of", "explode")
}

func TestConfigMistakesAreNamed(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"no version", "count = 1", "want version = 1"},
		{"an unknown key", "version = 1\ncount = 1\nspeed = 3", `unknown key "speed"`},
		{"no card", "version = 1", "no cards"},
		{"too many cards", "version = 1\ncount = 17", "at most 16"},
		{"a size with a point", "version = 1\ncount = 1\n[model]\nmemory = \"1.5G\"", `size "1.5G"`},
		{"an unknown refusal", "version = 1\ncount = 1\n[model]\nswitch_records = \"no\"", `switch_records "no"`},
		{"an unknown link", "version = 1\ncount = 2\ntopology = [[\"X\",\"NEAR\"],[\"NEAR\",\"X\"]]", `topology "NEAR"`},
		{"a link with two ends", "version = 1\ncount = 2\ntopology = [[\"X\",\"PIX\"],[\"SYS\",\"X\"]]", "two directions"},
		{"cards out of order", "version = 1\n[[card]]\npci = \"00000000:50:00.0\"\n[[card]]\npci = \"00000000:40:00.0\"", "order"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cards.toml")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			conf, err := ReadConfig(path)
			if err == nil {
				err = Init(filepath.Join(t.TempDir(), "state"), conf)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want something with %q", err, c.want)
			}
		})
	}
}
