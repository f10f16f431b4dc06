// SPDX-License-Identifier: Apache-2.0

package wakeup

import (
	"testing"
	"time"
)

func TestSleep(t *testing.T) {
	s := NewBell()
	for _, d := range []time.Duration{time.Millisecond, 0, -1, 20 * time.Millisecond} {
		began := time.Now()
		if s.Sleep(d) {
			t.Error("woken, and nobody did")
		}
		if took := time.Since(began); took < d {
			t.Errorf("slept %v of %v", took, d)
		}
	}
}

// Whenever it is called, Ring ends one sleep, and just one.
func TestWake(t *testing.T) {
	s := NewBell()
	s.Ring()
	s.Ring()
	if !s.Sleep(time.Hour) {
		t.Error("not woken before its sleep")
	}
	if s.Sleep(time.Millisecond) {
		t.Error("woken a second time")
	}
	for i := range 100 {
		go func() {
			time.Sleep(time.Duration(i%30) * 10 * time.Microsecond)
			s.Ring()
		}()
		for !s.Sleep(time.Duration(1+i%2*36e5) * 100 * time.Microsecond) {
		}
	}
}
