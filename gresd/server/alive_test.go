// SPDX-License-Identifier: Apache-2.0

package server

import (
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// While a write of one job's record waits for a disk that does not answer, the watchdog is answered.
// Other jobs are served, too.
func TestADiskThatStallsIsNoDeadlock(t *testing.T) {
	n := newTestNode(t).start()
	unlock := n.jobLocks.lockAsked(7) // as a grant does that waits for the ledger
	defer unlock()
	done := make(chan struct{})
	other := n.job(8, 30)
	go func() {
		defer close(done)
		n.CheckLiveness()
		rep, err := n.ask(other)
		if err == nil {
			err = n.Reconcile(t.Context())
		}
		if err != nil || rep.Result != wire.Granted {
			t.Errorf("got %+v, %v; want a grant", rep, err)
		}
		n.CheckLiveness()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("the watchdog has no answer")
	}
}
