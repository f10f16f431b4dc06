// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"os"
	"testing"
	"time"
)

// Two busy jobs that fill a card hold each other at their shares, so their gates
// are open. When gresd is dead and one of them ends, the other has the whole card
// until gresd is back: a known limit (docs/reliability.md), and this is its test.
func TestGateOfADeadGresd(t *testing.T) {
	if os.Getenv("VGPU_KNOWN") == "" {
		t.Skip("a known limit: set VGPU_KNOWN=1 to see it")
	}
	n := up(t, "")
	a, b := n.submit(alice, 50, workScript), n.submit(bob, 50, workScript)
	n.working(30*time.Second, a, b)
	time.Sleep(3 * time.Second) // both are busy by gresd's account
	n.report()
	n.Gresd.Kill()
	n.end(b)
	time.Sleep(2*computeWindow + time.Second)
	n.report() // compute limit: job 1, alone on its card, had 99 % of it
	n.must(n.Gresd.Start())
	n.end(a)
	n.clean(60 * time.Second)
}
