// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"os"
	"testing"
	"time"
)

// Two busy jobs that fill a card hold each other at their shares, so their gates
// are open. When gresd is dead and one of them ends, nobody tells the other; its
// gate shuts by itself when gresd has not said for some seconds that it may be open.
func TestGateOfADeadGresd(t *testing.T) {
	if os.Getenv("VGPU_LONG") == "" {
		t.Skip("waits for a lease of seconds: set VGPU_LONG=1")
	}
	n := up(t, "")
	a, b := n.submit(alice, 50, workScript), n.submit(bob, 50, workScript)
	n.working(30*time.Second, a, b)
	time.Sleep(3 * time.Second) // both are busy by gresd's account
	n.report()
	n.Gresd.Kill()
	time.Sleep(6 * time.Second) // the lease has run out
	n.end(b)
	time.Sleep(2*computeWindow + time.Second)
	n.report() // the compute limit of a job alone on its card
	n.must(n.Gresd.Start())
	n.end(a)
	n.clean(60 * time.Second)
}
