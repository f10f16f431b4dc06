// SPDX-License-Identifier: Apache-2.0

package timeout

import (
	"testing"
	"time"
)

// So many threads may wait for a user's processes, and no more; others are asked as ever.
func TestFewQuestionsWait(t *testing.T) {
	s := &Processes{Timeout: time.Millisecond}
	end := make(chan struct{})
	for pid := range uint32(3 * blockedPerUser) {
		RunForProcess(s, 1000, pid, func() bool { <-end; return true })
	}
	if n := len(s.List()); n != blockedPerUser {
		t.Errorf("%d wait, want %d", n, blockedPerUser)
	}
	s.Timeout = time.Minute
	if answer, ok := RunForProcess(s, 1001, 1, func() int { return 7 }); answer != 7 || !ok {
		t.Errorf("of another user meanwhile %d, %t", answer, ok)
	}
	close(end)
	for range 1000 {
		if len(s.List()) == 0 {
			if answer, ok := RunForProcess(s, 1000, 1, func() int { return 7 }); answer != 7 || !ok {
				t.Errorf("afterwards %d, %t", answer, ok)
			}
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("they wait for ever")
}
