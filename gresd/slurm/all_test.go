// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

func TestNodesWithCards(t *testing.T) {
	const text = `NodeName=n1 Arch=x86_64 CoresPerSocket=1
   AvailableFeatures=(null)
   Gres=gpu:sim:2(S:0),gpu:whole:1,shard:sim:200,vgpu:300
   State=MIXED+DRAIN ThreadsPerCore=1
   Comment=vgpu: card 0: lost
   Reason=a Gres=gpu:9 [root@2026-01-01T00:00:00]

NodeName=n2 CoresPerSocket=1
   Gres=(null)
   State=IDLE ThreadsPerCore=1

NodeName=n3 CoresPerSocket=1
   Gres=vgpu:h200:200,gpu:h200:2
   NodeAddr=10.0.0.3 NodeHostName=host3 Version=22.05.8
   State=IDLE*+CLOUD ThreadsPerCore=1
`
	client, _ := commands(t, map[string]string{"scontrol": "cat <<'END'\n" + text + "END"})
	got, err := client.Nodes(t.Context())
	want := []NodeGRES{
		{Name: "n1", NodeFacts: NodeFacts{State: "MIXED+DRAIN", Reason: "a Gres=gpu:9", Comment: "vgpu: card 0: lost", Gres: "gpu:sim:2(S:0),gpu:whole:1,shard:sim:200,vgpu:300"}, Types: []string{"sim", "sim", "whole"}, Shared: []bool{true, true, false}},
		{Name: "n3", NodeFacts: NodeFacts{State: "IDLE*+CLOUD", Host: "host3", Gres: "vgpu:h200:200,gpu:h200:2"}, Types: []string{"", ""}, Shared: []bool{true, true}, Counted: true},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for host, want := range map[string]string{"host3": "n3", "host9": ""} {
		if name, err := client.NodeOn(t.Context(), "other", host); err != nil || name != want {
			t.Errorf("the node on %s is %q, %v; want %q", host, name, err, want)
		}
	}
}

// What the queue does not have is no job, and of a job whose number comes twice nothing is believed.
func TestJobsOfTheCluster(t *testing.T) {
	var text strings.Builder
	for _, file := range []string{"22.05/one_card", "22.05/two_nodes_on_two_segments", "22.05/pending"} {
		record, err := os.ReadFile("testdata/" + file + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		text.Write(record)
	}
	queue := parseClusterQueue("2|RUNNING|www-data|None|gres:shard:80\n3|RUNNING|www-data|None|gres:shard:sim:20\n" +
		"4|RUNNING|ada|None|gres:shard:1\n5|PENDING|ada|Resources|gres:shard:50\n6|PENDING|ada|Resources|gres:gpu:1\n|x\n")
	nodes := []NodeGRES{{Name: "n1"}, {Name: "n2"}}
	jobs, unread, err := hold(queue, text.String(), nodes)
	if err != nil || unread != 0 || len(jobs) != 3 {
		t.Fatalf("%+v, %d, %v", jobs, unread, err)
	}
	if jobs[0].On["n1"].Units[1] != gpu.Share(80) || jobs[1].On["n1"].Units[0] != 20 || jobs[1].On["n2"].Units[0] != 20 || jobs[2].Reason != "Resources" {
		t.Errorf("got %+v", jobs)
	}
	again, _ := os.ReadFile("testdata/22.05/one_card.txt")
	jobs, unread, err = hold(queue, text.String()+string(again), nodes)
	if err != nil || unread != 1 || len(jobs) != 2 {
		t.Errorf("imitated: %+v, %d, %v", jobs, unread, err)
	}
}

// BenchmarkJobs reads ten thousand jobs on a thousand nodes.
func BenchmarkJobs(b *testing.B) {
	record, err := os.ReadFile("testdata/22.05/one_card.txt")
	if err != nil {
		b.Fatal(err)
	}
	var text, queue strings.Builder
	var nodes []NodeGRES
	for i := range 1000 {
		nodes = append(nodes, NodeGRES{Name: fmt.Sprint("n", i+1)})
	}
	for i := range 10000 {
		one := strings.Replace(string(record), "JobId=2 ", fmt.Sprintf("JobId=%d ", i+1), 1)
		text.WriteString(strings.ReplaceAll(one, "n1 ", fmt.Sprintf("n%d ", i%1000+1)))
		fmt.Fprintf(&queue, "%d|RUNNING|ada|None|gres:shard:80\n", i+1)
	}
	for b.Loop() {
		if jobs, _, err := hold(parseClusterQueue(queue.String()), text.String(), nodes); err != nil || len(jobs) != 10000 {
			b.Fatal(len(jobs), err)
		}
	}
}
