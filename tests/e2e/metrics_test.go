// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

func TestMetricsShowJobsWhileTheyRun(t *testing.T) {
	s := up(t, oneCard)
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", cluster.BusyScript(300))
	s.running(job)
	label := fmt.Sprintf("job_id=%q", fmt.Sprint(job))
	s.eventually(shortWait, "the metrics have the job", func() bool {
		return strings.Contains(metrics(t), label)
	})
	s.eventually(shortWait, "the job's memory is counted", func() bool {
		for line := range strings.Lines(metrics(t)) {
			if strings.Contains(line, label) && strings.Contains(line, "memory_used_bytes") {
				return !strings.HasSuffix(strings.TrimSpace(line), " 0")
			}
		}
		return false
	})
	// Slurm may keep jobs private: every user can read what is at the address.
	for _, user := range []string{alice, bob} {
		r := s.As(user, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9464; printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3; cat <&3")
		if !strings.Contains(r.Out, "vgpu_card_jobs{") || strings.Contains(r.Out, "job_id=") || strings.Contains(r.Out, alice) {
			t.Errorf("%s reads of the address: %s", user, r)
		}
	}
	if info, err := os.Stat(cluster.MetricsSocket); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("socket: %v, %v", info, err)
	}
	s.cancel(alice, job)
	s.eventually(shortWait, "the metrics forget the job", func() bool {
		return !strings.Contains(metrics(t), label)
	})
}

func metrics(t *testing.T) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: cluster.DialMetrics}}
	resp, err := client.Get(cluster.Metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", cluster.Metrics, resp.Status, err)
	}
	return string(body)
}
