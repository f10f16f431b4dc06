// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"testing"
)

// As 22.05 prints it, shortened.
const drained = `NodeName=n1 Arch=x86_64 CoresPerSocket=1
   Gres=gpu:h200:1,shard:100
   State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=main
   Comment=rack 7 State=DOWN
   Reason=vgpu: card 0: XID 79 [root@2026-01-02T03:04:05]
`

func TestParseNode(t *testing.T) {
	facts, err := parseNode(drained)
	if want := (NodeFacts{State: "IDLE+DRAIN", Reason: "vgpu: card 0: XID 79", Comment: "rack 7 State=DOWN", Gres: "gpu:h200:1,shard:100"}); err != nil || facts != want {
		t.Errorf("got %+v, %v; want %+v", facts, err, want)
	}
	if _, err := parseNode("Node n1 not found"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}
