// SPDX-License-Identifier: Apache-2.0

package waitqueue

import (
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// Room that comes while a later job is about to try is for the first one.
func TestALaterJobTriesOnlyAfterThoseBeforeIt(t *testing.T) {
	first, second := &waiter{jobID: 1, wake: wakeup.NewBell()}, &waiter{jobID: 2, wake: wakeup.NewBell()}
	q := &Queue{waiters: []*waiter{first, second}}
	turns := func(when string, want ...bool) {
		t.Helper()
		for i, id := range []uint32{1, 2, 3} { // 3 does not wait here
			if got := q.mayTry(id); got != want[i] {
				t.Errorf("%s: job %d may try: %v, want %v", when, id, got, want[i])
			}
		}
	}
	q.WakeAll()
	turns("something became free", true, false, true)
	q.wakeNext(first)
	turns("the first found nothing", false, true, true)
	q.WakeAll()
	turns("more became free", true, false, true)
	q.wakeNext(second) // it tried before that
	turns("the second found nothing", true, false, true)
	q.leave(first)
	turns("the first has left", true, true, true)
}
