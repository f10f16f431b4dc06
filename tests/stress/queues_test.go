// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"bytes"
	"math"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/processor"
)

// queues runs a program of tests/queues on its stub and returns its line of JSON.
func queues(t *testing.T, env []string, program string, args ...string) map[string]any {
	t.Helper()
	line, _ := queuesSay(t, env, program, args...)
	return line
}

// queuesSay returns what it was told, too.
func queuesSay(t *testing.T, env []string, program string, args ...string) (line map[string]any, told string) {
	t.Helper()
	var stderr bytes.Buffer
	dir, err := filepath.Abs("../../build/tests/queues")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, program), args...)
	cmd.Env = append(env[:len(env):len(env)], "LD_LIBRARY_PATH="+dir+":"+filepath.Join(dir, "../../simgpu/lib"))
	cmd.Stderr = &stderr
	out, late, err := processor.Output(cmd)
	t.Logf("%s %v: %.3f of the time without a processor: %s%s", program, args, late, out, &stderr)
	if err != nil {
		t.Fatalf("%s %v: %v (run make first)", program, args, err)
	}
	line = decode(t, out)
	line["late"] = late
	return line, stderr.String()
}

// withDriver is an environment in which device files of the simulated driver are behind the library.
func withDriver(t *testing.T, env []string, preload string) []string {
	t.Helper()
	driver, err := filepath.Abs("../../build/simgpu/lib/libsimrm.so")
	if err != nil {
		t.Fatal(err)
	}
	if preload != "" {
		driver = preload + ":" + driver
	}
	return append(env[:len(env):len(env)], "LD_PRELOAD="+driver)
}

// A hard limit holds programs of OpenCL, Vulkan and OpenGL that are alone on a card, however they come by the
// functions, how many queues they fill, and how they wait.
func TestAHardLimitHoldsQueues(t *testing.T) {
	const secs = "3"
	for _, c := range []struct {
		least, most float64
		program     string
		args        []string
	}{
		{0.17, 0.23, "opencl", []string{"--how", "full"}},
		{0.17, 0.23, "opencl-linked", []string{"--how", "full"}},
		{0.17, 0.23, "opencl", []string{"--how", "full", "--us", "100", "--depth", "40"}},
		{0.17, 0.23, "opencl", []string{"--how", "full", "--us", "20000", "--depth", "3", "--secs", "6"}},
		{0.17, 0.23, "opencl", []string{"--how", "one"}},
		{0.17, 0.23, "opencl", []string{"--how", "two"}},
		{0.17, 0.23, "opencl", []string{"--how", "events"}},
		{0.17, 0.23, "opencl", []string{"--how", "reads"}},
		{0.17, 0.23, "opencl", []string{"--how", "fills"}},
		{0.17, 0.23, "opencl", []string{"--how", "held", "--depth", "4"}},
		{0.17, 0.23, "opencl", []string{"--how", "held", "--depth", "200", "--us", "50"}},
		{0.15, 0.23, "opencl", []string{"--how", "held", "--depth", "1000", "--us", "50"}},
		{0.17, 0.23, "opencl", []string{"--how", "passed"}},
		{0.17, 0.23, "vulkan", []string{"--how", "full"}},
		{0.17, 0.23, "vulkan", []string{"--how", "full", "--by", "instance"}},
		{0.17, 0.23, "vulkan", []string{"--how", "full", "--by", "exported"}},
		{0.17, 0.23, "vulkan", []string{"--how", "full", "--call", "vkQueueSubmit2"}},
		{0.17, 0.23, "vulkan", []string{"--how", "full", "--call", "vkQueueSubmit2KHR", "--by", "instance"}},
		{0.17, 0.23, "vulkan", []string{"--how", "one"}},
		{0.17, 0.23, "vulkan", []string{"--how", "idle"}},
		{0.17, 0.23, "vulkan", []string{"--how", "polls"}},
		{0.17, 0.23, "vulkan", []string{"--how", "two"}},
		{0, 0.23, "vulkan", []string{"--how", "signal"}},
		{0.17, 0.23, "opengl", []string{"--how", "full"}},
		{0.17, 0.23, "opengl", []string{"--how", "full", "--by", "library"}},
		{0.17, 0.23, "opengl-linked", []string{"--how", "full"}},
		{0.17, 0.23, "opengl", []string{"--how", "one"}},
		{0.17, 0.23, "opengl", []string{"--how", "reads"}},
		{0.17, 0.23, "opengl", []string{"--how", "waits"}},
		{0.17, 0.23, "opengl", []string{"--how", "swap"}},
		{0.17, 0.23, "opengl", []string{"--how", "frames", "--us", "200"}},
		{0.17, 0.23, "opengl", []string{"--how", "two"}},
		{0.17, 0.23, "optix", []string{"--how", "one", "--us", "200"}},
		{0.17, 0.23, "optix", []string{"--how", "both"}},
		{0.17, 0.23, "optix", []string{"--how", "full", "--version", "22"}},
		{0.17, 0.23, "optix", []string{"--how", "builds", "--version", "118"}},
	} {
		t.Run(c.program+" "+strings.Join(c.args, " "), func(t *testing.T) {
			t.Parallel()
			j := newMachine(t, oneCard).job(7, 8<<30, libvgpu.Schedule{Cores: 20, Gate: libvgpu.GateBudget})
			r := queues(t, withDriver(t, j.env, j.lib), c.program, append(c.args, "--secs", secs)...)
			ofCard(t, r["part"].(float64), c.least, c.most, r["late"].(float64))
		})
	}
}

// Where nothing is to be held, nothing is: a soft limit, neighbours that hold the job, no job, and what
// OpenGL draws elsewhere than on a card.
func TestQueuesWithoutAHardLimit(t *testing.T) {
	for _, program := range []string{"opencl", "vulkan", "opengl"} {
		for name, open := range map[string]func(t *testing.T) []string{
			"gate open": func(t *testing.T) []string {
				j := newMachine(t, oneCard).job(7, 8<<30, libvgpu.Schedule{Cores: 20})
				return withDriver(t, j.env, j.lib)
			},
			"no job": func(t *testing.T) []string {
				m := newMachine(t, oneCard)
				return withDriver(t, m.env, m.lib)
			},
			"no library": func(t *testing.T) []string {
				return withDriver(t, newMachine(t, oneCard).env, "")
			},
			"no card": func(t *testing.T) []string {
				j := newMachine(t, oneCard).job(7, 8<<30, libvgpu.Schedule{Cores: 20, Gate: libvgpu.GateBudget})
				return append(withDriver(t, j.env, j.lib), "STUB_VENDOR=Mesa Project")
			},
		} {
			if name == "no card" && program != "opengl" {
				continue
			}
			t.Run(program+" "+name, func(t *testing.T) {
				t.Parallel()
				r := queues(t, open(t), program, "--secs", "1")
				ofCard(t, r["part"].(float64), 0.8, math.Inf(1), r["late"].(float64))
			})
		}
	}
}

// Without fences of EGL the library waits for what is drawn. Where a program does not draw by EGL nothing
// holds it, which it is told once.
func TestWorkThatNoGateHoldsIsSaid(t *testing.T) {
	const soft = "its hard limit of 20% acts as a soft one"
	env := func() []string {
		j := newMachine(t, oneCard).job(7, 8<<30, libvgpu.Schedule{Cores: 20, Gate: libvgpu.GateBudget})
		return withDriver(t, j.env, j.lib)
	}
	r, told := queuesSay(t, append(env(), "STUB_SYNCS=0"), "opengl", "--secs", "2")
	if part := r["part"].(float64); part > 0.23 {
		t.Errorf("%.3f of the time on the card without fences", part)
	}
	if strings.Contains(told, soft) {
		t.Errorf("a program that is held was told %q", told)
	}
	for _, c := range []struct {
		env, program string
		args         []string
		times        int
	}{
		{"STUB_GLX=1", "opengl", nil, 1},
		{"STUB_VENDOR=Mesa Project", "opengl", nil, 0},
		{"", "optix", []string{"--version", "100000"}, 1},
	} {
		_, told = queuesSay(t, append(env(), c.env), c.program, append(c.args, "--secs", "1")...)
		if strings.Count(told, soft) != c.times {
			t.Errorf("%s of %s: told %q, want %d times %q", c.program, c.env, told, c.times, soft)
		}
	}
}

// A closed gate and an exclusive window delay submissions as they delay CUDA's launches. A job outside its
// window reports its demand to gresd.
func TestAClosedGateHoldsQueues(t *testing.T) {
	window := libvgpu.Window{PeriodUS: 10000, LengthUS: 2000, QueueUS: 1000, BeginNS: 1}
	for name, s := range map[string]libvgpu.Schedule{
		"shut":   {Cores: 20, Gate: libvgpu.GateShut},
		"window": {Cores: 20, Gate: libvgpu.GateWindow, Window: window},
	} {
		for _, program := range []string{"opencl", "vulkan"} {
			t.Run(program+" "+name, func(t *testing.T) {
				t.Parallel()
				began, s := monotonic(t), s
				if s.Gate == libvgpu.GateShut {
					s.LeaseNS = began + 2e9
				}
				j := newMachine(t, oneCard).job(7, 8<<30, s)
				r := queues(t, withDriver(t, j.env, j.lib), program, "--how", "one", "--secs", "2")
				if part := r["part"].(float64); part > 0.4 {
					t.Errorf("%.3f of the time on the card, want at most 0.4", part)
				}
				if s.Gate != libvgpu.GateWindow {
					return
				}
				cache, err := libvgpu.ReadCache(j.cache)
				if err != nil {
					t.Fatal(err)
				}
				if at := cache.Cards[0].WantedNS; at < began {
					t.Errorf("the job wanted the card at %d ns, want after %d ns", at, began)
				}
			})
		}
	}
}

// monotonic is CLOCK_MONOTONIC in nanoseconds.
func monotonic(t *testing.T) uint64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return uint64(now.Nano())
}

// The budget is the job's: of several processes, and of what a process does by CUDA beside. On a card
// of its own each runs while the other does, which is charged once.
func TestQueuesHaveTheJobsBudget(t *testing.T) {
	const secs = 3
	j := newMachine(t, oneCard).job(7, 8<<30, libvgpu.Schedule{Cores: 20, Gate: libvgpu.GateBudget})
	env := withDriver(t, j.env, j.lib)
	var parts [3]float64
	t.Run("all", func(t *testing.T) {
		for i, args := range [][]string{{"opencl", "--cuda", "1000"}, {"vulkan", "--how", "one"}} {
			t.Run(args[0], func(t *testing.T) {
				t.Parallel()
				r := queues(t, env, args[0], append(args[1:], "--secs", strconv.Itoa(secs))...)
				parts[i] = r["part"].(float64)
				if cuda, ok := r["cuda"].(float64); ok {
					parts[2] = cuda
				}
			})
		}
	})
	for i, part := range parts {
		if part < 0.01 || part > 0.23 {
			t.Errorf("%d: %.3f of the time: it has nothing, or more than the job", i, part)
		}
	}
	if sum := parts[0] + parts[1] + parts[2]; sum > 0.6 {
		t.Errorf("%.3f of the time together", sum)
	}
	view, err := libvgpu.ReadCache(j.cache)
	if err != nil {
		t.Fatal(err)
	}
	if b := view.Cards[0].Budget; b.ChargedNS < secs*0.1e9 {
		t.Errorf("%d ms charged for %d s", b.ChargedNS/1e6, secs)
	}
}

// On several cards a queue counts on its own, and where that is not known on those on which the process
// works: the stub's device is the first in the kernel driver.
func TestQueuesOfSeveralCards(t *testing.T) {
	m := newMachine(t, strings.Replace(oneCard, "count = 1", "count = 2", 1))
	for name, c := range map[string]struct {
		env  []string
		card int
	}{
		"told":     {[]string{"STUB_UUID=" + m.Status()[1].UUID}, 1},
		"not told": {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			j := m.job(7, 8<<30, libvgpu.Schedule{Cores: 20, Gate: libvgpu.GateBudget})
			queues(t, append(withDriver(t, j.env, j.lib), c.env...), "opencl", "--secs", "1")
			view, err := libvgpu.ReadCache(j.cache)
			if err != nil {
				t.Fatal(err)
			}
			for i, card := range view.Cards {
				if charged := card.Budget.ChargedNS > 0; charged != (i == c.card) {
					t.Errorf("card %d: %d ns charged, want some on card %d alone", i, card.Budget.ChargedNS, c.card)
				}
			}
		})
	}
}

// A program that looks whether there is OpenCL, Vulkan or OpenGL finds none, as without the library.
func TestFunctionsOfAbsentLibrariesAreNotFound(t *testing.T) {
	j := newMachine(t, oneCard).job(7, 8<<30, libvgpu.Schedule{Cores: 20})
	queues(t, append(j.env, "LD_PRELOAD="+j.lib), "absent")
}

// What a program calls of a library that it brings along is called in that one, and what it calls of the
// system's has a gate.
func TestAProgramsOwnEGLIsItsOwn(t *testing.T) {
	j := newMachine(t, oneCard).job(7, 8<<30, libvgpu.Schedule{Cores: 20})
	brought, err := filepath.Abs("../../build/tests/queues/brought/libEGL.so")
	if err != nil {
		t.Fatal(err)
	}
	r := queues(t, append(j.env, "LD_PRELOAD="+j.lib), "own", brought)
	for where, want := range map[string]string{"alone": "libEGL.so", "own": "libEGL.so", "systems": "libvgpu.so"} {
		if r[where] != want {
			t.Errorf("%s: found in %v, want %s", where, r[where], want)
		}
	}
}
