// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// billed is what Slurm's records say that a job costs in each minute.
func (s site) billed(job int) string {
	s.t.Helper()
	facts, err := s.Sacct(fmt.Sprint(job), shortWait, func(f map[string]string) bool {
		return f["State"] == "COMPLETED" && strings.Contains(f["AllocTRES"], "billing=")
	}, "State", "AllocTRES")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, word := range strings.Split(facts["AllocTRES"], ",") {
		if n, is := strings.CutPrefix(word, "billing="); is {
			return n
		}
	}
	return ""
}

// The example of docs/accounting.md: a card costs 100, a CPU 2.
func testBilling(t *testing.T, s site) {
	weights := func(text string) {
		t.Helper()
		if _, err := s.Scontrol("update", "PartitionName=main", "TRESBillingWeights="+text); err != nil {
			t.Fatal(err)
		}
	}
	weights("CPU=2.0,GRES/vgpu=1.0")
	defer weights("CPU=1.0") // as where nothing is said
	s.sacctmgr("modify", "qos", "normal", "set", "MaxTRESPerJob=gres/vgpu=-1")
	for args, want := range map[string]string{
		"--gres=vgpu:30":                "32",
		"--gres=vgpu:30 -c 4":           "38",
		"--gres=vgpu:10 --vgpu-mem=60%": "62", // nobody else has room in the memory that it takes
		"--gres=vgpu:200":               "202",
		"":                              "2",
	} {
		job := s.submit(alice, args, "true")
		s.completed(alice, job)
		if got := s.billed(job); got != want {
			t.Errorf("%s: billed %s, want %s", args, got, want)
		}
	}
	// What runs at a time may cost so much to its end.
	s.sacctmgr("modify", "account", "research", "set", "GrpTRESRunMins=billing=1000")
	first := s.submit(alice, "--gres=vgpu:30 --time=10", "sleep 300")
	s.running(first)
	second := s.submit(bob, "--gres=vgpu:30 --time=30", "sleep 300")
	s.waitsFor(second, "AssocGrpBillingRunMinutes")
	s.cancel(alice, first)
	s.running(second)
	s.cancel(bob, second)
	s.sacctmgr("modify", "account", "research", "set", "GrpTRESRunMins=billing=-1")
}
