// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

func exampleCluster() ([]slurm.NodeGRES, []slurm.ClusterJob) {
	node := func(name, state, reason, comment string) slurm.NodeGRES {
		return slurm.NodeGRES{
			Name: name, NodeFacts: slurm.NodeFacts{State: state, Reason: reason, Comment: comment},
			Types: []string{"h200", "h200", "whole"}, Shared: []bool{true, true, false},
		}
	}
	counted := node("n4", "IDLE", "", "")
	counted.Counted, counted.Shared = true, []bool{true, true, true}
	nodes := []slurm.NodeGRES{
		node("n1", "MIXED", "", "vgpu: card 1: cordoned: card 0: the fan"),
		node("n2", "IDLE+DRAIN", "disk card 0: x", ""),
		node("n3", "IDLE+CLOUD+POWERED_DOWN", "", "card 0: of an administrator"),
		counted,
	}
	held := func(units map[int]gpu.Share) slurm.JobFacts { return slurm.JobFacts{Units: units} }
	return nodes, []slurm.ClusterJob{
		{JobID: 1, User: "ada", State: "RUNNING", On: map[string]slurm.JobFacts{"n1": held(map[int]gpu.Share{0: 70}), "n3": held(map[int]gpu.Share{1: 10})}},
		{JobID: 2, User: "ada", State: "RUNNING", On: map[string]slurm.JobFacts{"n3": {WholeCards: []int{0, 2}}}},
		{JobID: 3, User: "ada", State: "RUNNING", On: map[string]slurm.JobFacts{"n4": {Counted: 80}}},
		{JobID: 4, User: "bob", State: "PENDING", Reason: "Resources", TresPerNode: "gres/shard:90"},
		{JobID: 5, User: "bob", State: "PENDING", Reason: "Resources", TresPerNode: "gres:shard:91"},
		{JobID: 6, User: "eve\x1b", State: "PENDING", Reason: "Priority", TresPerNode: "gres:shard:5"},
	}
}

func TestClusterIsCounted(t *testing.T) {
	nodes, jobs := exampleCluster()
	v := viewCluster(nodes, jobs, "")
	var out bytes.Buffer
	if err := writeCluster(&out, false, v); err != nil {
		t.Fatal(err)
	}
	narrow(t, out.String())
	for _, want := range []string{
		"nodes with cards: 4, usable 3; cards: 9, usable 6",
		"shares given: 2.60 of a card, free: 3.40",
		"25%      4        0%", "50%      1        25%", "100%     0        100%",
		"n1    MIXED                    h200        1     30%   30%      70 0!",
		"n2    IDLE+DRAIN               h200        0     0%    0%       0 0",
		"n3    IDLE+CLOUD+POWERED_DOWN  h200        2     90%   90%      100 10",
		"n4    IDLE                     h200,whole  1     220%  ?        80 of 300 on 3 cards",
		"n1: vgpu: card 1: cordoned", "n2: disk card 0: x",
		"jobs that wait for a share: 3\nUSER  JOBS  FOR EXAMPLE  REASON\nbob   2     shard:90     Resources\neve?  1",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "of an administrator") {
		t.Errorf("a comment that is not gresd's: %s", &out)
	}
	if v := viewCluster(nodes, jobs, "ada"); len(v.Waiting) != 0 {
		t.Errorf("ada is told who waits: %+v", v.Waiting)
	}
}

// BenchmarkCluster is a thousand nodes and ten thousand jobs: what is ours of vgpuctl nodes, but for
// reading the text.
func BenchmarkCluster(b *testing.B) {
	var nodes []slurm.NodeGRES
	var jobs []slurm.ClusterJob
	example, _ := exampleCluster()
	for i := range 1000 {
		n := example[0]
		n.Name = fmt.Sprint("n", i)
		nodes = append(nodes, n)
	}
	for i := range 10000 {
		jobs = append(jobs, slurm.ClusterJob{JobID: uint32(i), User: "ada", On: map[string]slurm.JobFacts{fmt.Sprint("n", i%1000): {Units: map[int]gpu.Share{0: 10}}}})
	}
	for b.Loop() {
		viewCluster(nodes, jobs, "")
	}
}
