// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"testing"
	"time"
)

// Any sixteen jobs: nobody without a slice, nobody above the longest period.
func TestPlanOfSixteenJobs(t *testing.T) {
	for _, engine := range []Engine{Slices, Turns} {
		p := params
		p.Engine = engine
		var claims []Claim
		for i := range uint32(16) {
			c := claim(i+1, 1+i%12, hard, 1)
			c.Priority, c.Gain = i%3, float64(i%5)-2
			claims = append(claims, c)
		}
		var end uint32
		for key, s := range Plan(claims, p) {
			if engine == Turns {
				end = max(end, uint32(s.Turn.BeginNS/1000)+s.Turn.LengthUS)
				if s.Turn.LengthUS == 0 || s.Turn.PeriodUS > p.MaxPeriod {
					t.Errorf("job %d: turn %+v", key.JobID, s.Turn)
				}
			} else if s.SliceUS == 0 || s.SliceUS > p.MaxPeriod {
				t.Errorf("job %d: slice %d us", key.JobID, s.SliceUS)
			}
		}
		if end > p.MaxPeriod {
			t.Errorf("turns end at %d us", end)
		}
	}
}

func TestTurnPeriod(t *testing.T) {
	bursty := func(c Claim, kernel time.Duration) Claim {
		c.Bursty, c.Kernel = true, uint32(kernel)
		return c
	}
	for _, c := range []struct {
		name   string
		claims []Claim
		want   uint32
	}{
		{"nobody waits for results", []Claim{claim(1, 50, hard, 1), claim(2, 50, hard, 1)}, 50000},
		{"short kernels", []Claim{bursty(claim(1, 50, hard, 1), 20*time.Microsecond), claim(2, 50, hard, 1)}, 8000},
		{"four kernels fit a turn", []Claim{bursty(claim(1, 25, hard, 1), time.Millisecond), claim(2, 75, hard, 1)}, 16000},
		{"kernels too long for the longest period", []Claim{bursty(claim(1, 25, hard, 1), 50*time.Millisecond), claim(2, 75, hard, 1)}, 50000},
		{"an idle job does not count", []Claim{bursty(claim(1, 25, hard, 0), 50*time.Millisecond), claim(2, 50, hard, 1), claim(3, 50, hard, 1)}, 50000},
	} {
		var sum uint32
		for _, claim := range c.claims {
			if claim.Busy > 0 {
				sum += claim.Cores
			}
		}
		if got := turnPeriod(c.claims, sum, params); got != c.want {
			t.Errorf("%s: %d us, want %d", c.name, got, c.want)
		}
	}
}
