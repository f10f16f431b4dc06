// SPDX-License-Identifier: Apache-2.0

// Package sanitize runs libvgpu.so, the simulated card and programs that use both under
// the sanitizers: AddressSanitizer with LeakSanitizer, UndefinedBehaviorSanitizer and
// ThreadSanitizer, of gcc. It takes minutes: VGPU_LONG=1, or make analyze STEPS=sanitizers.
package sanitize

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
)

// sanitizers by gcc's names. The undefined one has no runtime that must come first.
var sanitizers = []struct{ name, runtime, options string }{
	{"address", "libasan.so", "ASAN_OPTIONS=detect_stack_use_after_return=1:"},
	{"undefined", "libubsan.so", "UBSAN_OPTIONS=print_stacktrace=1:"},
	// A child of a program with threads may go on, and have some of its own.
	{"thread", "libtsan.so", "TSAN_OPTIONS=die_after_fork=0:second_deadlock_stack=1:"},
}

// What a program ends with when its sanitizer has a report.
const reported = 66

// A bench is one sanitizer's build, a machine with one simulated card, and its jobs.
type bench struct {
	t       *testing.T
	dir     string   // the build
	preload string   // the sanitizer's runtime and the library
	env     []string // the sanitizer's options, and where the machine is
	options string   // of them, the sanitizer's
	reports string   // folder
	grants  *grant.Store
	card    gpu.UUID
}

func makeAll(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("make", append([]string{"-s", "-j2"}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// build makes everything in C with a sanitizer, in build/ as make does, so that a
// second run makes only what has changed.
func build(t *testing.T, sanitizer string) string {
	t.Helper()
	dir, err := filepath.Abs("../../build/sanitize/" + sanitizer)
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{
		// FORTIFY_SOURCE would call functions that the runtimes do not watch.
		"CFLAGS=-O1 -g -fno-omit-frame-pointer -U_FORTIFY_SOURCE -fsanitize=" + sanitizer,
		"LDFLAGS=-fsanitize=" + sanitizer,
	}
	makeAll(t, append(flags, "-C", "../../libvgpu", "OLD_GLIBC=", "OUT="+dir+"/lib")...)
	makeAll(t, append(flags, "-C", "../simgpu", "BUILD="+dir, "libs", "worker", "apitest")...)
	makeAll(t, append(flags, "-C", "../stress/programs", "OUT="+dir+"/tests", dir+"/tests/memstress", dir+"/tests/threads")...)
	makeAll(t, append(flags, "-C", "../queues", "OUT="+dir+"/tests/queues")...)
	return dir
}

func newBench(t *testing.T, sanitizer, runtime, options, dir, config string) *bench {
	t.Helper()
	b := &bench{t: t, dir: dir, reports: t.TempDir()}
	out, err := exec.Command("gcc", "-print-file-name="+runtime).Output()
	if err != nil {
		t.Fatal(err)
	}
	library := dir + "/lib/libvgpu.so"
	b.preload = strings.TrimSpace(string(out)) + ":" + library
	c, err := simgpu.ReadConfig("../simgpu/configs/" + config + ".toml")
	if err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state")
	if err := simgpu.Init(state, c); err != nil {
		t.Fatal(err)
	}
	m, err := simgpu.Open(state)
	if err != nil {
		t.Fatal(err)
	}
	b.card = gpu.UUID(m.Status()[0].UUID)
	suppressions, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	options += fmt.Sprintf("exitcode=%d:log_path=%s/report", reported, b.reports)
	if sanitizer == "thread" {
		options += ":suppressions=" + suppressions + "/thread.supp"
	}
	b.options = options
	b.env = append(os.Environ(), "SIMGPU_STATE="+state, "VGPU_WORKER_LIBDIR="+dir+"/simgpu/lib", options,
		"LSAN_OPTIONS=suppressions="+suppressions+"/leak.supp:print_suppressions=0")
	run := t.TempDir()
	b.grants, err = grant.NewStore(grant.Layout{
		RunDir: run, Jobs: filepath.Join(run, "jobs"), Preload: filepath.Join(run, "preload"), Library: library,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.grants.Close)
	// Everybody gets new schedules all the time.
	judge := arbiter.NewRunner(b.grants, arbiter.Params{Period: 20000, MaxPeriod: 50000, MinSlice: 500},
		20*time.Millisecond, slog.New(slog.DiscardHandler))
	b.grants.OnChange(judge.Wake)
	done := make(chan struct{})
	go func() { judge.Run(t.Context()); close(done) }()
	t.Cleanup(func() { <-done })
	return b
}

// job grants a share of the card and returns the environment of its processes.
func (b *bench) job(id uint32, cores gpu.Share, memory gpu.Bytes) []string {
	b.t.Helper()
	rec := ledger.Record{JobID: id, UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), State: ledger.Granted, Mode: gpu.Hard, Created: time.Now()}
	rec.Placement.Cards = []place.CardShare{{UUID: b.card, Share: cores, Cores: cores, Memory: memory}}
	spec := grant.SpecOf(rec)
	spec.Cards[0].MemOverhead = 500 << 20
	if err := b.grants.Create(spec, nil); err != nil {
		b.t.Fatal(err)
	}
	dir := b.grants.Dir(id)
	return []string{"LD_PRELOAD=" + b.preload, "VGPU_GRANT=" + dir + "/grant", "VGPU_CACHE=" + dir + "/cache"}
}

// run runs a program of the build to its end. Without address space randomization: the
// runtimes do not start where the kernel spreads addresses widely (vm.mmap_rnd_bits = 32).
func (b *bench) run(env []string, program string, args ...string) (out []byte, status int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	// env sets the preload list for the program alone.
	args = append(append(append([]string{"-R", "env"}, env...), filepath.Join(b.dir, program)), args...)
	cmd := exec.CommandContext(ctx, "setarch", args...)
	cmd.Env = b.env
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() < 0) {
		b.t.Fatalf("%s: %v\n%s%s", program, err, out, errs.Bytes())
	}
	if errs.Len() > 0 {
		b.t.Logf("%s %s: %.600s", program, args[len(args)-1], errs.Bytes())
	}
	return out, cmd.ProcessState.ExitCode()
}

var location = regexp.MustCompile(`(?m)^SUMMARY: .*|^.*runtime error: .*`)

// clean fails the test for every report that there is.
func (b *bench) clean() {
	b.t.Helper()
	kinds := map[string]int{}
	err := filepath.WalkDir(b.reports, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, line := range location.FindAllString(string(text), -1) {
			if kinds[line]++; kinds[line] == 1 {
				b.t.Errorf("%s", line)
			}
		}
		b.t.Logf("%.100000s", text)
		if len(kinds) == 0 && len(text) > 0 {
			b.t.Errorf("%s: not empty", path)
		}
		return nil
	})
	if err != nil {
		b.t.Error(err)
	}
}

func field(t *testing.T, out []byte, name string) float64 {
	t.Helper()
	line, _, _ := bytes.Cut(out, []byte("\n"))
	var v map[string]any
	if err := json.Unmarshal(line, &v); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	f, _ := v[name].(float64)
	return f
}

func TestLibraryUnderSanitizers(t *testing.T) {
	if os.Getenv("VGPU_LONG") == "" {
		t.Skip("takes minutes: VGPU_LONG=1")
	}
	for _, s := range sanitizers {
		t.Run(s.name, func(t *testing.T) {
			dir := build(t, s.name)
			on := func(t *testing.T, config string) *bench {
				return newBench(t, s.name, s.runtime, s.options, dir, config)
			}
			t.Run("driver API", func(t *testing.T) { driverAPI(t, on) })
			t.Run("launches under a limit", func(t *testing.T) { launches(on(t, "one-card")) })
			t.Run("memory of processes that are killed", func(t *testing.T) { killed(on(t, "one-card")) })
			t.Run("threads", func(t *testing.T) { threads(on(t, "one-card")) })
			t.Run("queues", func(t *testing.T) { queues(on(t, "one-card")) })
		})
	}
}

// The simulated card's own cases, through the library, with all its memory but with a gate
// before launches. Some look at times, which are longer here, or at calls that the library
// makes, too: their own verdict does not count.
func driverAPI(t *testing.T, on func(*testing.T, string) *bench) {
	b := on(t, "one-card")
	four := on(t, "four-cards")
	env := []string{"LD_PRELOAD=" + b.preload, "CUDA_DEVICE_SM_LIMIT=99"}
	list, status := b.run(nil, "simgpu/bin/apitest")
	names := strings.Fields(string(list))
	if status != 0 || len(names) < 30 {
		t.Fatalf("apitest lists %d cases: status %d", len(names), status)
	}
	passed := 0
	for _, name := range names {
		switch name {
		case "visible":
			_, status = four.run(env, "simgpu/bin/apitest", name)
		case "child":
			// A child that ends may find the runtime's allocator locked by a thread that
			// it does not have: its look for leaks then waits for ever.
			_, status = b.run(append([]string{b.options + ":detect_leaks=0"}, env...), "simgpu/bin/apitest", name)
		default:
			_, status = b.run(env, "simgpu/bin/apitest", name)
		}
		switch status {
		case 0:
			passed++
		case 1: // its own verdict
		default:
			t.Errorf("%s: status %d", name, status)
		}
	}
	t.Logf("%d cases, %d passed", len(names), passed)
	if passed < len(names)*3/4 {
		t.Errorf("%d of %d cases passed: too few to have tested much", passed, len(names))
	}
	b.clean()
	four.clean()
}

// Two jobs launch in every way while their shares change.
func launches(b *bench) {
	envs := [][]string{b.job(1, 30, 20<<30), b.job(2, 40, 20<<30)}
	stop := make(chan struct{})
	var changes, workers sync.WaitGroup
	changes.Go(func() {
		for i := uint32(0); ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				b.grants.SetCores(1+i%2, gpu.Share(20+i%30))
			}
		}
	})
	for i, env := range envs {
		workers.Go(func() {
			for _, way := range []string{"kernel", "ex", "coop", "graph"} {
				out, status := b.run(env, "tests/vgpu-worker", "--kernel-us", []string{"100", "3000"}[i], "--streams", "3", "--launch", way, "--saturate", "2")
				if status != 0 {
					b.t.Errorf("%s: status %d: %s", way, status, out)
				} else if f := field(b.t, out, "fraction"); f <= 0 {
					b.t.Errorf("%s: fraction %v: nothing ran", way, f)
				}
			}
		})
	}
	workers.Wait()
	close(stop)
	changes.Wait()
	b.clean()
}

func killed(b *bench) {
	out, status := b.run(nil, "tests/memstress", "--lib", b.preload, "--libdir", b.dir+"/simgpu/lib", "--cache", filepath.Join(b.t.TempDir(), "cache"),
		"--limit", "6442450944", "--workers", "6", "--secs", "10", "--kill-ms", "200")
	b.t.Logf("%s", out)
	if status != 0 || field(b.t, out, "killed") < 5 {
		b.t.Errorf("status %d: %s", status, out)
	}
	b.clean()
}

// Three processes of one job, and one of another.
func threads(b *bench) {
	envs := [][]string{b.job(1, 40, 3<<30), b.job(2, 30, 1<<30)}
	var all sync.WaitGroup
	var refused atomic.Int64
	for i := range 4 {
		all.Go(func() {
			out, status := b.run(envs[i/3], "tests/threads", "--libdir", b.dir+"/simgpu/lib", "--secs", "10", "--threads", "6", "--seed", fmt.Sprint(i+1))
			b.t.Logf("%s", out)
			if status != 0 || field(b.t, out, "done") < 1000 {
				b.t.Errorf("status %d: %s", status, out)
			}
			refused.Add(int64(field(b.t, out, "refused")))
		})
	}
	all.Wait()
	if refused.Load() == 0 {
		b.t.Error("no memory was refused: the limits were not reached")
	}
	b.clean()
}

// Submissions of OpenCL, Vulkan and OpenGL under a limit, in a process of its own each, and CUDA's launches
// beside.
func queues(b *bench) {
	env := b.job(7, 20, 8<<30)
	env[0] += ":" + b.dir + "/simgpu/lib/libsimrm.so"
	env = append(env, "LD_LIBRARY_PATH="+b.dir+"/tests/queues:"+b.dir+"/simgpu/lib")
	for _, args := range [][]string{
		{"opencl", "--how", "two", "--cuda", "1000"},
		{"opencl", "--how", "held", "--depth", "40"},
		{"vulkan", "--how", "two"},
		{"vulkan", "--how", "signal"},
		{"opengl", "--how", "two"},
	} {
		out, status := b.run(env, "tests/queues/"+args[0], args[1:]...)
		if status != 0 || field(b.t, out, "n") == 0 {
			b.t.Errorf("%v: status %d: %s", args, status, out)
		}
	}
	b.clean()
}
