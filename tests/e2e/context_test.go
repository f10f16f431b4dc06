// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// learnedCost is gresd's log line for a cost that it has measured.
const learnedCost = `msg="context cost"`

// What a context costs is measured once in the life of a node.
func TestContextCostIsLearnedOnce(t *testing.T) {
	s := up(t, oneCard)
	file := filepath.Join(cluster.Dir, "state/vgpu/context.json")
	var learned uint64
	read := func() uint64 {
		text, err := os.ReadFile(file)
		var figures map[string]struct {
			Context   uint64 `json:"context_bytes"`
			Uncounted uint64 `json:"uncounted_bytes"`
			Idle      bool   `json:"idle"`
		}
		if err != nil || json.Unmarshal(text, &figures) != nil || len(figures) != 1 {
			return 0
		}
		for _, f := range figures {
			if f.Idle {
				return f.Context + f.Uncounted
			}
		}
		return 0
	}
	s.eventually(shortWait, "the cost is learned", func() bool { learned = read(); return learned > 0 })
	if n := strings.Count(s.Gresd.LogFrom(0), learnedCost); n != 1 {
		t.Errorf("learned %d times, want once:\n%s", n, s.Gresd.LogFrom(0))
	}
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}

	// charged is what a job's grant says, and the job's first context takes.
	charged := func() {
		t.Helper()
		job := s.submit(alice, "--gres=vgpu:30 --vgpu-mem=8G", cluster.Worker+" --report --hold 300")
		s.running(job)
		if got := s.inspect(job, "grant").Cards[0].Context; got != learned {
			t.Errorf("grant: a context costs %d bytes, want the %d that were learned", got, learned)
		}
		s.eventually(shortWait, "the job's context is charged", func() bool {
			return s.inspect(job, "cache").Cards[0].Context > 0
		})
		// The first module makes a context grow, by no more than this.
		const grows = 64 << 20
		if got := s.inspect(job, "cache").Cards[0].Context; got < learned || got > learned+grows {
			t.Errorf("cache: the context is charged %d bytes, want %d", got, learned)
		}
		s.cancel(alice, job)
	}
	charged()
	restart := func() (log string) {
		t.Helper()
		size := s.Gresd.LogSize()
		s.Gresd.Kill()
		if err := s.Gresd.Start(); err != nil {
			t.Fatal(err)
		}
		charged() // a grant waits for the first try
		return s.Gresd.LogFrom(size)
	}
	if log := restart(); strings.Contains(log, learnedCost) {
		t.Errorf("learned again after a restart:\n%s", log)
	}
	if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("%s was written again, %v", file, err)
	}
	// A node that forgot learns it anew.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if log := restart(); strings.Count(log, learnedCost) != 1 || read() != learned {
		t.Errorf("not learned again after %s was lost:\n%s", file, log)
	}
}
