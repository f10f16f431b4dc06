// SPDX-License-Identifier: Apache-2.0

package tell

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// file is where the job's grant or cache is.
func (j job) file(variable string) string {
	for _, v := range j.env {
		if path, ok := strings.CutPrefix(v, variable+"="); ok {
			return path
		}
	}
	j.t.Fatalf("%s is not set", variable)
	return ""
}

// asNobody runs the worker as a user whom file permissions hold.
func (j job) asNobody(more []string, args ...string) (stdout, stderr string) {
	j.t.Helper()
	// A file that its owner may not read is one to root.
	cmd := exec.Command("setpriv", append([]string{"--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all", "../../build/tests/vgpu-worker"}, args...)...)
	cmd.Env = append(append([]string{}, j.env...), more...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // it ends with 1 where it gets no context
	return out.String(), errs.String()
}

// poke writes bytes into a file.
func poke(t *testing.T, path string, at int64, data ...byte) {
	t.Helper()
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(data, at); err != nil {
		t.Fatal(err)
	}
}

const (
	versionAt = 8
	cacheAt   = 2097152
	slotsAt   = 28 // max_slots
)

// A grant or cache of a job that cannot be used gives no memory, and one line that says why.
func TestAGrantOrCacheThatCannotBeUsedRefuses(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		breaks func(grant, cache string)
		more   []string
		want   string
	}{
		"grant of another version": {func(g, _ string) { poke(t, g, versionAt, 3) }, nil, `grant: \S+: version 3, this libvgpu.so reads 2`},
		"grant of rubbish":         {func(g, _ string) { poke(t, g, 0, 'x') }, nil, `grant: \S+: not a grant`},
		"short grant":              {func(g, _ string) { must(os.Truncate(g, 100)) }, nil, `grant: \S+: too short`},
		"grant without permission": {func(g, _ string) { must(os.Chmod(g, 0)) }, nil, `grant: \S+: Permission denied`},
		"grant by a symbolic link": {func(g, _ string) { must(os.Rename(g, g+".old")); must(os.Symlink(g+".old", g)) }, nil, `grant: \S+: Too many levels`},
		"folder without permission": {func(g, _ string) {
			must(os.Chmod(filepath.Dir(g), 0))
			t.Cleanup(func() { _ = os.Chmod(filepath.Dir(g), 0o700) })
		}, nil, `grant: \S+: Permission denied`},
		"cache without permission": {func(_, c string) { must(os.Chmod(c, 0)) }, nil, `cache: \S+: Permission denied`},
		"no cache":                 {func(_, c string) { must(os.Remove(c)) }, nil, `cache: \S+: No such file`},
		"short cache":              {func(_, c string) { must(os.Truncate(c, 1<<20)) }, nil, `cache: \S+: too short`},
		"cache of another version": {func(_, c string) { poke(t, c, cacheAt+versionAt, 3) }, nil, `cache: \S+: not a cache of this version`},
		"cache of rubbish":         {func(_, c string) { poke(t, c, cacheAt, 'x') }, nil, `cache: \S+: not a cache`},
		"cache of fewer processes": {func(_, c string) { poke(t, c, cacheAt+slotsAt, 0, 0) }, nil, `cache: \S+: not a cache`},
		"cache that is not named":  {func(_, _ string) {}, []string{"VGPU_CACHE="}, `cache: VGPU_CACHE: not set`},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t)
			test.breaks(j.file("VGPU_GRANT"), j.file("VGPU_CACHE"))
			out, errs := j.asNobody(test.more, "--alloc", "1G")
			if strings.Contains(out, `"granted":`) && !strings.Contains(out, `"granted":0`) || strings.Contains(out, "CUDA_SUCCESS") {
				t.Errorf("it got memory: %s", out)
			}
			want := regexp.MustCompile(`(?m)^vgpu: ` + test.want + `.*: this process gets no GPU memory: want .*$`)
			if got := want.FindAllString(errs, -1); len(got) != 1 {
				t.Errorf("stderr %q, want once %s", errs, want)
			}
		})
	}
}

// Where there is no job nothing is limited, and nothing said.
func TestWithoutAJobNothingIsTouched(t *testing.T) {
	j := newJob(t)
	missing := filepath.Join(t.TempDir(), "no", "grant")
	out, errs := j.asNobody([]string{"VGPU_GRANT=" + missing, "VGPU_CACHE=" + missing}, "--alloc", "12G")
	if !strings.Contains(out, "CUDA_SUCCESS") || errs != "" {
		t.Errorf("output %s, stderr %q", out, errs)
	}
}

// Limits of the environment are a program's own: without their file they hold for each
// process, which is said.
func TestAnEnvironmentsCacheThatCannotBeUsedIsNamed(t *testing.T) {
	j := newJob(t)
	env := []string{"VGPU_GRANT=", "CUDA_DEVICE_MEMORY_LIMIT=8G"}
	want := "the limits hold for this process alone"
	got := j.run(append(env, "CUDA_DEVICE_MEMORY_SHARED_CACHE="+filepath.Join(t.TempDir(), "no", "cache")), "--report")
	if strings.Count(got, want) != 1 || strings.Contains(got, "\n\n") {
		t.Errorf("stderr %q, want once: %s", got, want)
	}
	if got := j.run(env, "--report"); got != "" {
		t.Errorf("no cache was asked for: %q", got)
	}
	// A file that may not become that large does not end the program.
	cmd := exec.Command("sh", "-c", "ulimit -f 100; exec ../../build/tests/vgpu-worker --report")
	cmd.Env = append(append([]string{}, j.env...), append(env, "CUDA_DEVICE_MEMORY_SHARED_CACHE="+filepath.Join(t.TempDir(), "cache"))...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil || strings.Count(errs.String(), want) != 1 {
		t.Errorf("%v, stderr %q", err, errs.String())
	}
}

// A message of two places ends with one newline.
func TestAFullCacheIsSaidInOneLine(t *testing.T) {
	j := newJob(t)
	all := make([]byte, 8)
	binary.LittleEndian.PutUint64(all, 0x3ff<<54|1<<32|1) // of a namespace that nobody can judge
	for i := range int64(4096) {
		poke(t, j.file("VGPU_CACHE"), cacheAt+3072+i*(64+16*64), all...)
	}
	poke(t, j.file("VGPU_CACHE"), cacheAt+32, 0, 0x10)
	_, errs := j.asNobody(nil, "--alloc", "1G")
	if !strings.Contains(errs, "all 4096 places") || strings.Contains(errs, "\n\n") {
		t.Errorf("stderr %q", errs)
	}
}

// A program that closed its stderr and then opened a file of its data has no line in it.
func TestNoLineGoesIntoAFileThatGotTheNumberOfStderr(t *testing.T) {
	j := newJob(t)
	if err := os.Truncate(j.file("VGPU_GRANT"), 100); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "data")
	for _, test := range []struct {
		redirect string
		want     bool
	}{{"2>" + data, true}, {"2>&-", false}} {
		// exec 2>&- before the program starts, and the file after it: by the shell's own program.
		script := "exec ../../build/tests/vgpu-worker --report " + test.redirect
		if !test.want {
			script = `exec python3 -c 'import ctypes, os
os.close(2)
assert os.open("` + data + `", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) == 2
ctypes.CDLL("libcuda.so.1").cuInit(0)'`
		}
		cmd := exec.Command("sh", "-c", script)
		cmd.Env = j.env
		_ = cmd.Run()
		text, err := os.ReadFile(data)
		if got := strings.Contains(string(text), "gets no GPU memory"); got != test.want || err != nil {
			t.Errorf("%s: %q, %v", test.redirect, text, err)
		}
	}
}

// Where each task finds its grant there is an empty file outside of jobs; one that is there
// and cannot be used is not passed over for another.
func TestThePlaceOfAGrant(t *testing.T) {
	j := newJob(t)
	for name, test := range map[string]struct {
		grant string
		holds bool
	}{"empty": {"", true}, "rubbish": {"x", false}} {
		script := `mount -t tmpfs none /run && mkdir -p /run/vgpu/self && printf %s '` + test.grant + `' >/run/vgpu/self/grant &&
			exec ../../build/tests/vgpu-worker --alloc 1G`
		cmd := exec.Command("unshare", "--mount", "--propagation=private", "sh", "-c", script)
		cmd.Env = j.env
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		_ = cmd.Run()
		if strings.Contains(errs.String(), "ermitted") {
			t.Skipf("no mount namespaces here: %s", errs.String())
		}
		if got := strings.Contains(out.String(), "CUDA_SUCCESS"); got != test.holds || strings.Contains(errs.String(), "grant: /run/vgpu/self/grant: too short") == test.holds {
			t.Errorf("%s: output %s, stderr %q", name, out.String(), errs.String())
		}
	}
}
