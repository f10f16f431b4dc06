// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// A report is there while the job runs, also where users log in, and after its end on its node, for
// its user and root alone, and outlives gresd.
func TestReportOfAJob(t *testing.T) {
	s := up(t, oneCard)
	l := s.login()
	job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", "until [ -e go ]; do sleep 0.1; done; "+cluster.Worker+" --alloc 3G --saturate 1 && sleep 300")
	s.running(job)
	id := fmt.Sprint(job)
	if out := l.as(0, alice, "vgpuctl", "report", id, "--text"); !strings.Contains(out, "30% of the card, 8 GiB") || !strings.Contains(out, "runs") {
		t.Errorf("while it runs: %s", out)
	}
	l.as(1, bob, "vgpuctl", "report", id)
	if r := s.As(alice, "touch", "go"); r.Code != 0 {
		t.Fatal(r)
	}
	read := func(user string) (r wire.Report, err error) {
		var reports []wire.Report
		answer := s.As(user, "vgpuctl", "report", id, "--json")
		if answer.Code != 0 {
			return r, fmt.Errorf("%s", answer)
		}
		if err := json.Unmarshal([]byte(answer.Out), &reports); err != nil || len(reports) != 1 {
			t.Fatalf("%v: %s", err, answer)
		}
		return reports[0], nil
	}
	s.eventually(shortWait, "3 GiB were in use", func() bool {
		r, err := read(alice)
		return err == nil && r.Cards[0].PeakBytes >= 3*gib && r.Job.Cards[0].GPUSeconds != nil && *r.Job.Cards[0].GPUSeconds > 0
	})
	s.cancel(alice, job)
	for _, when := range []string{"after its end", "after gresd was started anew"} {
		for _, user := range []string{alice, "root"} {
			r, err := read(user)
			if err != nil || r.Ended == nil || r.Job.Cards[0].Share != 30 || r.Cards[0].PeakBytes < 3*gib || r.Cards[0].PeakBytes > 4*gib {
				t.Errorf("%s, %s: %v: %+v", when, user, err, r)
			}
		}
		if _, err := read(bob); err == nil || !strings.Contains(err.Error(), "none of yours") {
			t.Errorf("%s: %s reads the report of %s: %v", when, bob, alice, err)
		}
		s.Gresd.Stop()
		if err := s.Gresd.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if r := s.As(alice, "vgpuctl", "report", id); r.Code != 0 || !strings.HasPrefix(s.File(alice, "vgpu-report-"+id+".html"), "<!DOCTYPE html>") {
		t.Errorf("the page: %s", r)
	}
	if out := l.as(1, alice, "vgpuctl", "report", id); !strings.Contains(out, "srun --nodelist=NODE") {
		t.Errorf("where users log in, after its end: %s", out)
	}
}
