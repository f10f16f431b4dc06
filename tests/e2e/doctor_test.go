// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/doctor"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// Files that the doctor looks at.
const (
	libraryFile   = cluster.Dir + "/lib/libvgpu.so"
	preloadFile   = "/run/vgpu/preload"
	socketFile    = "/run/vgpu/gresd.sock"
	gresFile      = "/etc/slurm/gres.conf"
	plugstackFile = "/etc/slurm/plugstack.conf"
	filterFile    = "/etc/slurm/cli_filter.lua"
	cgroupFile    = "/etc/slurm/cgroup.conf"
	stateFolder   = cluster.Dir + "/state/vgpu"
	scontrolFile  = cluster.Dir + "/scontrol-told"
)

// findings runs the doctor as root.
func (s site) findings(args ...string) ([]doctor.Finding, int) {
	s.t.Helper()
	r := s.As("root", append([]string{"vgpuctl", "--json", "doctor"}, args...)...)
	var v struct{ Findings []doctor.Finding }
	if err := json.Unmarshal([]byte(r.Out), &v); err != nil {
		s.t.Fatalf("%v: %s", err, r)
	}
	return v.Findings, r.Code
}

func has(found []doctor.Finding, check string, status doctor.Status, text string) bool {
	for _, f := range found {
		if f.Check == check && f.Status == status && strings.Contains(f.Message, text) && (f.Remedy != "" || status == doctor.Pass) {
			return true
		}
	}
	return false
}

// edit changes a file and returns what puts it back.
func (s site) edit(path string, change func(string) string) func() {
	s.t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		s.t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(change(string(before))), info.Mode())
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return func() {
		if err := os.WriteFile(path, before, info.Mode()); err != nil {
			s.t.Error(err)
		}
	}
}

func (s site) mode(path string, mode os.FileMode) func() {
	s.t.Helper()
	info, err := os.Stat(path)
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return func() { _ = os.Chmod(path, info.Mode().Perm()) } // the next check would tell
}

// scontrolSays lets scontrol say something else than slurmctld does.
func (s site) scontrolSays(script string) func() {
	s.t.Helper()
	text := "#!/bin/sh\nscontrol \"$@\" | sed '" + script + "'\n"
	if strings.HasPrefix(script, "sleep") {
		text = "#!/bin/sh\n" + script + "\n"
	}
	if err := os.WriteFile(scontrolFile, []byte(text), 0o755); err != nil {
		s.t.Fatal(err)
	}
	return s.edit("/etc/vgpu/vgpu.toml", func(text string) string {
		return text + "\n[slurm]\nscontrol = \"" + scontrolFile + "\"\n"
	})
}

func replace(from, to string) func(string) string {
	return func(text string) string { return strings.ReplaceAll(text, from, to) }
}

func TestDoctorFindsEachFault(t *testing.T) {
	s := up(t, oneCard)
	found, code := s.findings()
	for _, f := range found {
		if f.Status == doctor.Fail {
			t.Errorf("a node that is well: %+v", f)
		}
	}
	if code != 0 {
		t.Errorf("a node that is well: exit %d", code)
	}
	for _, check := range []string{"config", "driver", "cards", "library", "preload", "gresd", "socket", "slurm", "hooks", "lua", "plugstack", "gres.conf"} {
		if !has(found, check, doctor.Pass, "") {
			t.Errorf("%s does not pass on a node that is well: %+v", check, found)
		}
	}
	// No cgroups, and the ledger on a tmpfs: what the harness is like.
	if _, code := s.findings("--strict"); code != 1 {
		t.Errorf("--strict: exit %d, want 1", code)
	}

	local := []string{"--local"}
	for _, c := range []struct {
		name   string
		breaks func() func()
		args   []string
		check  string
		status doctor.Status
		text   string
	}{
		{"a typing error", func() func() {
			return s.edit("/etc/vgpu/vgpu.toml", func(text string) string { return text + "\n[arbiter]\nperiod = 5\n" })
		}, local, "config", doctor.Fail, "period"},
		{"no NVML", func() func() {
			return s.edit("/etc/vgpu/vgpu.toml", func(text string) string { return text + "\n[nvml]\nlibrary = \"/nonexistent/libnvidia-ml.so.1\"\n" })
		}, local, "driver", doctor.Fail, "libnvidia-ml"},
		{"no library", func() func() { return s.edit("/etc/vgpu/vgpu.toml", replace("libvgpu.so", "libvgpu-0.so")) }, local, "library", doctor.Fail, "no such file"},
		{"a library that is none", func() func() { return s.edit(libraryFile, func(string) string { return "not a library" }) }, local, "library", doctor.Fail, "ld.so"},
		{"a library without hooks", func() func() {
			libc, err := os.ReadFile("/lib/x86_64-linux-gnu/libm.so.6")
			if err != nil {
				t.Fatal(err)
			}
			return s.edit(libraryFile, func(string) string { return string(libc) })
		}, local, "library", doctor.Fail, "does not answer"},
		{"a library that all may write", func() func() { return s.mode(libraryFile, 0o777) }, local, "library", doctor.Fail, "others than root may write it"},
		{"an empty preload file", func() func() { return s.edit(preloadFile, func(string) string { return "" }) }, local, "preload", doctor.Fail, "does not name"},
		{"no gresd", func() func() {
			s.Gresd.Kill()
			return func() {
				if err := s.Gresd.Start(); err != nil {
					t.Error(err)
				}
			}
		}, local, "gresd", doctor.Fail, "no answer"},
		{"a card that is cordoned", func() func() {
			s.As("root", "vgpuctl", "cordon", "0", "for the test")
			return func() { s.As("root", "vgpuctl", "uncordon", "0") }
		}, local, "gresd", doctor.Warn, "for the test"},
		{"a socket for root only", func() func() { return s.mode(socketFile, 0o600) }, local, "socket", doctor.Fail, "users' processes cannot connect"},
		{"a folder that users cannot enter", func() func() { return s.mode("/run/vgpu", 0o700) }, local, "socket", doctor.Fail, "users cannot reach"},
		{"a full disk", func() func() {
			if err := unix.Mount("tmpfs", stateFolder, "tmpfs", 0, "size=1m"); err != nil {
				t.Fatal(err)
			}
			return func() { _ = unix.Unmount(stateFolder, 0) } // the next checks would tell
		}, local, "space", doctor.Fail, "the ledger cannot be written"},
		{"slurmctld hangs", func() func() { return s.scontrolSays("sleep 1000") }, []string{"--timeout", "4s"}, "slurm", doctor.Fail, "no answer in time"},
		{"an old Slurm", func() func() { return s.scontrolSays("s/^SLURM_VERSION.*/SLURM_VERSION = 20.11.9/") }, nil, "slurm", doctor.Fail, "older than"},
		{"a Slurm not known", func() func() { return s.scontrolSays("s/^SLURM_VERSION.*/SLURM_VERSION = 29.05.1/") }, nil, "slurm", doctor.Warn, "newer than"},
		{"cards are not counted apart", func() func() { return s.scontrolSays("s/cons_tres/linear/") }, nil, "slurm", doctor.Fail, "shares are not kept apart"},
		{"shares that may be split", func() func() {
			return s.scontrolSays("s/^SelectTypeParameters.*/SelectTypeParameters = CR_CPU,MULTIPLE_SHARING_GRES_PJ/")
		}, nil, "slurm", doctor.Warn, "MULTIPLE_SHARING_GRES_PJ"},
		{"no shards", func() func() { return s.scontrolSays("/^GresTypes/s/shard/mps/") }, nil, "slurm", doctor.Fail, "GresTypes lacks shard"},
		{"a node with fewer shards", func() func() { return s.scontrolSays("s/shard:sim:100/shard:sim:50/") }, nil, "slurm", doctor.Fail, "its cards are"},
		{"a node that is drained", func() func() { return s.scontrolSays("s/State=IDLE/State=IDLE+DRAIN/") }, nil, "slurm", doctor.Warn, "IDLE+DRAIN"},
		{"no Prolog", func() func() { return s.scontrolSays("/^Prolog[^A-Za-z]/d") }, nil, "hooks", doctor.Fail, "Prolog is not set"},
		{"an Epilog of the site", func() func() { return s.scontrolSays("/^Epilog[^A-Za-z]/s#= .*#= /bin/true#") }, nil, "hooks", doctor.Warn, "no call of vgpu-prolog"},
		{"no job_submit", func() func() { return s.scontrolSays("s/^JobSubmitPlugins.*/JobSubmitPlugins = (null)/") }, nil, "lua", doctor.Fail, "JobSubmitPlugins lacks lua"},
		{"a cli_filter without vgpu", func() func() { return s.edit(filterFile, func(string) string { return "return slurm.SUCCESS\n" }) }, nil, "lua", doctor.Fail, "knows nothing of vgpu"},
		{"no plugin", func() func() { return s.edit(plugstackFile, func(string) string { return "# nothing\n" }) }, nil, "plugstack", doctor.Fail, "does not name vgpu.so"},
		{"a plugin that is not there", func() func() { return s.edit(plugstackFile, replace("/lib/vgpu.so", "/lib/old/vgpu.so")) }, nil, "plugstack", doctor.Fail, "no such file"},
		{"a plugin with another folder", func() func() {
			return s.edit(plugstackFile, replace("vgpu.so library", "vgpu.so run_dir=/run/other library"))
		}, nil, "plugstack", doctor.Fail, "/run/other"},
		{"a plugin for programs that cooperate", func() func() {
			return s.edit(plugstackFile, replace("vgpu.so library", "vgpu.so enforce=preload library"))
		}, nil, "plugstack", doctor.Warn, "cooperate"},
		{"a card without shards", func() func() { return s.edit(gresFile, replace("Name=shard", "#")) }, nil, "gres.conf", doctor.Fail, "no Name=shard line"},
		{"a card without a type", func() func() { return s.edit(gresFile, replace(" Type=sim", "")) }, nil, "gres.conf", doctor.Fail, "no Type="},
		{"too few shards", func() func() { return s.edit(gresFile, replace("Count=100", "Count=10")) }, nil, "gres.conf", doctor.Fail, "10 shards"},
		{"a card that is not there", func() func() { return s.edit(gresFile, replace("nvidia0", "nvidia[0-1]")) }, nil, "gres.conf", doctor.Fail, "no such card"},
		{"no cgroups", func() func() { return func() {} }, nil, "cgroup", doctor.Warn, "ConstrainDevices is not set"},
	} {
		mend := c.breaks()
		found, code := s.findings(c.args...)
		mend()
		if !has(found, c.check, c.status, c.text) {
			t.Errorf("%s: no %s of %s with %q in %+v", c.name, c.status, c.check, c.text, found)
		}
		if want := map[doctor.Status]int{doctor.Fail: 1}[c.status]; code != want {
			t.Errorf("%s: exit %d, want %d", c.name, code, want)
		}
	}

	// With cgroups as they should be, that passes.
	mend := s.scontrolSays("s#proctrack/linuxproc#proctrack/cgroup#; s#^TaskPlugin .*#TaskPlugin = task/cgroup,task/affinity#")
	back := s.edit(cgroupFile, func(text string) string { return text + "ConstrainDevices=yes\n" })
	if found, _ := s.findings(); !has(found, "cgroup", doctor.Pass, "") && !has(found, "cgroup", doctor.Warn, "no cgroups (v1") {
		t.Errorf("cgroups in order: %+v", found)
	}
	back()
	mend()

	// All is well again, and the doctor changed nothing.
	if found, code := s.findings(); code != 0 {
		t.Errorf("mended: exit %d: %+v", code, found)
	}
	if r := s.As(alice, "vgpuctl", "doctor", "--local"); r.Code != 0 || !strings.Contains(r.Out, "pass  library") {
		t.Errorf("as a user: %s", r)
	}

	// A card that is lost, at the end: it stays so.
	if err := s.Sim("xid --card 0 --code 79 --lost 999"); err != nil {
		t.Fatal(err)
	}
	if found, code := s.findings("--local"); code != 1 || !has(found, "cards", doctor.Fail, "") {
		t.Errorf("a lost card: exit %d, %+v", code, found)
	}
}

// In a HealthCheckProgram it must end in time, whatever hangs.
func TestDoctorEndsInTime(t *testing.T) {
	s := up(t, oneCard)
	defer s.scontrolSays("sleep 1000")()
	begin := time.Now()
	if found, code := s.findings("--timeout", "3s"); code != 1 || !has(found, "slurm", doctor.Fail, "no answer") {
		t.Errorf("exit %d: %+v", code, found)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("took %s, want 3 s", took)
	}
}
