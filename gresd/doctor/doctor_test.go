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
)

func judged(s Status, message, _ string) string { return string(s) + ": " + message }

func TestDriversAndTheCoverageTable(t *testing.T) {
	for _, c := range []struct{ driver, cuda, want string }{
		{"580.159.04", "13.0", "pass: "},
		{"535.54.03", "12.2", "warn: driver 535.54.03, CUDA 12.2: meant to work"},
		{"530.30.02", "12.1", "fail: driver 530.30.02, CUDA 12.1: older than 535"},
		{"610.1", "14.0", "warn: driver 610.1, CUDA 14.0: CUDA 14 may have functions"},
		{"", "", "warn: driver , CUDA : not a version"},
	} {
		if got := judged(judgeDriver(driver.Versions{Driver: c.driver, CUDA: c.cuda})); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.driver, got, c.want)
		}
	}
	// What was looked at is told by the document; the code must not say else.
	text, err := os.ReadFile("../../docs/coverage.md")
	if err != nil {
		t.Fatal(err)
	}
	if got := judged(judgeDriver(driver.Versions{Driver: "580.159.04", CUDA: "13.0"})); !strings.Contains(string(text), "Driver 580.159.04, CUDA 13.0") || !strings.HasPrefix(got, "pass") {
		t.Errorf("docs/coverage.md was made from another driver than the one that passes: %s", got)
	}
}

func TestWhoHoldsMemoryLimits(t *testing.T) {
	for _, c := range []struct {
		wanted, offered bool
		want            string
	}{
		{false, false, "pass: the library alone holds memory limits"},
		{false, true, "pass: the library alone holds memory limits; the driver could as well ([memory] driver_limits)"},
		{true, true, "pass: the library holds memory limits, and the driver as well, for the cgroups of jobs"},
		{true, false, "warn: the library alone holds memory limits: [memory] driver_limits wants the driver to, which cannot"},
	} {
		if got := judged(judgeLimits(c.wanted, c.offered)); got != c.want {
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
		if !strings.Contains(string(text), "\n| `"+c.name+"` |") {
			t.Errorf("docs/troubleshooting.md has no line for %s", c.name)
		}
	}
}

func TestScontrolSeesNothingOfTheAdministratorsShell(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scontrol")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nenv\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"SLURM_CLUSTERS": "other", "SLURM_TIME_FORMAT": "relative", "SCONTROL_ALL": "1", "LANG": "de_DE"} {
		t.Setenv(name, value)
	}
	n := &node{cfg: config.Default()}
	n.cfg.Slurm.Scontrol, n.cfg.Slurm.Conf = path, "/a/slurm.conf"
	text, err := n.scontrol(t.Context(), "show", "config")
	if err != nil || strings.Contains(text, "other") || strings.Contains(text, "relative") || strings.Contains(text, "SCONTROL_ALL") ||
		strings.Contains(text, "de_DE") || !strings.Contains(text, "SLURM_CONF=/a/slurm.conf") {
		t.Errorf("%v: scontrol saw\n%s", err, text)
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
"show nodes -o")
	echo "NodeName=other Arch=x86_64 NodeAddr=a NodeHostName=somewhere State=IDLE Comment=NodeHostName=` + host + `"
	echo "NodeName=gpu01 Arch=x86_64 NodeAddr=b NodeHostName=` + host + ` State=IDLE" ;;
"show node gpu01") echo "NodeName=gpu01 Gres=gpu:1" ;;
*) echo "Node $3 not found"; exit 1 ;;
esac
`)
	n.checkNode(t.Context(), func(_ Status, message, _ string) { t.Errorf("doctor says %q", message) })
	// A slurmctld that does not answer leaves the host's own name.
	script("exit 1\n")
	if got, short := n.name(t.Context()), strings.SplitN(host, ".", 2)[0]; got != short {
		t.Errorf("the node is %q, want %q", got, short)
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
	for name, c := range map[string]struct{ got, want string }{
		"run on a tmpfs":   {judged(judgeRun("/r", tmpfs)), "pass"},
		"run on a disk":    {judged(judgeRun("/r", disk)), "warn: /r is not on a tmpfs"},
		"run full":         {judged(judgeRun("/r", full)), "fail: /r: 0 B free"},
		"run out of files": {judged(judgeRun("/r", names)), "fail: /r: room for 10 files"},
		"state on a disk":  {judged(judgeState("/s", disk)), "pass"},
		"state on a tmpfs": {judged(judgeState("/s", tmpfs)), "warn: /s is on a tmpfs"},
		"state full":       {judged(judgeState("/s", full)), "fail: /s: 0 B free"},
		"clock in order":   {judged(judgeClock(unix.TIME_OK, 0, time.Now())), "pass"},
		"clock alone":      {judged(judgeClock(unix.TIME_ERROR, unix.STA_UNSYNC, time.Now())), "warn: not synchronized"},
		"clock of 1970":    {judged(judgeClock(unix.TIME_OK, 0, time.Unix(0, 0))), "fail: it is 1970"},
		"library well":     {judged(judgeLibrary("/l", Probed{ProbeLimit, ProbeLimit}, nil)), "pass"},
		"old driver":       {judged(judgeLibrary("/l", Probed{ProbeLimit, 0}, nil)), "pass"},
		"newer driver":     {judged(judgeUnknown("/l", "well", []string{"7", "9"})), "warn: /l is older than the driver, by the caches of jobs 7, 9: "},
		"known driver":     {judged(judgeUnknown("/l", "well", nil)), "pass"},
		"half a library":   {judged(judgeLibrary("/l", Probed{ProbeLimit, 80 * gpu.GiB}, nil)), "fail: /l does not answer cuGetProcAddress"},
	} {
		if !strings.HasPrefix(c.got, c.want) {
			t.Errorf("%s: got %q, want %q", name, c.got, c.want)
		}
	}
}

func TestGresConfAgainstCards(t *testing.T) {
	cards := []gpu.Card{{Index: 0, Minor: 0, Type: "h200"}, {Index: 1, Minor: 1, Type: "h200"}, {Index: 2, Minor: 2, Type: "h200", MIG: true}}
	const well = "AutoDetect=off # as it should be\nName=gpu Type=h200 File=/dev/nvidia[0-2]\n" +
		"Name=shard Type=h200 Count=100 File=/dev/nvidia0\nName=shard Type=h200 Count=100 File=/dev/nvidia1\n"
	for name, c := range map[string]struct{ text, mode, want string }{
		"well":               {well, config.PlacementSlurm, ""},
		"gresd places":       {"Name=gpu Type=h200 File=/dev/nvidia[0,1,2]\nName=vgpu Count=200 Flags=CountOnly\n", config.PlacementGresd, ""},
		"automatic":          {"AutoDetect=nvml\n" + well, config.PlacementSlurm, "AutoDetect is on"},
		"order":              {"Name=gpu Type=h200 File=/dev/nvidia2\nName=gpu Type=h200 File=/dev/nvidia[0-1]\n" + strings.SplitAfterN(well, "\n", 3)[2], config.PlacementSlurm, "in the order [2 0 1]"},
		"a range that grows": {well + "Name=gpu Type=x File=/dev/nvidia[0-99999999]\n", config.PlacementSlurm, ""},
		"empty":              {"", config.PlacementSlurm, "no Name=gpu line for card 0"},
	} {
		got := compareGres(strings.Split(c.text, "\n"), cards, c.mode)
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
	for node, want := range map[string]string{"gpu03": "", "big1": "no Name=shard line with File= for card 9", "cpu1": "no Name=gpu line for card 0"} {
		on := cards
		if node == "big1" {
			on = []gpu.Card{{Index: 0, Minor: 0, Type: "b200"}, {Index: 9, Minor: 9, Type: "b200"}}
		}
		got := strings.Join(compareGres(linesOf(strings.Split(both, "\n"), node), on, config.PlacementSlurm), "\n")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", node, got, want)
		}
	}
	// MIG instances, by the file of their compute instance.
	on := []gpu.Card{{Type: "1g.10gb", Instance: gpu.Instance{GPU: "GPU-0", ComputeCap: 13}}, {Index: 1, Minor: 1, Type: "h200"}}
	const cut = "Name=gpu Type=1g.10gb File=/dev/nvidia-caps/nvidia-cap13\nName=gpu Type=h200 File=/dev/nvidia1\n" +
		"Name=shard Type=1g.10gb Count=100 File=/dev/nvidia-caps/nvidia-cap13\nName=shard Type=h200 Count=100 File=/dev/nvidia1\n"
	if got := compareGres(strings.Split(cut, "\n"), on, config.PlacementSlurm); len(got) != 0 {
		t.Errorf("instances: %q", got)
	}
	got := strings.Join(compareGres(strings.Split(strings.ReplaceAll(cut, "cap13", "cap22"), "\n"), on, config.PlacementSlurm), "\n")
	if !strings.Contains(got, "no Name=gpu line for card 0 (/dev/nvidia-caps/nvidia-cap13, 1g.10gb)") || !strings.Contains(got, "for /dev/nvidia-caps/nvidia-cap22: the driver has no such card") {
		t.Errorf("other instances: %q", got)
	}
	if !sameGres([]string{"gpu:h200:2", "shard:h200:200"}, "gpu:big:2(S:0-1),shard:big:200") || sameGres([]string{"gpu:h200:2"}, "gpu:h200:3") {
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
	checks = []check{
		{"first", false, func(context.Context, *node, func(Status, string, string)) { <-block }},
		{"second", false, func(_ context.Context, _ *node, tell func(Status, string, string)) { tell(Pass, "well", "nothing") }},
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
