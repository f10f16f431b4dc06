// SPDX-License-Identifier: Apache-2.0

package room

import (
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// Room that comes while a later job is about to look is for the first one.
func TestALaterJobLooksOnlyAfterThoseBeforeIt(t *testing.T) {
	first, second := &Waiter{jobID: 1, Wake: wakeup.NewBell()}, &Waiter{jobID: 2, Wake: wakeup.NewBell()}
	r := &Room{waiters: []*Waiter{first, second}}
	turns := func(when string, want ...bool) {
		t.Helper()
		for i, id := range []uint32{1, 2, 3} { // 3 does not wait here
			if got := r.InTurn(id); got != want[i] {
				t.Errorf("%s: job %d may look: %v, want %v", when, id, got, want[i])
			}
		}
	}
	r.Changed()
	turns("something became free", true, false, true)
	r.PassOn(first)
	turns("the first found nothing", false, true, true)
	r.Changed()
	turns("more became free", true, false, true)
	r.PassOn(second) // it looked before that
	turns("the second found nothing", true, false, true)
	r.Leave(first)
	turns("the first has left", true, true, true)
}
