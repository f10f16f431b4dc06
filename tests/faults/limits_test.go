// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// A job beside others that its card has room for has no more than its share, however
// long its kernels are: its budget holds it, and what its work costs must not be told by
// slices that the others do not use.
func TestShareBesideOthersThatAreHeld(t *testing.T) {
	n := up(t, "")
	const points, look = 5, 5 * time.Second
	cases := []struct{ share, kernelUS, beside, besideUS int }{{10, 10000, 25, 200}}
	if long {
		cases = append(cases, []struct{ share, kernelUS, beside, besideUS int }{
			{10, 200, 25, 200}, {10, 2000, 25, 200}, {10, 10000, 25, 10000}, {10, 10000, 45, 200}, {10, 10000, 80, 200},
		}...)
	}
	for _, c := range cases {
		script := cluster.Worker + " --kernel-us %d --saturate 600"
		a := n.submit(alice, c.share, fmt.Sprintf(script, c.kernelUS))
		b := n.submit(bob, c.beside, fmt.Sprintf(script, c.besideUS))
		n.working(30*time.Second, a, b)
		time.Sleep(time.Second)
		had, began := n.busy(a), time.Now()
		time.Sleep(look)
		part := 100 * float64(n.busy(a)-had) / float64(time.Since(began))
		t.Logf("%d %%, kernels of %d us, beside %d %%, of %d us: had %.1f %%", c.share, c.kernelUS, c.beside, c.besideUS, part)
		if part > float64(c.share+points) {
			t.Errorf("a job of %d %%, kernels of %d us, beside one of %d %%: had %.1f %%, want at most %d", c.share, c.kernelUS, c.beside, part, c.share+points)
		}
		if part < float64(c.share)/2 {
			t.Errorf("a job of %d %%, kernels of %d us, beside one of %d %%: had %.1f %%, want half of its share at least", c.share, c.kernelUS, c.beside, part)
		}
		n.end(a, b)
		n.clean(30 * time.Second)
	}
}

// busy is the time that the processes of a job have had of the card.
func (n *node) busy(j job) (ns uint64) {
	for _, one := range n.workers(j) {
		ns += one
	}
	return ns
}
