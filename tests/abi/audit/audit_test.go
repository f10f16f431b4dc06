// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	top        = "../../../"
	tableFile  = "../classes.def"
	cudaNames  = "../testdata/libcuda-580.symbols"
	nvmlNames  = "../testdata/libnvidia-ml-580.symbols"
	hooksFile  = top + "libvgpu/driver/hooks.def"
	covered    = top + "docs/coverage.md"
	rewriteDoc = "write it again: go run ./tests/abi/audit --symbols tests/abi/testdata/libcuda-580.symbols " +
		"--nvml tests/abi/testdata/libnvidia-ml-580.symbols --version 580.159.04 --cuda 13.0 " +
		"--write docs/coverage.md"
)

func committed(t *testing.T) (*Table, Hooks, []string, []string) {
	t.Helper()
	f, err := os.Open(tableFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table, err := ParseTable("classes.def", f)
	if err != nil {
		t.Fatal(err)
	}
	hooks, err := ReadHooks(hooksFile)
	if err != nil {
		t.Fatal(err)
	}
	cuda, err := ReadSymbols(cudaNames, "cu")
	if err != nil {
		t.Fatal(err)
	}
	nvml, err := ReadSymbols(nvmlNames, "nvml")
	if err != nil {
		t.Fatal(err)
	}
	return table, hooks, cuda, nvml
}

func TestEveryFunctionOfDriver580HasAClass(t *testing.T) {
	table, hooks, cuda, nvml := committed(t)
	if len(cuda) != 707 {
		t.Errorf("the committed list has %d functions of libcuda, driver 580.159.04 has 707", len(cuda))
	}
	r := Audit(table, hooks, cuda, nvml)
	for _, bad := range r.Findings {
		t.Error(bad)
	}
	if r.CUDA != len(cuda) {
		t.Errorf("%d functions looked at, want %d", r.CUDA, len(cuda))
	}
	sum := 0
	for _, k := range classes {
		sum += r.Count(k.Name, false)
	}
	if sum != len(cuda) {
		t.Errorf("the classes have %d functions in all, want %d", sum, len(cuda))
	}
}

func TestHookListAndTableAgree(t *testing.T) {
	table, hooks, _, _ := committed(t)
	for _, bad := range Agree(table, hooks) {
		t.Error(bad)
	}
}

// later are functions of newer drivers: 595 (CUDA 13.2) and 610 (13.3).
var later = regexp.MustCompile(`^cu(LaunchHostFunc_v2|Memcpy(3D)?WithAttributesAsync|StreamBeginRecaptureToGraph|Stream(Begin|End)CaptureToCig)(_ptsz)?$`)

// The table is about functions that exist: a name with a slip of the pen would
// else look like coverage.
func TestEveryNameOfTheTableIsInTheDriver(t *testing.T) {
	table, _, cuda, nvml := committed(t)
	all := slices.Concat(cuda, nvml)
	slices.Sort(all)
	for _, name := range table.names {
		if _, found := slices.BinarySearch(all, name); !found && !later.MatchString(name) {
			t.Errorf("classes.def:%d: %s is not in driver 580", table.exact[name].Line, name)
		}
	}
	for _, p := range table.patterns {
		used := slices.ContainsFunc(all, func(name string) bool {
			_, by := table.Find(name)
			return slices.Contains(by, p)
		})
		if !used {
			t.Errorf("classes.def:%d: %s covers nothing of driver 580", table.families[p].Line, p)
		}
	}
}

func TestNewFunctionsAreNoticed(t *testing.T) {
	table, hooks, cuda, nvml := committed(t)
	for _, name := range []string{
		"cuMemAllocFancy", "cuMemAlloc_v3", "cuLaunchKernelSoon", "cuMemcpyDtoD_v3", "cuMemGetInfo_v3",
		"cuTexRefCreate_v2",       // of a harmless family, but it creates
		"cuDeviceGetMallocMemory", // the same
		"cuSomethingElse",
		"nvmlDeviceGetMemoryInfo_v3", "nvmlDeviceGetProcessMemory",
	} {
		t.Run(name, func(t *testing.T) {
			c, n := cuda, nvml
			if isNVML(name) {
				n = append(slices.Clone(nvml), name)
			} else {
				c = append(slices.Clone(cuda), name)
			}
			r := Audit(table, hooks, c, n)
			if len(r.Findings) != 1 || !strings.HasPrefix(r.Findings[0], name+": no class") {
				t.Errorf("findings %q, want one that %s has no class", r.Findings, name)
			}
		})
	}
	for _, name := range []string{"cuDeviceGetColour", "cuTexRefGetColour", "nvmlDeviceGetFanColour"} {
		if r := Audit(table, hooks, append(slices.Clone(cuda), name), nvml); len(r.Findings) > 0 {
			t.Errorf("%s is harmless, but: %q", name, r.Findings)
		}
	}
}

func TestDisagreementIsFound(t *testing.T) {
	parse := func(text string) *Table {
		table, err := ParseTable("t", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	for _, c := range []struct {
		name, table, want string
		hooks             Hooks
	}{
		{"hooked but not in the table", "passed cuA : x", "cuB: hooked, but has no class", Hooks{Replaced: []string{"cuB"}}},
		{"hooked but said to be passed", "passed cuA : x", "cuA: hooked, but line 1 of classes.def says passed", Hooks{Replaced: []string{"cuA"}}},
		{"covered by a pattern only", "passed cu* : x", "cuA: hooked, but line 1 of classes.def says passed", Hooks{Replaced: []string{"cuA"}}},
		{"said to be charged but not hooked", "charged cuA cuB : x", "cuB: line 1 of classes.def says charged, but it is not hooked", Hooks{Replaced: []string{"cuA"}}},
		{"only called", "gated cuA : x", "cuA: line 1 of classes.def says gated, but it is not hooked", Hooks{Called: map[string]bool{"cuA": true}}},
		{"hooked twice", "told cuA : x", "cuA: twice in hooks.def", Hooks{Replaced: []string{"cuA", "cuA"}}},
		{"replaced and called", "told cuA : x", "cuA: both replaced and only called", Hooks{Replaced: []string{"cuA"}, Called: map[string]bool{"cuA": true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := Agree(parse(c.table), c.hooks)
			if len(bad) != 1 || !strings.HasPrefix(bad[0], c.want) {
				t.Errorf("got %q, want one that starts with %q", bad, c.want)
			}
		})
	}
	both := parse("passed cuTex* : x\ncannot cu*Ref : y")
	r := Audit(both, Hooks{}, []string{"cuTexRef"}, nil)
	if len(r.Findings) != 1 || !strings.Contains(r.Findings[0], "name it on a line of its own") {
		t.Errorf("two patterns of two classes: %q", r.Findings)
	}
}

func TestTableThatCannotBeReadIsRefused(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"no reason", "passed cuA", `t:1: want "<class> <name>... : <reason>"`},
		{"no name", "# x\npassed : because", `t:2: want "<class> <name>... : <reason>"`},
		{"unknown class", "free cuA : x", `t:1: class "free": want one of charged gated`},
		{"named twice", "passed cuA : x\n\ncannot cuB cuA : x", "t:3: name cuA: already on line 1"},
		{"pattern twice", "passed cuA* : x\npassed cuA* : x", "t:2: pattern cuA*: already on line 1"},
		{"not a function", "passed vkAllocate : x", `t:1: name "vkAllocate": want a function of the driver`},
		{"pattern of what is hooked", "charged cuMem* : x", "t:1: pattern cuMem*: class charged is for functions that are hooked"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := ParseTable("t", strings.NewReader(c.text)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestDocumentIsUpToDate(t *testing.T) {
	doc, err := os.ReadFile(covered)
	if err != nil {
		t.Fatal(err)
	}
	about, ok := driverOf(string(doc))
	if !ok {
		t.Fatalf("docs/coverage.md does not say which driver was looked at: %s", rewriteDoc)
	}
	if got := Document(Audit(committed(t)), about); got != string(doc) {
		t.Errorf("docs/coverage.md is not what table and hook list say: %s", rewriteDoc)
	}
}

// library compiles a shared library with these C functions.
func library(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	out := filepath.Join(dir, "libcuda.so.1")
	cmd := exec.Command("gcc", "-shared", "-fPIC", "-x", "c", "-o", out, "-")
	cmd.Stdin = strings.NewReader(source)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
	return out
}

func TestExportsOfALibraryAreRead(t *testing.T) {
	lib := library(t, `
int other(void);
int cuB(void) { return other(); }
int cuA(void) { return 0; }
int cudbgData = 1;
static int cuHidden(void) { return 0; }
__attribute__((visibility("hidden"))) int cuInner(void) { return cuHidden(); }
int vgpu(void) { extern int cuElsewhere(void); return cuInner() + cuElsewhere(); }
`)
	names, err := ReadSymbols(lib, "cu")
	if want := []string{"cuA", "cuB", "cudbgData"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("got %v, %v, want %v", names, err, want)
	}
	if _, err := ReadSymbols(lib, "nvml"); err == nil || !strings.Contains(err.Error(), `no name starts with "nvml"`) {
		t.Errorf("a library without such names: %v", err)
	}
}

func TestExitStatus(t *testing.T) {
	base := []string{"--classes", tableFile, "--hooks", hooksFile}
	doc := filepath.Join(t.TempDir(), "coverage.md")
	write := []string{"--write", doc, "--version", "580.159.04", "--cuda", "13.0"}
	for _, c := range []struct {
		name   string
		args   []string
		status int
		says   string
	}{
		{"all is well", append([]string{"--symbols", cudaNames, "--nvml", nvmlNames}, write...), 0, ""},
		{"a driver with a new way to take memory", append([]string{"--driver", library(t, "int cuInit(void){return 0;}int cuMemAllocFancy(void){return 0;}")}, write...), 1, "vgpu: audit: cuMemAllocFancy: no class: its name speaks of memory or work: add it to classes.def"},
		{"nothing to look at", nil, 2, "want one of --driver and --symbols"},
		{"both ways", []string{"--symbols", cudaNames, "--driver", cudaNames}, 2, "want one of --driver and --symbols"},
		{"document without a version", []string{"--symbols", cudaNames, "--write", doc}, 2, "--write: want --version and --cuda too"},
		{"no such driver", []string{"--driver", "/nonexistent/libcuda.so.1"}, 2, "no such file"},
		{"not a header", []string{"--symbols", cudaNames, "--header", tableFile}, 2, "no CUDA_VERSION"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.RemoveAll(doc); err != nil {
				t.Fatal(err)
			}
			var stdout, stderr bytes.Buffer
			status := run(append(slices.Clone(base), c.args...), &stdout, &stderr)
			if status != c.status || !strings.Contains(stderr.String(), c.says) {
				t.Errorf("status %d, stderr %q; want %d, %q", status, stderr.String(), c.status, c.says)
			}
			_, err := os.Stat(doc)
			if written := err == nil; written != (c.status == 0) {
				t.Errorf("document written: %v", written)
			}
		})
	}
}

func TestSinceNamesTheOldestHeader(t *testing.T) {
	dir := t.TempDir()
	header := func(name, text string) Header {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := ReadHeader(file)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	older := header("a.h", "#define CUDA_VERSION 12090\nCUresult CUDAAPI cuOld(void);\n")
	newer := header("b.h", "#define CUDA_VERSION 13000\nCUresult CUDAAPI cuOld(void);\nCUresult CUDAAPI cuNew(void);\n")
	got := Since([]Header{newer, older}, []string{"cuNew", "cuNew_ptsz", "cuOld", "cuSecret"})
	want := "in the header of CUDA 12.9: 1\n" +
		"in the header of CUDA 13.0: 2\n  cuNew cuNew_ptsz\n" +
		"in none of these headers: 1\n  cuSecret\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
