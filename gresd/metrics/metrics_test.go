// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

var update = flag.Bool("update", false, "write the golden file anew")

func ptr[T any](v T) *T { return &v }

func example() ([]wire.Card, []wire.Job) {
	cards := []wire.Card{
		{
			UUID: "GPU-a", Index: 0, Name: "NVIDIA H200", Type: "h200", Healthy: true, Slices: "obeyed", MemoryBytes: 150 << 30, PhysicalBytes: 100 << 30,
			GrantedBytes: 60 << 30, Share: 80, Cores: 75, Jobs: 2,
			CardUse: wire.CardUse{UsedBytes: ptr(uint64(7 << 30)), Utilization: ptr(0.93), MemoryUtilization: ptr(0.4)},
		},
		// The driver does not answer for this one.
		{UUID: "GPU-b", Index: 1, Name: "NVIDIA H200", Type: "h200", MemoryBytes: 150 << 30, PhysicalBytes: 150 << 30},
		{UUID: "GPU-c", Index: 2, Name: "NVIDIA H200", Type: "h200", Healthy: true, Slices: "ignored", MemoryBytes: 150 << 30, PhysicalBytes: 150 << 30, GrantedBytes: 45 << 30, Share: 30, Cores: 30, Jobs: 1},
		{UUID: "GPU-d", Index: 3, Name: "NVIDIA A100", Type: "a100", Healthy: true, MemoryBytes: 150 << 30, PhysicalBytes: 150 << 30, CardUse: wire.CardUse{MIG: true}},
	}
	jobs := []wire.Job{
		{JobID: 7, User: "ann", Account: "phys", Partition: "main", Created: time.Unix(1700000000, 0), Cards: []wire.JobCard{{
			UUID: "GPU-a", Share: 30, Cores: 25, LimitBytes: 20 << 30, PhysicalBytes: 10 << 30,
			UsedBytes: ptr(uint64(5 << 30)), GPUSeconds: ptr(12.5), Processes: ptr(2),
			JobUse: wire.JobUse{
				AskedShare: 20, AskedCores: 25, AskedBytes: ptr(uint64(20 << 30)),
				ContextBytes: ptr(uint64(1 << 30)), ModuleBytes: ptr(uint64(1 << 20)),
				LaunchesThrottled: ptr(uint64(40)), ThrottledSeconds: ptr(0.25), Refused: ptr(uint64(3)),
				Utilization: ptr(0.24), Turns: ptr(uint64(900)), IdleSeconds: ptr(1.5), Busy: ptr(true), LastWork: ptr(time.Unix(1700000100, 5e8)),
				LimitedBy: "neighbors", Had: ptr(0.125), DeprivedSeconds: ptr(14.5),
				ByProcess: []wire.Process{
					{PID: 4711, JobPID: 1, UsedBytes: 4 << 30, Utilization: ptr(0.2)},
					{PID: 4712, JobPID: 2, UsedBytes: 1 << 30}, // the driver does not tell
					{JobPID: 3, UsedBytes: 1 << 30},            // nobody knows who it is
				},
			},
		}}},
		// The cache of this job could not be read.
		{JobID: 8, User: "bob\xff", Partition: "main", Created: time.Unix(1700000001, 0), Cards: []wire.JobCard{{
			UUID: "GPU-a", Share: 50, Cores: 50, LimitBytes: 40 << 30, PhysicalBytes: 40 << 30, JobUse: wire.JobUse{AskedShare: 50, AskedCores: 50},
		}}},
		// It has its share, and does nothing.
		{JobID: 9, User: "cy", Partition: "main", Created: time.Unix(1700000002, 0), Cards: []wire.JobCard{{
			UUID: "GPU-c", Share: 30, Cores: 30, LimitBytes: 45 << 30, PhysicalBytes: 45 << 30, UsedBytes: ptr(uint64(0)), GPUSeconds: ptr(0.0), Processes: ptr(0),
			JobUse: wire.JobUse{AskedShare: 30, AskedCores: 30, IdleSeconds: ptr(60.0), Busy: ptr(false), Utilization: ptr(0.0)},
		}}},
	}
	return cards, jobs
}

func newExample() *Metrics {
	m := New("1.0", "580.1")
	m.Watch(example)
	m.Placed("granted")
	m.Placed("granted")
	m.Placed("refused")
	m.CardDecided("taken")
	m.CardDecided("no_share")
	m.CardDecided("no_share")
	m.Audited("unregistered")
	m.GrantTook(3 * time.Millisecond)
	m.ReleaseTook(time.Millisecond)
	m.SampleTook(2 * time.Millisecond)
	m.SlurmTook("scontrol", 8*time.Millisecond)
	m.Corrected("released")
	m.Reconciled(20*time.Millisecond, false)
	m.reconciled.WithLabelValues().Set(1700000200)
	m.Reloaded(true, true)
	m.Reloaded(false, false)
	return m
}

// withoutBuild leaves out what differs from one Go to the next.
func withoutBuild(text string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "vgpu_build_info") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

func TestGolden(t *testing.T) {
	m := newExample()
	const golden = "testdata/metrics.golden"
	got := withoutBuild(scrape(t, m))
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the scrape differs from %s (go test -update writes it anew, then look at the difference):\n%s", golden, got)
	}
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil || len(problems) != 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

// What Prometheus itself says of the scrape, where its tool is installed.
func TestPromtoolFindsNothing(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian package prometheus); TestGolden runs the same rules")
	}
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(scrape(t, newExample()))
	if out, err := cmd.CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("promtool check metrics: %v: %s", err, out)
	}
}

func TestUnknownIsAbsent(t *testing.T) {
	text := scrape(t, newExample())
	for _, name := range []string{
		"memory_used_bytes", "memory_context_bytes", "memory_module_bytes", "memory_asked_bytes", "gpu_seconds_total", "processes", "utilization_ratio",
		"launches_throttled_total", "throttled_seconds_total", "allocations_refused_total", "turns_total", "idle_seconds_total", "last_work_timestamp_seconds",
		"had_ratio", "deprived_seconds",
	} {
		if strings.Contains(text, "vgpu_job_"+name+`{account="",gpu_uuid="GPU-a",job_id="8"`) {
			t.Errorf("%s of a job whose cache cannot be read", name)
		}
		if name != "memory_asked_bytes" && !strings.Contains(text, "vgpu_job_"+name+`{account="phys",gpu_uuid="GPU-a",job_id="7"`) {
			t.Errorf("no %s of a job that is known", name)
		}
	}
	for _, line := range []string{
		`vgpu_card_utilization_ratio{gpu_uuid="GPU-b"`, `vgpu_card_memory_used_bytes{gpu_uuid="GPU-b"`,
		`vgpu_card_share_idle_ratio{gpu_uuid="GPU-a"`, // of job 8 nobody knows
		`pid="4712",user="ann"} 0`, `pid="0"`,
	} {
		if strings.Contains(text, line) {
			t.Errorf("there is %s", line)
		}
	}
	fresh := scrape(t, New("1.0", ""))
	for _, name := range []string{"vgpu_reconcile_last_success_timestamp_seconds", "vgpu_config_last_reload_successful", "vgpu_config_restart_needed"} {
		if strings.Contains(fresh, name) {
			t.Errorf("%s before the first", name)
		}
	}
	if !strings.Contains(text, `vgpu_build_info{driver_version="580.1"`) {
		t.Error("no build info")
	}
}

func TestServeRefusesTheNetwork(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":9464", "192.0.2.1:9464", "example.org:1", "127.0.0.1"} {
		if err := New("1", "").Serve(t.Context(), address, false); err == nil {
			t.Errorf("%s: served", address)
		}
	}
}

// What every user of the node can read names nobody, and lacks nothing else.
func TestPublicSeriesNameNobody(t *testing.T) {
	m := newExample()
	all, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	public, err := m.public.Gather()
	if err != nil {
		t.Fatal(err)
	}
	private := func(f *dto.MetricFamily) bool {
		for _, metric := range f.GetMetric() {
			for _, l := range metric.GetLabel() {
				if slices.Contains([]string{"job_id", "user", "account", "partition", "pid"}, l.GetName()) {
					return true
				}
			}
		}
		return false
	}
	if slices.ContainsFunc(public, private) {
		t.Error("a public series names a job, a user or a process")
	}
	names := func(of []*dto.MetricFamily) (names []string) {
		for _, f := range of {
			names = append(names, f.GetName())
		}
		return names
	}
	if got, want := names(public), names(slices.DeleteFunc(all, private)); !slices.Equal(got, want) {
		t.Errorf("public are %q, want %q", got, want)
	}
}

func TestSocketOfAllSeriesIsForAGroup(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.sock")
	if err := New("1", "").ServeAll(t.Context(), path, "no-such-group"); err == nil {
		t.Error("served for a group that does not exist")
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- newExample().ServeAll(ctx, path, "") }()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	var resp *http.Response
	var err error
	for range 1000 { // until it listens
		if resp, err = client.Get("http://gresd/metrics"); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(text), "job_id=") {
		t.Errorf("%v: no series of jobs in %s", err, text)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v: want 0660", info.Mode(), err)
	}
	client.CloseIdleConnections()
	cancel()
	if err := <-served; err != nil {
		t.Errorf("stop: %v", err)
	}
}

// scrape asks over HTTP, as Prometheus does.
func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveMetrics(ctx, listener, m.registry) }()
	resp, err := http.Get("http://" + listener.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v", resp.StatusCode, err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("stop: %v", err)
	}
	return string(text)
}

func TestFragmentation(t *testing.T) {
	card := func(share uint32, free uint64) wire.Card {
		return wire.Card{Healthy: true, MemoryBytes: 100, GrantedBytes: 100 - free, Share: share}
	}
	for name, c := range map[string]struct {
		cards []wire.Card
		share uint32
		want  value
	}{
		"an empty node":                    {[]wire.Card{card(0, 100), card(0, 100)}, 100, is(0)},
		"a full node":                      {[]wire.Card{card(100, 0)}, 25, value{}},
		"two halves are no whole":          {[]wire.Card{card(50, 50), card(50, 50)}, 100, is(1)},
		"two halves are halves":            {[]wire.Card{card(50, 50), card(50, 50)}, 50, is(0)},
		"a part of what is free":           {[]wire.Card{card(0, 100), card(75, 25)}, 50, is(0.2)},
		"share without memory":             {[]wire.Card{card(0, 10)}, 50, is(1)},
		"sick and MIG cards do not count":  {[]wire.Card{card(50, 50), {MemoryBytes: 100}, {Healthy: true, MemoryBytes: 100, CardUse: wire.CardUse{MIG: true}}}, 50, is(0)},
		"an over-granted card has no room": {[]wire.Card{{Healthy: true, MemoryBytes: 100, GrantedBytes: 130, Share: 130}}, 25, value{}},
		"no card":                          {nil, 25, value{}},
	} {
		if ratio, known := place.Fragmented(freeOf(c.cards), gpu.Share(c.share)); known != c.want.known || known && ratio != c.want.number {
			t.Errorf("%s: got %v, %v, want %+v", name, ratio, known, c.want)
		}
	}
}

func TestProfilesAreForRootOnThisHost(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":6060", "192.0.2.1:6060", "pprof.sock"} {
		if err := ServeProfiles(t.Context(), address); err == nil {
			t.Errorf("%s: served", address)
		}
	}
	path := filepath.Join(t.TempDir(), "pprof.sock")
	for range 2 { // also over the socket that a killed gresd left
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- ServeProfiles(ctx, path) }()
		client := http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", path)
			},
		}}
		var resp *http.Response
		var err error
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if resp, err = client.Get("http://gresd/debug/pprof/goroutine?debug=1"); err == nil {
				break
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), "goroutine profile") {
			t.Errorf("status %d, %v: %.80s", resp.StatusCode, err, text)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the socket: %v, %v", info.Mode(), err)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		// As a kill leaves it.
		left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		left.SetUnlinkOnClose(false)
		left.Close()
	}
}
