// SPDX-License-Identifier: Apache-2.0

package wakeup

import (
	"testing"
	"time"
)

func TestNext(t *testing.T) {
	at := time.Unix(1000, 0)
	for _, c := range []struct{ after, d, want time.Duration }{
		{0, 50, 50},
		{1, 50, 49},
		{30, 50, 20},
		{40, 50, 60}, // not at once
		{0, 1000, 1000},
		{999, 1000, 1001},
	} {
		got := After(at.Add(c.after*time.Millisecond), c.d*time.Millisecond)
		if got != c.want*time.Millisecond {
			t.Errorf("%d ms after a beat of %d ms: %v, want %d ms", c.after, c.d, got, c.want)
		}
	}
}
