// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

func run(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	code = execute(t.Context(), args, &o, &e)
	return o.String(), e.String(), code
}

// narrow checks that no line is wider than a large terminal: on others columns are left out.
func narrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 112 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func ptr[T any](v T) *T { return &v }

const uuid = "GPU-5f3c1d2e-0000-1111-2222-333344445555"

func exampleReply(op wire.Op) wire.Reply {
	if op == wire.OpStatus {
		return wire.Reply{OK: true, Status: &wire.Status{
			Version: "1.2.3", Node: "n1", Started: time.Now().Add(-time.Hour), Ready: true, Placement: "slurm", Jobs: 12,
			Cards: []wire.Card{
				{UUID: uuid, Index: 0, Type: "h200", Healthy: true, MemoryBytes: 141 << 30, GrantedBytes: 100 << 30, Share: 100, Cores: 100, Jobs: 12, ComputePercent: ptr(62.0), Throttled: 3},
				{UUID: uuid, Index: 2, Type: "h200", Healthy: true, MemoryBytes: 282 << 30, PhysicalBytes: 141 << 30},
				{UUID: uuid, Index: 1, Type: "h200", MemoryBytes: 141 << 30},
			},
			Problems: []string{"card 2: lost"},
		}}
	}
	return wire.Reply{OK: true, Jobs: []wire.Job{
		{JobID: 1234567, User: "longname12", State: "granted", Mode: "soft", Ceiling: 80, Cards: []wire.JobCard{
			{UUID: uuid, Index: 0, Share: 100, Cores: 100, LimitBytes: 141 << 30, UsedBytes: ptr(uint64(100 << 30)), GPUSeconds: ptr(3723.5), Processes: ptr(8), SliceUS: 14000, Gate: true},
			{UUID: uuid, Index: 1, Share: 30, Cores: 20, LimitBytes: 20 << 30, GotPercent: ptr(31.2), ThrottledPercent: ptr(12.0), JobUse: wire.JobUse{LimitedBy: "neighbors"}},
			{UUID: uuid, Index: 2, Share: 30, Cores: 30, LimitBytes: 20 << 30, PhysicalBytes: 10 << 30},
		}},
		{JobID: 9, UID: 33, State: "refused", Reason: "vgpu: request: job 9: --vgpu-mem: want a size"},
	}}
}

func serve(t *testing.T, answer func(wire.Op) wire.Reply) string {
	t.Helper()
	return serveRequests(t, func(req wire.Request) wire.Reply { return answer(req.Op) })
}

func serveRequests(t *testing.T, answer func(wire.Request) wire.Reply) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gresd.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if req, err := wire.ReadRequest(bufio.NewReader(conn)); err == nil {
				_ = wire.WriteReply(conn, answer(req))
			}
			conn.Close()
		}
	}()
	return path
}

func TestStatusAndJobs(t *testing.T) {
	socket := serve(t, exampleReply)
	out, errs, code := run(t, "--socket", socket, "status")
	if code != 0 || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	narrow(t, out)
	for _, want := range []string{"gresd 1.2.3 on n1: ready, up 1h0m", "100/141G", "62%", "12, 3 throttled", "out", uuid, "problem: card 2: lost", "card 2: 282 GiB are shared out, of which the card has 141 GiB"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out, errs, code = run(t, "--socket", socket, "jobs")
	if code != 0 || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	narrow(t, out)
	for _, want := range []string{"100/141G", "?/20G", "30%/20%", "31%", "12%", "job 1234567: of its limit 20 GiB, card 2 has 10 GiB", "soft:80", "1h2m3.5s", "14 ms gate", "refused", "job 9: vgpu: request"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out, _, code = run(t, "jobs", "--json", "--socket", socket)
	var jobs []wire.Job
	if err := json.Unmarshal([]byte(out), &jobs); err != nil || code != 0 || len(jobs) != 2 || jobs[0].JobID != 1234567 {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
}

func TestSet(t *testing.T) {
	socket := serveRequests(t, func(req wire.Request) wire.Reply {
		if req.Op != wire.OpSet || req.JobID != 7 || req.Cores != 20 {
			return wire.Reply{Kind: wire.KindUser, Message: "vgpu: set: another request"}
		}
		return wire.Reply{OK: true, Result: wire.Changed, Message: "job 7: compute share 20 %"}
	})
	if out, errs, code := run(t, "--socket", socket, "set", "7", "--cores", "20"); code != 0 || out != "job 7: compute share 20 %\n" {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		say  string
	}{
		"no cores":        {[]string{"set", "7"}, 2, "cores"},
		"no job":          {[]string{"set", "--cores", "20"}, 2, "want vgpuctl set JOB"},
		"a job's name":    {[]string{"set", "7_1", "--cores", "20"}, 2, "want the number of a job, for example 4217"},
		"below nothing":   {[]string{"set", "7", "--cores", "-1"}, 2, "-1"},
		"a refusal":       {[]string{"set", "7", "--cores", "21"}, 1, "another request"},
		"more than cards": {[]string{"set", "7", "--cores", "101"}, 1, "101: want 1 to 100"},
	} {
		if out, errs, code := run(t, append([]string{"--socket", socket}, c.args...)...); code != c.code || out != "" || !strings.Contains(errs, c.say) {
			t.Errorf("%s: exit %d, %q; want %d, %q", name, code, errs, c.code, c.say)
		}
	}
}

func TestNoJobsIsAnEmptyList(t *testing.T) {
	socket := serve(t, func(wire.Op) wire.Reply { return wire.Reply{OK: true} })
	if out, _, code := run(t, "jobs", "--json", "--socket", socket); code != 0 || strings.TrimSpace(out) != "[]" {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestExitStatus(t *testing.T) {
	refusing := serve(t, func(wire.Op) wire.Reply { return wire.Reply{Kind: wire.KindUser, Message: "vgpu: gresd: no"} })
	for name, c := range map[string]struct {
		args []string
		code int
		say  string
	}{
		"no command":         {nil, 2, "want a command"},
		"unknown command":    {[]string{"drop"}, 2, `"drop": unknown command`},
		"unknown flag":       {[]string{"status", "--yes"}, 2, "unknown flag: --yes"},
		"no file":            {[]string{"inspect"}, 2, "inspect FILE"},
		"gresd not running":  {[]string{"status", "--socket", "/nonexistent/s"}, 1, "is gresd running"},
		"gresd says no":      {[]string{"status", "--socket", refusing}, 1, "vgpu: gresd: no"},
		"absent file":        {[]string{"inspect", "/nonexistent/grant"}, 1, "no such file"},
		"file of some kind":  {[]string{"inspect", "main.go"}, 1, "neither a grant nor a cache"},
		"absent config file": {[]string{"check-config", "/nonexistent/vgpu.toml"}, 1, "no such file"},
	} {
		out, errs, code := run(t, c.args...)
		if code != c.code || !strings.Contains(errs, c.say) || out != "" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q; want %d and %q", name, code, out, errs, c.code, c.say)
		}
	}
}

func TestInspect(t *testing.T) {
	dir := t.TempDir()
	spec := libvgpu.GrantSpec{JobID: 7, UID: 33, GID: 33, Cards: []libvgpu.GrantCard{
		{UUID: uuid, MemLimit: 8 << 30, MemPhysical: 4 << 30, MemOverhead: 500 << 20, Share: 30, Cores: 25, Mode: libvgpu.ModeSoft, Ceiling: 80, Priority: libvgpu.PrioHigh},
	}}
	g, err := libvgpu.CreateGrant(filepath.Join(dir, "grant"), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	g.SetSchedule(0, libvgpu.Schedule{SliceUS: 6000, Gate: 1, WeightPPM: 300000, BusyProcs: 1, Others: 1, Cores: 25})
	if err := libvgpu.CreateCache(filepath.Join(dir, "cache"), spec, 0, 0); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string][]string{
		"grant": {"job id                        7\n", "  memory limit bytes          8 GiB\n  memory physical bytes       4 GiB\n", "mode                        soft\n  ceiling                     80%\n", "high", "slice us                    6000\n", "weight ppm                  300000\n", uuid},
		"cache": {"kind                          cache\njob id                        7\ncards 0\n", "0 B", "8 GiB", uuid},
	} {
		out, errs, code := run(t, "inspect", filepath.Join(dir, file))
		if code != 0 {
			t.Fatalf("exit %d: %s", code, errs)
		}
		narrow(t, out)
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s: no %q in\n%s", file, w, out)
			}
		}
		out, _, _ = run(t, "inspect", "--json", filepath.Join(dir, file))
		var v struct {
			Kind  string
			JobID uint32 `json:"job_id"`
			Cards []struct {
				UUID string `json:"gpu_uuid"`
			}
		}
		if err := json.Unmarshal([]byte(out), &v); err != nil || v.Kind != file || v.JobID != 7 || v.Cards[0].UUID != uuid {
			t.Errorf("%s: %v in\n%s", file, err, out)
		}
	}
}

// hamiFile is a shared region of HAMi-core 1.2 with one card and two processes.
func hamiFile(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(max(2008953, fileSize(t, path))); err != nil {
		t.Fatal(err)
	}
	const proc = 1856
	for at, value := range map[int64]any{
		0: []int32{19920718, 1, 2}, 56: uint64(1), 64: []byte(uuid), 1600: uint64(4 << 30), 1728: uint64(30),
		proc: int32(41), proc + 4: int32(141), proc + 8: []uint64{1 << 20, 2 << 20, 3 << 20, 0, 6 << 20}, proc + 1176: uint64(17), proc + 1928: int32(1),
		proc + 1960: int32(42), proc + 1960 + 8: []uint64{0, 0, 5 << 20, 0, 5 << 20}, proc + 1960 + 1928: int32(2),
		2008896: []int32{2, 1, 2, 0}, 2008912: uint64(1700000000),
	} {
		b, err := binary.Append(nil, binary.NativeEndian, value)
		if err == nil {
			_, err = f.WriteAt(b, at)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestInspectHAMi(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cudevshr.cache")
	hamiFile(t, path)
	out, errs, code := run(t, "inspect", path)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	narrow(t, out)
	for _, want := range []string{
		"version                       1.2\npriority                      high\nsm limit in force             true\n", "last kernel                   2023-11-1",
		"cards 0\n  gpu uuid                    " + uuid + "\n  memory limit bytes          4 GiB\n  memory used bytes           11 MiB\n  sm limit percent            30%\n",
		"  pid                         41\n  host pid                    141\n  status                      running\n", "    data bytes                3 MiB\n", "sm percent                17%\n", "suspended",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out, _, _ = run(t, "inspect", "--json", path)
	var v struct {
		Kind  string
		Cards []struct {
			UUID string `json:"gpu_uuid"`
		}
		Processes []struct {
			Cards []struct {
				Data uint64 `json:"data_bytes"`
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || v.Kind != "hami" || len(v.Processes) != 2 || v.Processes[0].Cards[0].Data != 3<<20 || v.Cards[0].UUID != uuid {
		t.Errorf("%v in\n%s", err, out)
	}

	// Our own cache has the same view at its head; it is shown as what it is.
	own := filepath.Join(t.TempDir(), "cache")
	spec := libvgpu.GrantSpec{JobID: 7, Cards: []libvgpu.GrantCard{{UUID: uuid, MemLimit: 8 << 30}}}
	if err := libvgpu.CreateCache(own, spec, 0, 0); err != nil {
		t.Fatal(err)
	}
	hamiFile(t, own)
	if out, _, code = run(t, "inspect", own); code != 0 || !strings.HasPrefix(out, "kind                          cache\n") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestCheckConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vgpu.toml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("version = 1\n")
	if out, errs, code := run(t, "check-config", path); code != 0 || out != path+": ok\n" {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	write("version = 1\n[placement]\nmode = \"slurm\"\n")
	old := path + `:3: placement.mode: old key: want by = "slurm"`
	if out, errs, code := run(t, "check-config", path); code != 0 || out != path+": ok\nwarning: "+old+"\n" {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	if out, _, code := run(t, "--json", "check-config", path); code != 0 || !strings.Contains(out, `"warnings": [`) {
		t.Errorf("exit %d: %s", code, out)
	}
	write("version = 1\n[paths]\nrundir = \"/x\"\n")
	out, errs, code := run(t, "check-config", path)
	if code != 1 || out != "" || !strings.Contains(errs, "rundir") {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	out, _, code = run(t, "--json", "check-config", path)
	var v struct {
		OK    bool
		Error string
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 1 || v.OK || !strings.Contains(v.Error, "rundir") {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
}
