// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// badRequests are refused with one line that has what was asked, what is
// possible, and an example.
var badRequests = []struct {
	name     string
	args     string
	asked    string // what the line must repeat
	possible string // what it must offer
	example  string
}{
	{"share of zero", "--gres=vgpu:0", `"0"`, "1 to 100", "--gres=vgpu:"},
	{"share above one card", "--gres=vgpu:101", `"101"`, "1 to 100", "--gres=vgpu:"},
	{"negative share", "--gres=vgpu:-5", `"-5"`, "1 to 100", "--gres=vgpu:"},
	{"memory with a fraction", "--gres=vgpu:30 --vgpu-mem=1.5g", "1.5g", "whole number", "8G"},
	{"memory larger than any card", "--gres=vgpu:30 --vgpu-mem=500G", "500G", "80", "--vgpu-mem="},
	{"no compute", "--gres=vgpu:30 --vgpu-cores=0", "--vgpu-cores", "1 to 100", "--vgpu-cores="},
	{"unknown mode", "--gres=vgpu:30 --vgpu-mode=turbo", "turbo", "hard", "--vgpu-mode="},
	{"option without a share", "--vgpu-mem=8G", "--vgpu-mem", "--gres=vgpu", "--gres=vgpu:"},
}

func TestBadRequestsAreRefusedAtSubmit(t *testing.T) {
	s := up(t, cluster.Options{})
	// A job runs beside, so that there is a state that could change.
	beside := s.submit(alice, "--gres=vgpu:20", "sleep 300")
	s.running(beside)
	before, err := s.Ledger()
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range badRequests {
		args := strings.Fields(bad.args)
		mark := fmt.Sprintf("%s/ran.%d", s.Home(bob), time.Now().UnixNano())
		for _, run := range []struct {
			client string
			result func() cluster.Result
		}{
			{"sbatch", func() cluster.Result { return s.TrySbatch(bob, args, "touch "+mark) }},
			{"srun", func() cluster.Result {
				return s.As(bob, append(append([]string{"srun", "--immediate=30"}, args...), "touch", mark)...)
			}},
			{"salloc", func() cluster.Result {
				return s.As(bob, append(append([]string{"salloc", "--immediate=30"}, args...), "touch", mark)...)
			}},
		} {
			t.Run(bad.name+", "+run.client, func(t *testing.T) {
				r := run.result()
				if r.Code == 0 {
					t.Errorf("accepted: %s", r)
				}
				checkLine(t, r.Err, "vgpu: ", bad.asked, bad.possible, bad.example, "for example")
				if queue, err := s.Queue(); err != nil || len(queue) != 1 {
					t.Errorf("queue: %v, %v; want only job %d", queue, err, beside)
				}
				if _, err := os.Stat(mark); err == nil {
					t.Error("the program ran")
				}
				if state := s.NodeState(); state != "MIXED" {
					t.Errorf("node: %s, want MIXED", state)
				}
			})
		}
	}
	if after, err := s.Ledger(); err != nil || after != before {
		t.Errorf("the ledger changed (%v)\nbefore: %s\nafter:  %s", err, before, after)
	}
	s.cancel(alice, beside)
}

// checkLine wants exactly one line of ours, known by its mark, with all of the
// parts in it.
func checkLine(t *testing.T, text, mark string, parts ...string) {
	t.Helper()
	var ours []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, mark) {
			ours = append(ours, line)
		}
	}
	if len(ours) != 1 {
		t.Errorf("%d lines from vgpu, want 1:\n%s", len(ours), text)
		return
	}
	for _, part := range parts {
		if !strings.Contains(ours[0], part) {
			t.Errorf("line lacks %q: %s", part, ours[0])
		}
	}
}

func TestBadConfigurationIsRefusedAtStart(t *testing.T) {
	s := up(t, cluster.Options{})
	job := s.submit(alice, "--gres=vgpu:20", "sleep 300")
	s.running(job)
	before, err := s.Ledger()
	if err != nil {
		t.Fatal(err)
	}
	s.Gresd.Stop()
	good := s.Config()
	for _, bad := range []struct {
		name, text string
		parts      []string
	}{
		{"unknown key", "[limits]\nmax_memory = \"64G\"\n", []string{"max_memory", "max_mem?"}},
		{"bad unit", "[limits]\nmax_mem = \"64X\"\n", []string{"64X", "K, M, G", "for example"}},
	} {
		t.Run(bad.name, func(t *testing.T) {
			if err := s.SetConfig(good + bad.text); err != nil {
				t.Fatal(err)
			}
			from := s.Gresd.LogSize()
			if err := s.Gresd.Start(); err == nil {
				t.Error("gresd started")
				s.Gresd.Stop()
			}
			log := s.Gresd.LogFrom(from)
			if strings.Count(log, "\n") != 1 {
				t.Errorf("want one line:\n%s", log)
			}
			checkLine(t, log, "/etc/vgpu/vgpu.toml:", bad.parts...)
			if after, err := s.Ledger(); err != nil || after != before {
				t.Errorf("the ledger changed (%v)\nbefore: %s\nafter:  %s", err, before, after)
			}
		})
	}
	if state := s.NodeState(); state != "MIXED" {
		t.Errorf("node: %s, want MIXED", state)
	}
	if err := s.SetConfig(good); err != nil {
		t.Fatal(err)
	}
	if err := s.Gresd.Start(); err != nil {
		t.Fatal(err)
	}
	s.cancel(alice, job)
}
