// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// A driver with two cards, which makes a context by writing a file. What it
// does wrong is in FAKE_DRIVER.
const fakeDriver = `
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int wrong(const char *what)
{
	const char *s = getenv("FAKE_DRIVER");
	return s && strcmp(s, what) == 0;
}
int cuInit(unsigned flags)
{
	if (wrong("hang"))
		sleep(60);
	return wrong("init") ? 100 : 0;
}
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetUuid_v2(unsigned char *u, int d)
{
	for (int i = 0; i < 16; i++)
		u[i] = d == 1 ? 0x11 * i : 0;
	return 0;
}
int cuDevicePrimaryCtxRetain(void **c, int d)
{
	printf("card %d ", d);
	fflush(stdout);
	*c = 0;
	return wrong("full") ? 2 : 0;
}
`

// TestMain plays the child: gresd's hidden command, but without NVML.
func TestMain(m *testing.M) {
	if len(os.Args) != 4 || os.Args[1] != "child" {
		os.Exit(m.Run())
	}
	if err := makeContext(os.Args[2], gpu.UUID(os.Args[3])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("preload %q\n", os.Getenv("LD_PRELOAD"))
}

func fakeCUDA(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, lib := filepath.Join(dir, "cuda.c"), filepath.Join(dir, "libcuda.so.1")
	if err := os.WriteFile(source, []byte(fakeDriver), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", lib, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return lib
}

func TestContextIsMadeOnTheCardThatIsNamed(t *testing.T) {
	lib := fakeCUDA(t)
	for name, c := range map[string]struct {
		lib, wrong string
		uuid       gpu.UUID
		say        string
	}{
		"the second card":       {lib, "", uuid, "card 1 "},
		"a card that is absent": {lib, "", "GPU-x", "CUDA has 2 cards and not this one"},
		"no driver":             {"/nonexistent/libcuda.so.1", "", uuid, "/nonexistent/libcuda.so.1"},
		"some other library":    {"libm.so.6", "", uuid, "no function cuInit"},
		"a card that is lost":   {lib, "init", uuid, "cuInit: CUDA error 100"},
		"a card that is full":   {lib, "full", uuid, "cuDevicePrimaryCtxRetain: CUDA error 2"},
	} {
		cmd := exec.Command("/proc/self/exe", "child", c.lib, string(c.uuid))
		cmd.Env = append(os.Environ(), "FAKE_DRIVER="+c.wrong)
		if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), c.say) {
			t.Errorf("%s: got %q, want %q in it", name, out, c.say)
		}
	}
}

// script is a child that answers what it is told to.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "child")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestChild(t *testing.T) {
	t.Setenv("LD_PRELOAD", "/nonexistent/libvgpu.so")
	want := Figure{518 * gpu.MiB, 9 * gpu.MiB, true}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	good := script(t, fmt.Sprintf(`[ -z "$LD_PRELOAD" ] && [ "$1" = x ] && [ "$CUDA_VISIBLE_DEVICES" = %s ] && echo '%s'`, uuid, text))
	if got, err := MeasureInChild(t.Context(), []string{good, "x"}, uuid); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if _, err := MeasureInChild(t.Context(), []string{script(t, "echo no card >&2; exit 1")}, uuid); err == nil || !strings.Contains(err.Error(), "no card") {
		t.Errorf("child that fails: %v", err)
	}
	if _, err := MeasureInChild(t.Context(), []string{script(t, "echo hello")}, uuid); err == nil || !strings.Contains(err.Error(), "read answer") {
		t.Errorf("child that prints something else: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := MeasureInChild(ctx, []string{script(t, "exec sleep 60")}, uuid); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("child that hangs: %v", err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("waited %v for a child that hangs", d)
	}
}

func TestLibrary(t *testing.T) {
	lib := fakeCUDA(t)
	beside := filepath.Join(filepath.Dir(lib), "libnvidia-ml.so.1")
	for nvml, want := range map[string]string{"": "libcuda.so.1", beside: lib, "/nonexistent/libnvidia-ml.so.1": "libcuda.so.1"} {
		if got := Library(nvml); got != want {
			t.Errorf("nvml %q: got %q, want %q", nvml, got, want)
		}
	}
}
