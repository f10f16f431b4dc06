// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// What the library does not hold, in a job that is above its limit with it.
func TestEscaped(t *testing.T) {
	in := func(l Library, p Process) Process { p.Library = l; return p }
	inside := func(p Process) Process { p.Inside = true; return p }
	charged := func(s Slot, gib gpu.Bytes) Slot { s.Memory = gib * gpu.GiB; return s }
	for _, c := range []struct {
		name      string
		job       Job
		processes []Process
		want      string
	}{
		{"static, above the limit", job(7, "GPU-a"), []Process{in(Absent, process(11, 7, 9))}, "escaped 11"},
		{"static, within it", job(7, "GPU-a"), []Process{in(Absent, process(11, 7, 8))}, ""},
		{
			"more than the others leave", job(7, "GPU-a", charged(slot(10), 5)),
			[]Process{in(Loaded, process(10, 7, 1)), in(Absent, process(11, 7, 4))},
			"escaped 11",
		},
		{
			"of others counts what they are charged, not what the card says", job(7, "GPU-a", charged(slot(10), 5)),
			[]Process{in(Loaded, process(10, 7, 8)), in(Absent, process(11, 7, 3))},
			"",
		},
		{"a held process alone", job(7, "GPU-a", charged(slot(10), 8)), []Process{in(Loaded, process(10, 7, 50))}, ""},
		{
			"the largest first", job(7, "GPU-a"),
			[]Process{in(Absent, process(11, 7, 4)), in(Absent, process(12, 7, 6))},
			"escaped 12, escaped 11",
		},
		{"the library is there and counts nothing", job(7, "GPU-a"), []Process{in(Loaded, process(11, 7, 9))}, "escaped 11"},
		{"a memory map that cannot be read", job(7, "GPU-a"), []Process{process(11, 7, 9)}, ""},
		{"a process that blocks for a moment", job(7, "GPU-a"), []Process{in(Blocked, process(11, 7, 9))}, ""},
		{
			"a slot of a process that blocks for long", job(7, "GPU-a", charged(slot(11), 2)),
			[]Process{in(Hidden, process(11, 7, 9))},
			"escaped 11",
		},
		{"one that ends", job(7, "GPU-a"), []Process{in(Ending, process(11, 7, 9))}, ""},
		{"a slot that exec left behind", job(7, "GPU-a", charged(slot(11), 2)), []Process{in(Absent, process(11, 7, 9))}, "escaped 11"},
		{"which counts once", job(7, "GPU-a", charged(slot(11), 2)), []Process{in(Absent, process(11, 7, 7))}, ""},
		{
			"in a PID namespace, beside one that is held", job(7, "GPU-a", charged(Slot{PID: 2, Counted: true}, 5)),
			[]Process{inside(in(Absent, process(10, 7, 4))), inside(in(Loaded, process(11, 7, 5)))},
			"escaped 10",
		},
		{
			"slots that say nonsense", job(7, "GPU-a", charged(slot(10), 1<<20), charged(slot(12), 1<<20)),
			[]Process{in(Loaded, process(10, 7, 1)), in(Absent, process(11, 7, 1))},
			"escaped 11",
		},
		{
			"a cache that cannot be read", with(job(7, "GPU-a"), func(j *Job) { j.Shares[0].Known = false }),
			[]Process{in(Absent, process(11, 7, 9))},
			"",
		},
		{
			"a job without a limit", with(job(7, "GPU-a"), func(j *Job) { j.Shares[0].Limit = 0 }),
			[]Process{in(Absent, process(11, 7, 50))},
			"",
		},
	} {
		j := newJudge(limits{tolerance: 64 * gpu.MiB})
		got := texts(j.escaped(card(), c.job, c.job.Shares[0], c.processes, []Job{c.job}))
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if got != "" && !j.near(c.job.Shares[0], c.processes) {
			t.Errorf("%s: the memory maps would not have been read", c.name)
		}
	}
}

// Two looks are enough where the library is not there. One process after the other is to blame,
// the largest first, while what is left is above the limit.
func TestEscapedInTime(t *testing.T) {
	in := func(l Library, p Process) Process { p.Library = l; return p }
	for _, c := range []struct {
		name  string
		looks [][]Process
		want  []string // of each look
	}{
		{
			"it lasts",
			[][]Process{{in(Absent, process(11, 7, 9))}, {in(Absent, process(11, 7, 9))}, {in(Absent, process(11, 7, 9))}},
			[]string{"", "escaped 11", "escaped 11"},
		},
		{"it ends in time", [][]Process{{in(Absent, process(11, 7, 9))}, {}, {in(Absent, process(11, 7, 9))}}, []string{"", "", ""}},
		{
			"it becomes well",
			[][]Process{{in(Absent, process(11, 7, 9))}, {in(Absent, process(11, 7, 7))}, {in(Absent, process(11, 7, 9))}},
			[]string{"", "", ""},
		},
		{
			"the library is there",
			[][]Process{{in(Loaded, process(11, 7, 9))}, {in(Loaded, process(11, 7, 9))}, {in(Loaded, process(11, 7, 9))}},
			[]string{"", "", "escaped 11"},
		},
		{
			"no more than it takes",
			[][]Process{
				{in(Absent, process(11, 7, 5)), in(Absent, process(12, 7, 6)), in(Absent, process(13, 7, 1))},
				{in(Absent, process(11, 7, 5)), in(Absent, process(12, 7, 6)), in(Absent, process(13, 7, 1))},
				{in(Absent, process(11, 7, 5)), in(Absent, process(13, 7, 1))},
			},
			[]string{"", "escaped 12", ""},
		},
		{
			"all that it takes",
			[][]Process{
				{in(Absent, process(11, 7, 9)), in(Absent, process(12, 7, 9))},
				{in(Absent, process(11, 7, 9)), in(Absent, process(12, 7, 9))},
			},
			[]string{"", "escaped 11, escaped 12"},
		},
		{
			"two that take turns at being large",
			[][]Process{
				{in(Absent, process(11, 7, 9)), in(Absent, process(12, 7, 1))},
				{in(Absent, process(11, 7, 1)), in(Absent, process(12, 7, 9))},
			},
			[]string{"", "escaped 12"},
		},
	} {
		j := newJudge(limits{grace: 2 * time.Second})
		for i, processes := range c.looks {
			_, standing := j.look(start.Add(time.Duration(i)*time.Second), []Card{card(processes...)}, []Job{job(7, "GPU-a")})
			standing = slices.DeleteFunc(standing, func(f Finding) bool { return f.Kind != Escaped })
			if got := texts(standing); got != c.want[i] {
				t.Errorf("%s: look %d: %q, want %q", c.name, i, got, c.want[i])
			}
		}
	}
}

// A process that blocks reads of its memory map for longer than the grace counts as one without the
// library. The time goes on if it shows its map in between.
func TestEscapedBlocksItsMemoryMap(t *testing.T) {
	for _, c := range []struct {
		name   string
		looks  []Library
		memory gpu.Bytes
		want   int // looks until the finding; 0: none
	}{
		{"for long", slices.Repeat([]Library{Blocked}, 10), 9, 6},
		{"for long, and within the limit", slices.Repeat([]Library{Blocked}, 10), 8, 0},
		{"for less than the grace", []Library{Blocked, Blocked, Blocked, Loaded, Blocked, Blocked, Blocked, Loaded}, 9, 0},
		{"for long, with looks at a map without the library", []Library{Blocked, Blocked, Absent, Blocked, Blocked, Blocked}, 9, 6},
		{"an error of the kernel", slices.Repeat([]Library{Unread}, 10), 9, 0},
	} {
		j, got := newJudge(limits{grace: 4 * time.Second}), 0
		for i, library := range c.looks {
			p := process(11, 7, c.memory)
			p.Library = library
			_, standing := j.look(start.Add(time.Duration(i)*time.Second), []Card{card(p)}, []Job{job(7, "GPU-a")})
			if got == 0 && slices.ContainsFunc(standing, func(f Finding) bool { return f.Kind == Escaped }) {
				got = i + 1
			}
		}
		if got != c.want {
			t.Errorf("%s: found at look %d, want %d", c.name, got, c.want)
		}
	}
}

// A site may call the library as it likes, and a link it has leads to a file of another name.
func TestLibraryOfAnyName(t *testing.T) {
	p := fakeProc{t, t.TempDir()}
	link := filepath.Join(t.TempDir(), "share.so")
	if err := errors.Join(os.WriteFile(link+".1", nil, 0o644), os.Symlink(link+".1", link)); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]Library{
		"/usr/lib/vgpu/libvgpu.so": Loaded, "/usr/lib/vgpu/libvgpu.so (deleted)": Loaded, "/opt/libvgpu-0.9.so": Loaded,
		"/opt/share.so": Loaded, "/opt/share.so.1": Loaded, "/opt/other.so": Absent,
	} {
		p.put(10, 1, 1000, map[string]string{"maps": "7f00-7f01 r-xp 0 0:0 1 " + file + "\n"})
		table := newTable(p.dir, 5)
		table.libraries = namesOf(link)
		if got := table.library(10); got != want {
			t.Errorf("%s: %v, want %v", file, got, want)
		}
	}
	if got := newTable(p.dir, 5).library(99); got != Unread {
		t.Errorf("a process that has ended: %v", got)
	}
}

// A process without the library and with more than the job's limit is killed at the second look;
// the memory map is looked at once more, at the last moment.
func TestEscapedIsKilled(t *testing.T) {
	const held = "7f00-7f01 r-xp 0 0:0 1 /usr/lib/vgpu/libvgpu.so\n"
	const free = "7f00-7f01 r-xp 0 0:0 1 /usr/lib/libcuda.so.1\n"
	for _, c := range []struct {
		name                string
		first, second, last string // maps
		memory              gpu.Bytes
		killed              bool
	}{
		{"without the library", free, free, free, 9 * gpu.GiB, true},
		{"within the limit", free, free, free, 8 * gpu.GiB, false},
		{"with it", held, held, held, 9 * gpu.GiB, false},
		{"with it from the second look on", free, held, held, 9 * gpu.GiB, false},
		{"with it when it is to be killed", free, free, held, 9 * gpu.GiB, false},
		{"one that ends", "", "", "", 9 * gpu.GiB, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd, p := sleeper(t, 65534)
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
			if err != nil {
				t.Fatal(err)
			}
			fake := fakeProc{t, t.TempDir()}
			maps := func(text string) {
				fake.put(int(p.PID), 1, 65534, map[string]string{"stat": string(stat), "cgroup": "0::/slurm/uid_1/job_7/step_0\n", "maps": text, "fd/3": "-> /dev/nvidia0"})
			}
			node := &fakeNode{
				processes: []driver.Process{{PID: p.PID, Memory: c.memory, Kind: driver.Compute}},
				view:      libvgpu.CacheView{Cards: []libvgpu.CacheCard{{UUID: "GPU-a"}}},
			}
			var tells []string
			a := New(Parts{
				Policy: config.Default().Audit, Grants: node, Driver: node, Meter: node, Log: slog.New(slog.DiscardHandler),
				Name: func(gpu.UUID) string { return "0" }, Count: func(string) {},
				// Told first of what it is, which is the moment before it is killed.
				Tell: func(_ uint32, text string) { tells = append(tells, text); maps(c.last) },
			})
			a.table = newTable(fake.dir, os.Getpid())
			maps(c.first)
			a.step(start)
			maps(c.second)
			a.step(start.Add(time.Second))
			for end := time.Now().Add(10 * time.Second); c.killed && alive(cmd) && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			said := len(tells) == 2 && strings.Contains(tells[1], "vgpu: audit: killed process ") && strings.Contains(tells[1], "ask for more with --vgpu-mem")
			if alive(cmd) == c.killed || said != c.killed {
				t.Errorf("alive: %v, told %q", !c.killed, tells)
			}
		})
	}
}

// A process cannot escape by blocking reads of memory maps: of its own, or of so many others of its
// user that gresd asks no more.
func TestABlockedMemoryMapHidesNobody(t *testing.T) {
	for name, others := range map[string]bool{"its own map": false, "maps of others": true} {
		t.Run(name, func(t *testing.T) {
			cmd, p := sleeper(t, 65534)
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
			if err != nil {
				t.Fatal(err)
			}
			fake := fakeProc{t, t.TempDir()}
			node := &fakeNode{
				processes: []driver.Process{{PID: p.PID, Memory: 9 * gpu.GiB, Kind: driver.Compute}},
				view:      libvgpu.CacheView{Cards: []libvgpu.CacheCard{{UUID: "GPU-a"}}},
			}
			var tells []string
			a := New(Parts{
				Policy: config.Default().Audit, Grants: node, Driver: node, Meter: node, Log: slog.New(slog.DiscardHandler),
				Name: func(gpu.UUID) string { return "0" }, Count: func(string) {},
				Tell: func(_ uint32, text string) { tells = append(tells, text) },
			})
			a.table = newTable(fake.dir, os.Getpid())
			a.table.stuck.Timeout = time.Millisecond
			fake.put(int(p.PID), 1, 65534, map[string]string{
				"stat": string(stat), "cgroup": "0::/slurm/uid_1/job_7/step_0\n", "maps": "7f00-7f01 r-xp 0 0:0 1 /usr/lib/libcuda.so.1\n", "fd/3": "-> /dev/nvidia0",
			})
			for pid := 1 << 23; others && pid < 1<<23+40; pid++ {
				fake.put(pid, 1, 65534, nil)
				defer fake.hang(fmt.Sprint(pid), "maps")()
				a.table.look(uint32(pid))
			}
			if !others {
				defer fake.hang(fmt.Sprint(p.PID), "maps")()
			}
			for i := range 8 {
				if a.step(start.Add(time.Duration(i) * time.Second)); i == 4 && !alive(cmd) {
					t.Error("killed before the grace is over")
				}
			}
			for end := time.Now().Add(10 * time.Second); alive(cmd) && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			if alive(cmd) || !slices.ContainsFunc(tells, func(text string) bool { return strings.Contains(text, "blocks reads of its memory map") }) {
				t.Errorf("alive: %v, messages %q", alive(cmd), tells)
			}
		})
	}
}
