// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// What of a process is memory, by the names of its series. What it holds (live, in
// use) is told by its allocator, to the byte. What the kernel has given it is more,
// and moves with chance: of rest that the allocator keeps, and files it has mapped.
const (
	liveObjects = " live objects"
	inUse       = " bytes in use"
	resident    = " KiB"
)

// leastOf is the growth of a series that counts, when jobs have come and gone since
// its first value: what one allocation for every second job leaves. Its smallest is
// of 24 bytes in C, and one object in Go. (A neighbour's process is one of a job's.)
func leastOf(what string, first float64, jobs int) float64 {
	switch {
	case strings.HasSuffix(what, liveObjects):
		return float64(jobs) / 2
	case strings.HasSuffix(what, inUse):
		return 24 * float64(jobs) / 2
	case strings.HasSuffix(what, resident):
		return max(1024, first/20)
	}
	return 1.5
}

// count counts what could leak.
func (n *node) count(w job, worker int) map[string]float64 {
	n.t.Helper()
	out := map[string]float64{}
	for name, pid := range map[string]int{
		"gresd": n.Gresd.PID(), "slurmd": n.Slurmd.PID(), "slurmstepd": n.stepd(w), "job process": worker,
	} {
		n.countProcess(out, name, pid)
	}
	for name, dir := range map[string]string{"run_dir": cluster.RunDir, "state_dir": cluster.StateDir} {
		files := 0.0
		n.must(filepath.WalkDir(dir, func(_ string, _ fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}
			files++
			return err
		}))
		out[name+" files"] = files
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	n.must(err)
	out["mounts"] = float64(bytes.Count(mounts, []byte("\n")))
	view, err := libvgpu.ReadCache(cluster.JobDir(w.id) + "/cache")
	n.must(err)
	out["slots of the witness"] = float64(len(view.Slots))
	text := get(n.t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: cluster.DialMetrics}}, cluster.Metrics)
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") && !strings.Contains(line, "vgpu_process_") {
			out["metric series"]++
		}
	}
	n.countHeap(out)
	out["job process"+inUse] = n.mallocOf(w, worker)
	out["slurmd"+inUse] = n.mallocOfSlurmd()
	return out
}

// mallocsFile is where slurmd tells what its malloc has given out.
const mallocsFile = cluster.Dir + "/mallocs"

// tellSlurmd has slurmd started again with a library that tells what its malloc has given
// out. What the kernel has given it, which the rest of malloc's arenas is part of, moves
// by 1 MiB without a job more or less.
func (n *node) tellSlurmd() {
	n.t.Helper()
	library := filepath.Join(n.t.TempDir(), "mallocs.so")
	out, err := exec.Command("cc", "-shared", "-fPIC", "-O1", "-pthread", "-o", library, "testdata/mallocs.c").CombinedOutput()
	if err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
	n.Slurmd.Stop()
	n.Slurmd.Begin = func(cmd *exec.Cmd) error {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+library, "VGPU_MALLOCS="+mallocsFile)
		return cmd.Start()
	}
	n.must(n.Slurmd.Start())
}

func (n *node) mallocOfSlurmd() float64 {
	n.t.Helper()
	var bytes float64
	began := time.Now()
	n.eventually(10*time.Second, "slurmd tells its memory", func() bool {
		info, err := os.Stat(mallocsFile)
		if err != nil || !info.ModTime().After(began) {
			return false
		}
		text, err := os.ReadFile(mallocsFile)
		_, scanned := fmt.Sscan(string(text), &bytes)
		return err == nil && scanned == nil
	})
	return bytes
}

// The plugin is part of slurmd and of each slurmstepd. It asks nobody for memory, so it
// leaks none.
func TestPluginAllocatesNothing(t *testing.T) {
	plugin, err := elf.Open("../../build/spank/vgpu.so")
	if err != nil {
		t.Fatal(err)
	}
	defer plugin.Close()
	symbols, err := plugin.ImportedSymbols()
	if err != nil || len(symbols) < 10 {
		t.Fatal(err, symbols)
	}
	allocates := regexp.MustCompile(`alloc|strn?dup|asprintf|getline|getdelim|opendir|fdopen|fopen|open_memstream|scandir|realpath|xmalloc|^mmap`)
	for _, s := range symbols {
		if allocates.MatchString(s.Name) {
			t.Errorf("the plugin calls %s, which allocates", s.Name)
		}
	}
}

// A leak of one allocation for each job, or of one thing a round, is found in each count,
// whatever it starts from; what only moves is not.
func TestEachCountCanFail(t *testing.T) {
	const rounds, jobs = 25, 1050
	for what, leak := range map[string]float64{ // for each round
		"gresd" + liveObjects: jobs / rounds, "job process" + inUse: 24 * jobs / rounds, "slurmd" + inUse: 24 * jobs / rounds,
		"gresd RssAnon" + resident: 80, "gresd fds": 1, "gresd goroutines": 1, "gresd mapped pages": 1, "slurmd threads": 1, "slurmstepd fds": 1, "run_dir files": 1,
		"state_dir files": 1, "mounts": 1, "slots of the witness": 1, "metric series": 1,
	} {
		for _, first := range []float64{5, 9000} {
			least := leastOf(what, first, jobs)
			var leaks, moves []float64
			for i := range rounds {
				noise := least / 10 * float64(i%3)
				leaks, moves = append(leaks, first+leak*float64(i)+noise), append(moves, first+noise)
			}
			if tr := TrendOf(leaks); !tr.Leaks(least) {
				t.Errorf("%s: a leak of %.0f a round is not found: %s; leaks from %.0f", what, leak, tr, least)
			}
			if tr := TrendOf(moves); tr.Leaks(least) {
				t.Errorf("%s: no leak: %s; leaks from %.0f", what, tr, least)
			}
		}
	}
}

// countProcess counts what the kernel knows of a process.
func (n *node) countProcess(out map[string]float64, name string, pid int) {
	n.t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	n.must(err)
	out[name+" fds"] = float64(len(fds))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	n.must(err)
	for line := range strings.Lines(string(status)) {
		field, rest, _ := strings.Cut(line, ":")
		var value float64
		_, _ = fmt.Sscan(rest, &value)
		switch {
		case field == "RssAnon" || field == "RssFile": // RssShmem: see MappedPages
			out[name+" "+field+resident] = value
		case field == "Threads" && name != "gresd": // Go keeps its threads; goroutines count
			out[name+" threads"] = value
		}
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	n.must(err)
	n.keep(strings.ReplaceAll(name, " ", "-")+".smaps", maps)
	out[name+" mapped pages"], err = MappedPages(string(maps))
	n.must(err)
}

// keep is for who has to find out: what is known at the first count, and at the last.
func (n *node) keep(name string, what []byte) {
	n.t.Helper()
	first := filepath.Join(n.logs, name+".first")
	if _, err := os.Stat(first); err != nil {
		n.must(os.WriteFile(first, what, 0o644))
	}
	n.must(os.WriteFile(filepath.Join(n.logs, name+".last"), what, 0o644))
}

// Lines at the end of a Go heap profile.
var heapLine = regexp.MustCompile(`(?m)^# (HeapAlloc|HeapObjects|HeapIdle|HeapReleased) = (\d+)`)

// countHeap counts what is alive in gresd after a collection.
func (n *node) countHeap(out map[string]float64) {
	n.t.Helper()
	unix := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", pprofSocket)
		},
	}}
	const profiles = "http://gresd/debug/pprof/"
	var goroutines float64
	if _, err := fmt.Sscanf(get(n.t, unix, profiles+"goroutine?debug=1"), "goroutine profile: total %f", &goroutines); err != nil {
		n.t.Fatal(err)
	}
	out["gresd goroutines"] = goroutines
	// The first collection lets finalizers run and empties half of each sync.Pool.
	for range 2 {
		_ = get(n.t, unix, profiles+"heap?gc=1&debug=1")
	}
	text := get(n.t, unix, profiles+"heap?gc=1&debug=1")
	n.keep("heap", []byte(get(n.t, unix, profiles+"heap")))
	for _, m := range heapLine.FindAllStringSubmatch(text, -1) {
		value, err := strconv.ParseFloat(m[2], 64)
		n.must(err)
		if m[1] == "HeapObjects" {
			out["gresd"+liveObjects] = value
		} else {
			out["gresd "+m[1]+resident] = value / 1024
		}
	}
	if out["gresd"+liveObjects] == 0 {
		n.t.Fatal("gresd's heap profile does not tell its objects")
	}
}

// mallocOf asks a worker at work for the bytes that malloc has given out.
func (n *node) mallocOf(j job, pid int) float64 {
	n.t.Helper()
	told := func() []string {
		var lines []string
		for line := range strings.Lines(n.Output(j.user, j.id)) {
			if strings.Contains(line, `"cmd":"memory"`) && strings.HasSuffix(line, "}\n") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	before := len(told())
	n.must(syscall.Kill(pid, syscall.SIGUSR1))
	n.eventually(20*time.Second, "the process tells its memory", func() bool { return len(told()) > before })
	var m struct {
		InUse float64 `json:"in_use"`
	}
	n.must(json.Unmarshal([]byte(told()[before]), &m))
	return m.InUse
}
