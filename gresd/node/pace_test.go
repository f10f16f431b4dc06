// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"
)

func TestAJobWithoutAProcessIsAskedAboutLessAndLess(t *testing.T) {
	var p Pace
	now, last, times := time.Now(), time.Now(), 0
	for range 24 * 60 { // a day of looks
		now = now.Add(Around(Often))
		if p.IsDue(7, now) {
			if times > 6 && now.Sub(last) < Seldom*3/4 {
				t.Errorf("question %d came after %s", times, now.Sub(last))
			}
			p.Answered(7, now)
			last = now
			times++
		}
	}
	if times < 60 || times > 130 {
		t.Errorf("%d questions a day, want about one each %s", times, Seldom)
	}
	p.Keep(nil)
	if !p.IsDue(7, now) {
		t.Error("a job that was forgotten is new")
	}
}

// Nodes that were started together do not stay in step.
func TestNodesDoNotAskInStep(t *testing.T) {
	seconds := map[int]int{}
	const nodes = 1000
	for range nodes {
		var at time.Duration
		for range 10 {
			at += Around(Often)
		}
		seconds[int(at/time.Second)]++
	}
	for s, n := range seconds {
		if n > nodes/10 {
			t.Errorf("%d of %d nodes ask in second %d", n, nodes, s)
		}
	}
}
