// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"testing"
	"time"
)

// Any sixteen jobs: each has a slice or a window, and no period is above the longest.
func TestPlanOfSixteenJobs(t *testing.T) {
	var claims []Claim
	for i := range uint32(16) {
		c := wants(claim(i+1, 1+i%12, hard, 1))
		c.Priority = i % 3
		claims = append(claims, c)
	}
	for key, s := range planOf(claims, func(j *job) { j.gain = float64((j.JobID-1)%5) - 2 }) {
		if s.SliceUS == 0 || s.SliceUS > params.MaxPeriod {
			t.Errorf("job %d: slice %d us", key.JobID, s.SliceUS)
		}
	}
	var end uint32
	for key, s := range windowsOf(claims...) {
		end = max(end, uint32((s.Window.BeginNS-1e12)/1000)+s.Window.LengthUS)
		if s.Window.LengthUS == 0 || s.Window.PeriodUS > params.MaxPeriod {
			t.Errorf("job %d: window %+v", key.JobID, s.Window)
		}
	}
	if end > params.MaxPeriod {
		t.Errorf("windows end at %d us", end)
	}
}

func TestWindowPeriod(t *testing.T) {
	kernels := func(c Claim, kernel time.Duration) Claim {
		c.Kernel = uint32(kernel)
		return c
	}
	for _, c := range []struct {
		name   string
		bursty bool
		claims []Claim
		want   uint32
	}{
		{"nobody waits for results", false, []Claim{claim(1, 50, hard, 1), claim(2, 50, hard, 1)}, 50000},
		{"short kernels", true, []Claim{kernels(claim(1, 50, hard, 1), 20*time.Microsecond), claim(2, 50, hard, 1)}, 8000},
		{"four kernels fit a window", true, []Claim{kernels(claim(1, 25, hard, 1), time.Millisecond), claim(2, 75, hard, 1)}, 16000},
		{"two fit the longest period", true, []Claim{kernels(claim(1, 25, hard, 1), 5*time.Millisecond), claim(2, 75, hard, 1)}, 50000},
		{"kernels too long for that", true, []Claim{kernels(claim(1, 50, hard, 1), 30*time.Millisecond), claim(2, 50, hard, 1)}, 120000},
		{"kernels too long for any period", false, []Claim{kernels(claim(1, 10, hard, 1), 50*time.Millisecond), claim(2, 90, hard, 1)}, 200000},
	} {
		var wanting []*job
		for _, claim := range c.claims {
			wanting = append(wanting, &job{Claim: claim})
		}
		if got := windowPeriodOf(wanting, 100, c.bursty, params); got != c.want {
			t.Errorf("%s: %d us, want %d", c.name, got, c.want)
		}
	}
}
