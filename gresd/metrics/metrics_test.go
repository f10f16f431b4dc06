// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

var update = flag.Bool("update", false, "write the golden file anew")

func ptr[T any](v T) *T { return &v }

func example() ([]wire.Card, []wire.Job) {
	cards := []wire.Card{
		{UUID: "GPU-a", Index: 0, Name: "NVIDIA H200", Type: "h200", Healthy: true, MemoryBytes: 150 << 30, PhysicalBytes: 100 << 30, GrantedBytes: 60 << 30, Share: 80, Cores: 75, Jobs: 2},
		{UUID: "GPU-b", Index: 1, Name: "NVIDIA H200", Type: "h200", MemoryBytes: 150 << 30, PhysicalBytes: 150 << 30},
	}
	jobs := []wire.Job{
		{JobID: 7, User: "ann", Account: "phys", Partition: "main", Cards: []wire.JobCard{{
			UUID: "GPU-a", Share: 30, Cores: 25, LimitBytes: 20 << 30, PhysicalBytes: 10 << 30,
			UsedBytes: ptr(uint64(5 << 30)), GPUSeconds: ptr(12.5), Processes: ptr(2),
		}}},
		// The cache of this job could not be read.
		{JobID: 8, User: "bob\xff", Partition: "main", Cards: []wire.JobCard{{UUID: "GPU-a", Share: 50, Cores: 50, LimitBytes: 40 << 30, PhysicalBytes: 40 << 30}}},
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
	return m
}

func TestGolden(t *testing.T) {
	m := newExample()
	names := []string{
		"vgpu_card_share_ratio", "vgpu_card_cores_ratio", "vgpu_card_memory_granted_bytes", "vgpu_card_memory_bytes",
		"vgpu_card_memory_physical_bytes", "vgpu_job_memory_physical_bytes",
		"vgpu_card_jobs", "vgpu_card_healthy", "vgpu_card_info", "vgpu_job_share_ratio", "vgpu_job_cores_ratio",
		"vgpu_job_memory_used_bytes", "vgpu_job_memory_limit_bytes", "vgpu_job_gpu_seconds_total",
		"vgpu_job_processes", "vgpu_placements_total", "vgpu_placement_cards_total", "vgpu_audit_events_total", "vgpu_grant_duration_seconds",
	}
	const golden = "testdata/metrics.golden"
	if *update {
		text := scrape(t, m)
		var kept strings.Builder
		for line := range strings.Lines(text) {
			if !strings.Contains(line, "vgpu_build_info") { // holds the Go version
				kept.WriteString(line)
			}
		}
		if err := os.WriteFile(golden, []byte(kept.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.Open(golden)
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	if err := testutil.GatherAndCompare(m.Gatherer(), want, names...); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(m.Gatherer())
	if err != nil || len(problems) != 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}

func TestUnknownIsAbsent(t *testing.T) {
	text := scrape(t, newExample())
	for _, name := range []string{"vgpu_job_memory_used_bytes", "vgpu_job_gpu_seconds_total", "vgpu_job_processes"} {
		if strings.Contains(text, name+`{account="",gpu_uuid="GPU-a",job_id="8"`) {
			t.Errorf("%s of a job whose cache cannot be read", name)
		}
	}
	if !strings.Contains(text, `vgpu_build_info{driver_version="580.1"`) {
		t.Error("no build info")
	}
}

func TestServeRefusesTheNetwork(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":9464", "192.0.2.1:9464", "example.org:1", "127.0.0.1"} {
		if err := New("1", "").Serve(t.Context(), address); err == nil {
			t.Errorf("%s: served", address)
		}
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
	go func() { served <- m.serve(ctx, listener) }()
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
