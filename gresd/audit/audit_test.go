// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// fakeProc is a /proc of our own making.
type fakeProc struct {
	t   *testing.T
	dir string
}

// put makes a process; files may replace or add some.
func (p fakeProc) put(pid, parent, uid int, files map[string]string) {
	p.t.Helper()
	all := map[string]string{
		"stat":   fmt.Sprintf("%d (a) b) S %d%s 77 0\n", pid, parent, strings.Repeat(" 0", 17)),
		"status": fmt.Sprintf("Name:\tx\nUid:\t%d\t0\t0\t0\n", uid),
		"maps":   "7f00-7f01 r-xp 0 0:0 1 /usr/lib/libcuda.so.1\n", "cmdline": "x\x00", "cgroup": "0::/user.slice\n", "environ": "A=1\x00",
	}
	for name, text := range files {
		all[name] = text
	}
	dir := filepath.Join(p.dir, fmt.Sprint(pid))
	for _, folder := range []string{"ns", "fd"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
	for name, text := range all {
		if target, is := strings.CutPrefix(text, "-> "); is {
			_ = os.Remove(filepath.Join(dir, name))
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				p.t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
}

func TestWhoseProcessItIs(t *testing.T) {
	p := fakeProc{t, t.TempDir()}
	mps := filepath.Join(t.TempDir(), "nvidia-cuda-mps-server")
	if err := os.WriteFile(mps, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	fake := filepath.Join(t.TempDir(), "nvidia-cuda-mps-server")
	if err := os.WriteFile(fake, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(fake, 1000, 1000); err != nil {
		t.Skip("needs root")
	}
	title := map[string]string{"cmdline": "slurmstepd: [9.batch]\x00", "exe": "-> /usr/sbin/slurmstepd"}
	p.put(1, 0, 0, nil)
	p.put(5, 1, 0, map[string]string{"ns/pid": "-> pid:[1]"}) // gresd
	p.put(100, 1, 0, title)
	p.put(101, 100, 1000, nil)
	p.put(200, 1, 1000, title) // a user's process with such a title
	p.put(201, 1, 0, map[string]string{"cmdline": title["cmdline"], "exe": "-> /usr/bin/sudo"})
	env := func(job string) map[string]string {
		return map[string]string{"environ": "A=1\x00SLURM_JOB_ID=" + job + "\x00"}
	}
	cgroup := func(path string, more ...string) map[string]string {
		files := map[string]string{"cgroup": "0::" + path + "\n"}
		for i := 0; i < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return files
	}
	const sluid = "/system.slice/slurmstepd.scope/sEV9M89YGJHF00/step_0"
	const other = "/system.slice/slurmstepd.scope/sEV9M89YGJHF01"
	p.put(300, 1, 0, cgroup(other+"/step_batch/slurm", "cmdline", "slurmstepd: [12.batch]\x00", "comm", "slurmstepd\n", "exe", "-> /usr/sbin/slurmstepd"))
	table := newTable(p.dir, 5)
	for i, c := range []struct {
		name    string
		parent  int
		files   map[string]string
		job     uint32
		claimed bool
		exempt  bool
		inside  bool
	}{
		{"of a cgroup", 1, cgroup("/slurm/uid_1/job_7/step_0"), 7, false, false, true},
		{"a cgroup beats the environment", 1, cgroup("/slurm/uid_1/job_7/step_0", "environ", "SLURM_JOB_ID=8\x00"), 7, false, false, true},
		{"a cgroup whose name tells no number", 1, cgroup(sluid, "environ", "SLURM_JOB_ID=8\x00"), 0, false, false, true},
		{"a child of slurmstepd in such a cgroup", 101, cgroup(sluid), 9, false, false, true},
		{"then its orphans are known", 1, cgroup(sluid), 9, false, false, true},
		{"an orphan in the cgroup of a slurmstepd", 1, cgroup(other + "/step_batch/user"), 12, false, false, true},
		{"a grandchild of slurmstepd", 101, nil, 9, false, false, true},
		{"a slurmstepd that is none", 200, nil, 0, false, false, true},
		{"one of root's that is none", 201, nil, 0, false, false, true},
		{"an orphan", 1, env("8"), 8, true, false, true},
		{"an orphan that tells nonsense", 1, env("8x"), 0, false, false, true},
		{"a child of gresd", 5, nil, 0, false, true, true},
		{"an MPS server", 1, map[string]string{"exe": "-> " + mps}, 0, false, true, true},
		{"a program of root's, by that name in mounts of its own", 101, map[string]string{"exe": "-> " + mps, "ns/user": "-> user:[2]"}, 9, false, false, true},
		{"a program of that name", 101, map[string]string{"exe": "-> " + fake}, 9, false, false, true},
		{"in our own PID namespace", 101, map[string]string{"ns/pid": "-> pid:[1]"}, 9, false, false, false},
	} {
		pid := 1000 + i
		p.put(pid, c.parent, 1000, c.files)
		f, ok := table.look(uint32(pid))
		if !ok || f.Job != c.job || f.claimed != c.claimed || f.Exempt != c.exempt || f.Inside != c.inside || f.UID != 1000 || f.Start != 77 || f.Name != "a)?b" {
			t.Errorf("%s: %+v, %v", c.name, f, ok)
		}
	}
	if _, ok := table.look(4000); ok {
		t.Error("a process that is not there")
	}
	// The driver's number is that of another process here.
	p.put(4002, 101, 1000, map[string]string{"maps": "", "fd/0": "-> /dev/null"})
	if _, ok := table.look(4002); ok {
		t.Error("a process that has no card")
	}
	p.put(4002, 101, 1000, map[string]string{"maps": "", "fd/7": "-> /dev/nvidia0"}) // linked statically
	if f, ok := table.look(4002); !ok || f.Job != 9 {
		t.Errorf("a process with a device: %+v, %v", f, ok)
	}
	card := filepath.Join(t.TempDir(), "innocent")
	if err := unix.Mknod(card, unix.S_IFCHR|0o666, int(unix.Mkdev(nvidiaMajor, 0))); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(filepath.Join(p.dir, "4002/fd/7"))
	p.put(4002, 101, 1000, map[string]string{"maps": "", "fd/8": "-> " + card})
	if f, ok := table.look(4002); !ok || f.Job != 9 {
		t.Errorf("a process with a device that it calls otherwise: %+v, %v", f, ok)
	}
	p.put(4001, 1, 1000, map[string]string{"stat": "4001 (x) Z 1" + strings.Repeat(" 0", 17) + " 77 0\n"})
	if _, ok := table.look(4001); ok {
		t.Error("a zombie lives")
	}
	table.turn()
	table.turn()
	if len(table.known) != 0 || len(table.folders) != 0 {
		t.Errorf("remembered for ever: %v", table.known)
	}
}

// A process that is nobody's may become a job's, and is looked at again: but not at
// its mappings, of which one with CUDA has thousands.
func TestWhoIsNobodysIsLookedAtAgain(t *testing.T) {
	p := fakeProc{t, t.TempDir()}
	p.put(1, 0, 0, nil)
	p.put(5, 1, 0, map[string]string{"ns/pid": "-> pid:[1]"}) // gresd
	p.put(200, 1, 1000, nil)
	table := newTable(p.dir, 5)
	p.put(300, 200, 1000, nil)
	p.put(301, 200, 1000, nil)
	for _, pid := range []uint32{300, 301} {
		if f, ok := table.look(pid); !ok || f.Job != 0 {
			t.Fatalf("%+v, %v", f, ok)
		}
	}
	if len(table.lines) != 1 {
		t.Errorf("the parents of two children of one were gone through %d times", len(table.lines))
	}
	table.turn()
	if err := os.RemoveAll(filepath.Join(p.dir, "300/maps")); err != nil {
		t.Fatal(err)
	}
	if f, ok := table.look(300); !ok || f.Job != 0 {
		t.Errorf("looked at from the start again: %+v, %v", f, ok)
	}
	table.folders["/left/by/a/job"] = 7
	table.turn()
	p.put(300, 200, 1001, map[string]string{"environ": "SLURM_JOB_ID=8\x00"})
	if f, ok := table.look(300); !ok || f.Job != 8 || !f.claimed || f.UID != 1001 {
		t.Errorf("it is a job's now: %+v, %v", f, ok)
	}
	if len(table.folders) != 0 {
		t.Error("folders of jobs are kept for one who is nobody's")
	}
}

// On a node that is never idle, folders of jobs that have gone do not stay for ever.
func TestFoldersOfJobsThatHaveGoneAreForgotten(t *testing.T) {
	p := fakeProc{t, t.TempDir()}
	table := newTable(p.dir, 5)
	seen := func() {
		table.next[identity{300, 1}] = facts{Process: Process{PID: 300, Start: 1, Job: 8}}
		table.turn()
	}
	table.folders["/of/a/job"] = 8
	for job := range uint32(mostFolders - 1) {
		table.folders[fmt.Sprint("/left/", job)] = 1000 + job
	}
	if seen(); len(table.folders) != mostFolders {
		t.Errorf("%d folders, want all %d", len(table.folders), mostFolders)
	}
	table.folders["/one/more"] = 9
	if seen(); len(table.folders) != 1 || table.folders["/of/a/job"] != 8 {
		t.Errorf("%d folders, want that of the job that is seen", len(table.folders))
	}
}

// sleeper is a process of a user, to be killed.
func sleeper(t *testing.T, uid uint32) (*exec.Cmd, Process) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	cmd := exec.Command("sleep", "100")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	f, ok := newTable("/proc", os.Getpid()).stat(uint32(cmd.Process.Pid))
	if !ok {
		t.Fatal("no such process")
	}
	f.UID = uid
	return cmd, f.Process
}

func alive(cmd *exec.Cmd) bool {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WNOHANG, nil)
	return err == nil && pid == 0
}

func TestKillEndsOnlyWhatWasJudged(t *testing.T) {
	cmd, p := sleeper(t, 65534)
	of0, root := sleeper(t, 0)
	table := newTable("/proc", os.Getpid())
	for name, f := range map[string]Finding{
		"of no job":          {Process: p, owner: 65534},
		"of another user":    {Job: 7, Process: p, owner: 1000},
		"of root":            {Job: 7, Process: root},
		"of a number reused": {Job: 7, owner: 65534, Process: with(p, func(p *Process) { p.Start-- })},
		"of a changed user":  {Job: 7, owner: 1000, Process: with(p, func(p *Process) { p.UID = 1000 })},
		"that is exempt":     {Job: 7, owner: 65534, Process: with(p, func(p *Process) { p.Exempt = true })},
	} {
		if err := table.kill(f); !errors.Is(err, errChanged) {
			t.Errorf("a process %s: %v", name, err)
		}
	}
	time.Sleep(20 * time.Millisecond)
	if !alive(cmd) || !alive(of0) {
		t.Fatal("it was killed")
	}
	f := Finding{Job: 7, owner: 65534, Process: p}
	if err := table.kill(f); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("ended with %v", cmd.ProcessState)
	}
	if err := table.kill(f); err != nil {
		t.Errorf("a process that has ended: %v", err)
	}
}

// fakeNode has one card and one job of user 65534.
type fakeNode struct {
	processes []driver.Process
	err       error
	view      libvgpu.CacheView
	none      bool // no job
	reads     int  // of caches
}

func (n *fakeNode) Jobs() map[string]int {
	if n.none {
		return nil
	}
	return map[string]int{"GPU-a": 1}
}

func (n *fakeNode) Open() []uint32 {
	if n.none {
		return nil
	}
	return []uint32{7}
}

func (n *fakeNode) Spec(uint32) (libvgpu.GrantSpec, bool) {
	return libvgpu.GrantSpec{JobID: 7, UID: 65534, Cards: []libvgpu.GrantCard{{UUID: "GPU-a", MemLimit: 8 << 30, Cores: 30, Mode: libvgpu.ModeHard}}}, true
}

func (n *fakeNode) Cache(uint32, time.Duration) (libvgpu.CacheView, error) {
	n.reads++
	return n.view, nil
}

func (n *fakeNode) Processes(gpu.UUID) ([]driver.Process, error) { return n.processes, n.err }

// A node may have thousands of jobs without processes: they cost nothing each second.
func TestJobsAreLookedAtWhenACardHasProcesses(t *testing.T) {
	node := &fakeNode{view: libvgpu.CacheView{Cards: []libvgpu.CacheCard{{UUID: "GPU-a"}}}}
	a := New(Parts{Grants: node, Driver: node, Meter: node, Log: slog.New(slog.DiscardHandler), Name: func(gpu.UUID) string { return "0" }})
	for _, test := range []struct {
		processes []driver.Process
		err       error
		reads     int
	}{{nil, nil, 0}, {[]driver.Process{{PID: 1 << 30}}, nil, 1}, {nil, driver.ErrNoAnswer, 1}, {nil, nil, 0}} {
		node.processes, node.err, node.reads = test.processes, test.err, 0
		if n := a.step(start); n != 1 || node.reads != test.reads {
			t.Errorf("processes %v, %v: %d cards, %d reads, want 1 and %d", test.processes, test.err, n, node.reads, test.reads)
		}
	}
}

func (n *fakeNode) OnCard(gpu.UUID) (gputime.Account, bool) { return gputime.Account{}, false }

func (n *fakeNode) Second(gputime.View) (gputime.Card, map[uint32]gputime.Used) {
	return gputime.Card{}, nil
}

func TestStep(t *testing.T) {
	for _, policy := range []string{config.AuditReport, config.AuditKill, config.AuditIgnore} {
		t.Run(policy, func(t *testing.T) {
			cmd, p := sleeper(t, 65534)
			node := &fakeNode{
				processes: []driver.Process{{PID: p.PID, Memory: gpu.GiB, Kind: driver.Compute}},
				view:      libvgpu.CacheView{Cards: []libvgpu.CacheCard{{UUID: "GPU-a"}}},
			}
			counts, tells := map[string]int{}, []string{}
			a := New(Parts{
				Policy: config.Audit{Unregistered: policy, Exceeded: policy, Strangers: config.AuditReport},
				Grants: node, Driver: node, Meter: node, Log: slog.New(slog.DiscardHandler),
				Name:  func(gpu.UUID) string { return "0" },
				Tell:  func(_ uint32, text string) { tells = append(tells, text) },
				Count: func(kind string) { counts[kind]++ },
			})
			// A /proc in which it is of the job, and which is otherwise that of the kernel.
			fake := fakeProc{t, t.TempDir()}
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
			if err != nil {
				t.Fatal(err)
			}
			fake.put(int(p.PID), 1, 65534, map[string]string{"stat": string(stat), "cgroup": "0::/slurm/uid_1/job_7/step_0\n"})
			a.table, a.judge.limits = newTable(fake.dir, os.Getpid()), limits{grace: 2 * time.Second, tolerance: gpu.MiB}

			for s := range 5 {
				if s == 3 {
					node.err = driver.ErrNoAnswer // nothing is forgotten, nothing new
				}
				if n := a.step(start.Add(time.Duration(s) * time.Second)); n != 1 {
					t.Fatalf("%d jobs", n)
				}
				if s == 1 && len(tells) != 0 {
					t.Errorf("told too early: %q", tells)
				}
				if s == 2 && (len(a.Problems()) == 1) != (policy != config.AuditIgnore) {
					t.Errorf("problems %q", a.Problems())
				}
			}
			want := map[string]int{config.AuditReport: 1, config.AuditKill: 2, config.AuditIgnore: 0}[policy]
			if len(tells) != want || counts["unregistered"] != min(want, 1) || len(counts) != min(want, 1) {
				t.Errorf("told %q, counted %v", tells, counts)
			}
			for end := time.Now().Add(10 * time.Second); policy == config.AuditKill && alive(cmd) && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			if alive(cmd) == (policy == config.AuditKill) {
				t.Errorf("alive: %v", policy != config.AuditKill)
			}
			node.none = true
			if a.step(start.Add(time.Minute)) != 0 || len(a.Problems()) != 0 {
				t.Errorf("problems without jobs: %q", a.Problems())
			}
		})
	}
}

func TestJobOfItsFiles(t *testing.T) {
	node := &fakeNode{}
	spec, _ := node.Spec(7)
	view := libvgpu.CacheView{Slots: []libvgpu.SlotView{
		{HostPID: 10, StartTime: 5, Alive: true, OnHost: true, Cards: []libvgpu.SlotCard{{Contexts: 1}}},
		{HostPID: 11, StartTime: 6, Alive: true, Cards: []libvgpu.SlotCard{{Mem: 1}}},
		{HostPID: 12, StartTime: 7, Alive: true, OnHost: true, Cards: []libvgpu.SlotCard{{}}},
		{HostPID: 13, StartTime: 8, Cards: []libvgpu.SlotCard{{Contexts: 1}}},
	}}
	job := jobOf(7, spec, view, true)
	share := job.Shares[0]
	if job.UID != 65534 || share.UUID != "GPU-a" || share.Limit != 8*gpu.GiB || share.Cores != 30 || !share.Hard || !share.Known {
		t.Errorf("got %+v", job)
	}
	want := []Slot{{10, 5, true, true, 0}, {11, 6, false, true, 1}, {12, 7, true, false, 0}}
	if fmt.Sprint(share.Slots) != fmt.Sprint(want) {
		t.Errorf("slots %+v, want %+v", share.Slots, want)
	}
	if job = jobOf(7, spec, view, false); job.Shares[0].Known || job.Shares[0].Slots != nil {
		t.Errorf("got %+v", job)
	}
}

func TestAClaimCountsOnlyForTheJobsOwnUser(t *testing.T) {
	jobs := []Job{{ID: 7, UID: 1000}}
	for uid, want := range map[uint32]uint32{1000: 7, 1001: 0} {
		f := facts{Process: Process{PID: 1, UID: uid, Job: 7}, claimed: true}
		if got := merge(f, driver.Process{Memory: 5, Kind: driver.Compute}, jobs); got.Job != want || got.Memory != 5 || got.Kind != driver.Compute {
			t.Errorf("user %d: %+v", uid, got)
		}
		f.claimed = false // by its cgroup: whatever the user
		if got := merge(f, driver.Process{}, jobs); got.Job != 7 {
			t.Errorf("user %d: %+v", uid, got)
		}
	}
}

// A job of Slurm that has no share is asked about: only one that may have the whole card is none
// of ours.
func TestJobsWithoutAShareAreAskedAbout(t *testing.T) {
	for _, whole := range []bool{false, true} {
		_, p := sleeper(t, 65534)
		node := &fakeNode{
			processes: []driver.Process{{PID: p.PID, Memory: gpu.GiB, Kind: driver.Compute}},
			view:      libvgpu.CacheView{Cards: []libvgpu.CacheCard{{UUID: "GPU-a"}}},
		}
		counts := map[string]int{}
		a := New(Parts{
			Policy: config.Audit{Strangers: config.AuditReport}, Grants: node, Driver: node, Meter: node, Log: slog.New(slog.DiscardHandler),
			Name:  func(gpu.UUID) string { return "0" },
			Tell:  func(uint32, string) {},
			Count: func(kind string) { counts[kind]++ },
			Whole: func(job uint32, uuid gpu.UUID) bool {
				if job != 8 || uuid != "GPU-a" {
					t.Errorf("asked about job %d and card %s", job, uuid)
				}
				return whole
			},
		})
		fake := fakeProc{t, t.TempDir()}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
		if err != nil {
			t.Fatal(err)
		}
		fake.put(int(p.PID), 1, 65534, map[string]string{"stat": string(stat), "cgroup": "0::/slurm/uid_1/job_8/step_0\n"})
		a.table, a.judge.limits = newTable(fake.dir, os.Getpid()), limits{grace: time.Second}
		for s := range 3 {
			a.step(start.Add(time.Duration(s) * time.Second))
		}
		want := map[bool]int{false: 1}[whole]
		if counts[string(Stranger)] != want || len(a.Problems()) != want || want == 1 && !strings.Contains(a.Problems()[0], "belongs to job 8, which has no share of this card") {
			t.Errorf("whole %v: counted %v, problems %q", whole, counts, a.Problems())
		}
	}
}
