// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

func TestWhatAJobAsksForIsReadFromSqueue(t *testing.T) {
	client, _ := commands(t, map[string]string{
		"scontrol": "exit 1",
		"squeue":   `[ "$*" = "--local -a -t all -h -j 7 -O ` + askedFormat + `" ] && printf '%-16s%-40s%-40s\n' 8 gres:gpu:1 N/A 7 gres:shard:h200:30 N/A`,
	})
	got, err := client.Asked(context.Background(), 7)
	if want := (Asked{PerNode: "gres:shard:h200:30"}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if _, err := parseAsked("", 7); !errors.Is(err, ErrNoJob) {
		t.Errorf("of no line: %v", err)
	}
	if _, err := parseAsked("7 gres:shard:30 x y\n", 7); !errors.Is(err, ErrUnavailable) {
		t.Errorf("of a line with too much: %v", err)
	}
}

func TestShardsOfAList(t *testing.T) {
	for list, want := range map[string]gpu.Share{
		"": 0, "gres:gpu:2": 0, "gres:shards:3": 0, "gres:other:shard:3": 0, "cpu=2,gres/shard=60": 60,
		"gres:shard:30": 30, "gres/shard:h200:25,gres/vgpu:25": 25, "gres:shard": 1, "shard:x": 1,
	} {
		if got := shards(list); got != want {
			t.Errorf("%q: %d, want %d", list, got, want)
		}
	}
}

// A comment, and a command's name, can hold all that scontrol prints of a request.
func TestForgedRequestMeansNothing(t *testing.T) {
	text := "JobId=7 JobName=x UserId=u(1000) GroupId=u(1000) MCS_label=N/A Account=(null) JobState=RUNNING Restarts=0 BatchFlag=1 " +
		"Partition=p NodeList=n1 NumNodes=1 JOB_GRES=(null)   Nodes=n1 CPU_IDs=0 Mem=0 GRES= MinCPUsNode=1 " +
		"Command=(null) WorkDir=/tmp Comment=x TresPerNode=gres:shard:1  StdErr=/dev/null TresPerNode=gres:shard:1 \n"
	facts, err := ParseJob(text, 7, "n1")
	if err != nil || facts.Holds() {
		t.Fatalf("%+v, %v", facts, err)
	}
	// It is a reason to ask, and the answer has none of the user's words.
	if !facts.MayAskForShards {
		t.Error("the record names shards")
	}
	asked, err := parseAsked(fmt.Sprintf("%-16d%-40s%-40s\n", 7, "N/A", "N/A"), 7)
	if err != nil || asked.HasShards() {
		t.Errorf("%+v, %v; want none", asked, err)
	}
}
