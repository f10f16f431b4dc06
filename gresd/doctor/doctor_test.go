// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// checkNamed returns a check of the table.
func checkNamed(name string) check {
	return checks[slices.IndexFunc(checks, func(c check) bool { return c.name == name })]
}

// judged is the first finding of a check.
func judged(name string, n *node) string {
	f := checkNamed(name).findings(n)[0]
	return string(f.Status) + ": " + f.Message
}

func TestDriversAndTheCoverageTable(t *testing.T) {
	for _, c := range []struct{ driver, cuda, want string }{
		{"580.159.04", "13.0", "pass: "},
		{"535.54.03", "12.2", "warn: driver 535.54.03, CUDA 12.2: meant to work"},
		{"530.30.02", "12.1", "fail: driver 530.30.02, CUDA 12.1: older than 535"},
		{"610.1", "14.0", "warn: driver 610.1, CUDA 14.0: tested up to CUDA 13"},
		{"", "", `warn: driver "", CUDA : not a version`},
	} {
		if got := judged("driver", &node{version: driver.Versions{Driver: c.driver, CUDA: c.cuda}}); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.driver, got, c.want)
		}
	}
	// The document says which driver was tested, and the code must say the same.
	text, err := os.ReadFile("../../docs/coverage.md")
	if err != nil {
		t.Fatal(err)
	}
	tested := &node{version: driver.Versions{Driver: "580.159.04", CUDA: "13.0"}}
	if got := judged("driver", tested); !strings.Contains(string(text), "Driver 580.159.04, CUDA 13.0") || !strings.HasPrefix(got, "pass") {
		t.Errorf("docs/coverage.md was made from another driver than the one that passes: %s", got)
	}
}

// limitedDriver is a driver that enforces memory limits, or does not.
type limitedDriver struct {
	*driver.NVML
	offered bool
}

func (d limitedDriver) HasLimits() bool { return d.offered }

func TestWhoHoldsMemoryLimits(t *testing.T) {
	for _, c := range []struct {
		wanted, offered bool
		want            string
	}{
		{false, false, "pass: the library alone enforces memory limits"},
		{false, true, "pass: the library alone enforces memory limits; the driver can, too ([memory] driver_limits)"},
		{true, true, "pass: the library enforces memory limits, and the driver as well, for the cgroups of jobs"},
		{true, false, "warn: the library alone enforces memory limits: [memory] driver_limits is true, but this driver has no limits"},
	} {
		n := &node{cards: limitedDriver{offered: c.offered}}
		n.cfg.Memory.DriverLimits = c.wanted
		if got := judged("limits", n); got != c.want {
			t.Errorf("wanted %v, offered %v: %q, want %q", c.wanted, c.offered, got, c.want)
		}
	}
}

func TestEveryCheckIsInTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks {
		if !strings.Contains(string(text), "\n| `"+c.name+"` | "+c.question+" |\n") {
			t.Errorf("docs/troubleshooting.md: want the line | `%s` | %s |", c.name, c.question)
		}
	}
}

// Before the first job, gresd does not know the name of the node. Then doctor finds it by the host name.
func TestTheNodeIsFoundByItsHostName(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLURMD_NODENAME", "")
	n := &node{cfg: config.Default()}
	n.cfg.Paths.RunDir = t.TempDir() // no gresd
	n.cfg.Slurm.Scontrol = filepath.Join(t.TempDir(), "scontrol")
	script := func(text string) {
		if err := os.WriteFile(n.cfg.Slurm.Scontrol, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script(`case "$*" in
"--local show node")
	printf "NodeName=other\n   NodeAddr=a NodeHostName=somewhere\n   State=IDLE\n   Comment=NodeHostName=` + host + `\n\n"
	printf "NodeName=gpu01\n   NodeAddr=b NodeHostName=` + host + ` Version=24.11\n   State=IDLE\n" ;;
*) echo "Node $3 not found"; exit 1 ;;
esac
`)
	if got := n.slurmName(t.Context()); got != "gpu01" {
		t.Errorf("the node is %q, want gpu01", got)
	}
	// A slurmctld that does not answer leaves the host's own name.
	script("exit 1\n")
	_, short := hostNames()
	if got := n.slurmName(t.Context()); got != short {
		t.Errorf("the node is %q, want %q", got, short)
	}
	n.gresd = &wire.Status{Node: "a,b"}
	if got := n.slurmName(t.Context()); got != "a" {
		t.Errorf("the node is %q, gresd calls it a", got)
	}
}

func TestSpaceAndClock(t *testing.T) {
	disk := unix.Statfs_t{Type: 0xef53, Bsize: 4096, Bavail: 1 << 20, Files: 1 << 20, Ffree: 1 << 19}
	tmpfs := disk
	tmpfs.Type = unix.TMPFS_MAGIC
	full := tmpfs
	full.Bavail = 100
	names := tmpfs
	names.Ffree = 10
	space := func(run, state unix.Statfs_t) string {
		n := &node{run: run, state: state}
		n.cfg.Paths.RunDir, n.cfg.Paths.StateDir = "/r", "/s"
		return judged("space", n)
	}
	clock := func(now time.Time, synchronized bool) string {
		return judged("clock", &node{now: now, synchronized: synchronized})
	}
	library := func(probed Probed, jobs ...string) string {
		n := &node{probed: probed, unknownSymbols: jobs}
		n.cfg.Paths.Library = "/l"
		return judged("library", n)
	}
	for name, c := range map[string]struct{ got, want string }{
		"in order":         {space(tmpfs, disk), "pass"},
		"run on a disk":    {space(disk, disk), "warn: /r is not on a tmpfs"},
		"run full":         {space(full, disk), "fail: /r: 0 B free"},
		"run out of files": {space(names, disk), "fail: /r: room for 10 files"},
		"state on a tmpfs": {space(tmpfs, tmpfs), "warn: /s is on a tmpfs"},
		"state full":       {space(tmpfs, full), "fail: /s: 0 B free"},
		"clock in order":   {clock(time.Now(), true), "pass"},
		"clock alone":      {clock(time.Now(), false), "warn: not synchronized"},
		"clock of 1970":    {clock(time.Unix(0, 0), true), "fail: the clock says 1970"},
		"library well":     {library(Probed{ProbeLimit, ProbeLimit}), "pass"},
		"old driver":       {library(Probed{ProbeLimit, 0}), "pass"},
		"newer driver":     {library(Probed{ProbeLimit, ProbeLimit}, "7", "9"), "warn: /l is older than the driver, by the caches of jobs 7, 9: "},
		"half a library":   {library(Probed{ProbeLimit, 80 * gpu.GiB}), "fail: /l does not answer cuGetProcAddress"},
	} {
		if !strings.HasPrefix(c.got, c.want) {
			t.Errorf("%s: got %q, want %q", name, c.got, c.want)
		}
	}
}

// differences are the findings of gres.conf.
func differences(lines []string, cards []gpu.Card, mode string) (all []string) {
	var r results
	gresConf{cards: cards, mode: mode}.compare(&r, "/etc/slurm/gres.conf", lines)
	for _, f := range r.found {
		all = append(all, f.Message)
	}
	return all
}

func TestGresConfAgainstCards(t *testing.T) {
	cards := []gpu.Card{{Index: 0, Minor: 0, Type: "h200"}, {Index: 1, Minor: 1, Type: "h200"}, {Index: 2, Minor: 2, Type: "h200", MIG: true}}
	const well = "AutoDetect=off # as it should be\nName=gpu Type=h200 File=/dev/nvidia[0-2]\n" +
		"Name=shard Type=h200 Count=100 File=/dev/nvidia0\nName=shard Type=h200 Count=100 File=/dev/nvidia1\n"
	for name, c := range map[string]struct{ text, mode, want string }{
		"well":               {well, config.PlacementSlurm, ""},
		"gresd places":       {"Name=gpu Type=h200 File=/dev/nvidia[0,1,2]\nName=vgpu Count=200 Flags=CountOnly\n", config.PlacementGresd, ""},
		"automatic":          {"AutoDetect=nvml\n" + well, config.PlacementSlurm, "AutoDetect is nvml"},
		"order":              {"Name=gpu Type=h200 File=/dev/nvidia2\nName=gpu Type=h200 File=/dev/nvidia[0-1]\n" + strings.SplitAfterN(well, "\n", 3)[2], config.PlacementSlurm, "in the order [2 0 1]"},
		"a range that grows": {well + "Name=gpu Type=x File=/dev/nvidia[0-99999999]\n", config.PlacementSlurm, ""},
		"empty":              {"", config.PlacementSlurm, "no Name=gpu line with File= for card 0"},
	} {
		got := differences(strings.Split(c.text, "\n"), cards, c.mode)
		if (c.want == "") != (len(got) == 0) || len(got) > 0 && !strings.Contains(strings.Join(got, "\n"), c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	// One file for several kinds of nodes: only the lines of this one count.
	named := ""
	for line := range strings.Lines(well) {
		named += "NodeName=gpu[01-08] " + line
	}
	both := named + "nodename=big[1-2] Name=gpu Type=b200 File=/dev/nvidia[0-7]\nNodeName=big[1-2],huge Name=shard Type=b200 Count=100 File=/dev/nvidia[0-7]\n"
	for node, want := range map[string]string{"gpu03": "", "big1": "no Name=shard line with File= for card 9", "cpu1": "no Name=gpu line with File= for card 0"} {
		on := cards
		if node == "big1" {
			on = []gpu.Card{{Index: 0, Minor: 0, Type: "b200"}, {Index: 9, Minor: 9, Type: "b200"}}
		}
		got := strings.Join(differences(linesOf(strings.Split(both, "\n"), node), on, config.PlacementSlurm), "\n")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", node, got, want)
		}
	}
	// MIG instances, by the file of their compute instance.
	on := []gpu.Card{{Type: "1g.10gb", Instance: gpu.Instance{GPU: "GPU-0", ComputeCap: 13}}, {Index: 1, Minor: 1, Type: "h200"}}
	const cut = "Name=gpu Type=1g.10gb File=/dev/nvidia-caps/nvidia-cap13\nName=gpu Type=h200 File=/dev/nvidia1\n" +
		"Name=shard Type=1g.10gb Count=100 File=/dev/nvidia-caps/nvidia-cap13\nName=shard Type=h200 Count=100 File=/dev/nvidia1\n"
	if got := differences(strings.Split(cut, "\n"), on, config.PlacementSlurm); len(got) != 0 {
		t.Errorf("instances: %q", got)
	}
	got := strings.Join(differences(strings.Split(strings.ReplaceAll(cut, "cap13", "cap22"), "\n"), on, config.PlacementSlurm), "\n")
	if !strings.Contains(got, "no Name=gpu line with File= for card 0 (/dev/nvidia-caps/nvidia-cap13, 1g.10gb)") || !strings.Contains(got, "for /dev/nvidia-caps/nvidia-cap22: the driver has no such card") {
		t.Errorf("other instances: %q", got)
	}
	if !sameGres("gpu:h200:2,shard:h200:200", "gpu:big:2(S:0-1),shard:big:200") || sameGres("gpu:h200:2", "gpu:h200:3") {
		t.Error("counts are compared, types are the site's")
	}
}

func TestPluginIsFoundThroughIncludes(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"plugstack.conf":     "# optional vgpu.so\ninclude plugstack.d/*.conf\n",
		"plugstack.d/a.conf": "required other.so\n", "plugstack.d/b.conf": "optional vgpu.so seccomp=1\n",
		"self.conf": "include self.conf\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if words, err := findPlugin(filepath.Join(dir, "plugstack.conf"), 0); err != nil || !slices.Equal(words, []string{"optional", "vgpu.so", "seccomp=1"}) {
		t.Errorf("got %q, %v", words, err)
	}
	if words, err := findPlugin(filepath.Join(dir, "self.conf"), 0); err != nil || words != nil {
		t.Errorf("a file that includes itself: got %q, %v", words, err)
	}
}

// A check that hangs is a finding, and the others are made.
func TestAHangingCheckIsLeftBehind(t *testing.T) {
	block := make(chan struct{})
	defer close(block)
	old := checks
	defer func() { checks = old }()
	well := func(*node, *results) string { return "well" }
	checks = []check{
		{name: "first", look: func(context.Context, *node) error { <-block; return nil }, judge: well},
		{name: "second", look: func(context.Context, *node) error { return nil }, remedy: "nothing", judge: well},
	}
	var found []Finding
	begin := time.Now()
	Run(t.Context(), Options{Timeout: 3 * time.Second}, func(f Finding) { found = append(found, f) })
	if time.Since(begin) > 3*time.Second || len(found) != 2 || found[0].Status != Fail || found[1] != (Finding{"second", Pass, "well", ""}) {
		t.Errorf("after %s: %+v", time.Since(begin), found)
	}
	if Worst(found) != Fail || Worst(found[1:]) != Pass || Worst([]Finding{{Status: Skip}, {Status: Warn}}) != Warn {
		t.Error("the worst is another one")
	}
}
