// SPDX-License-Identifier: Apache-2.0

package patient

import (
	"testing"
	"time"
)

// So many threads may wait, and no more.
func TestFewQuestionsWait(t *testing.T) {
	s := New()
	s.Patience = time.Millisecond
	end := make(chan struct{})
	for pid := range uint32(3 * mostProcesses) {
		Within(s, pid, func() bool { <-end; return true })
	}
	if n := len(s.List()); n != mostProcesses {
		t.Errorf("%d wait, want %d", n, mostProcesses)
	}
	close(end)
	for range 1000 {
		if len(s.List()) == 0 {
			s.Patience = time.Minute
			if answer, ok := Within(s, 1, func() int { return 7 }); answer != 7 || !ok {
				t.Errorf("afterwards %d, %t", answer, ok)
			}
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("they wait for ever")
}
