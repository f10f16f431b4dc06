// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
)

// Each server that a daemon names is asked a question, and the daemon is its user's.
func TestADaemonNamesFewServers(t *testing.T) {
	if pids, err := readServers(strings.Repeat("77\n", mostServers)); err != nil || len(pids) != mostServers {
		t.Errorf("%d servers: %v, %v", mostServers, pids, err)
	}
	if pids, err := readServers(strings.Repeat("77\n", mostServers+1)); err == nil {
		t.Errorf("%d servers are taken: %v", mostServers+1, pids)
	}
}

func TestADaemonThatDoesNotAnswerKeepsNobodyFromStopping(t *testing.T) {
	n := newNode(t)
	n.Close()
	n.cfg.Times.Answer, n.cfg.Times.Health = time.Hour, time.Hour
	n.open()
	key := Key{Card: card, UID: nobody}
	n.up(1, key, 30)
	control := n.only(fake.Control)
	n.Behave(fake.Hang)
	n.Keep(2, key, nobody, 70)
	n.eventually("the daemon is asked", func() bool {
		return slices.ContainsFunc(process.All("/proc"), func(d process.Dir) bool {
			line, _ := os.ReadFile(d.File("cmdline"))
			return string(line) == n.cfg.Control+"\x00"
		})
	})
	closed := make(chan struct{})
	go func() { n.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Error("the manager still waits for an answer, which may take an hour")
	}
	if n.only(fake.Control) != control {
		t.Error("the daemon did not outlive its manager")
	}
	// The next one finds it and ends it.
	n.Behave()
	<-closed
	n.cfg.Times = quick
	n.open()
}
