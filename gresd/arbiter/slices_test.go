// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math/rand/v2"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// someJobs are jobs that share a card, of at least 5 % and at most two processes each.
func someJobs(random *rand.Rand) []Claim {
	var claims []Claim
	for left := uint32(100); len(claims) < 8 && left >= 5; {
		c := claim(uint32(len(claims)+1), 5+random.Uint32N(min(left, 60)-4), hard, 1+random.Uint32N(2))
		c.Priority = []uint32{libvgpu.PrioLow, libvgpu.PrioNormal, libvgpu.PrioHigh}[random.IntN(3)]
		c.Eager, c.Interactive = random.IntN(3) == 0, random.IntN(2) == 0
		c.Gain = []float64{0, 0.3, 0.9, 1.1, 3}[random.IntN(5)]
		left -= c.Cores
		claims = append(claims, c)
	}
	return claims
}

// Whoever goes first, and whatever a job had too much or lacks: no slice is below the
// smallest that an administrator allows, and a turn of all is no longer than the longest.
func TestSlicesAreNeverBelowTheSmallest(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		claims := someJobs(random)
		sum := uint32(0)
		for i, s := range slicesOf(claims, params) {
			if s < params.MinSlice {
				t.Fatalf("%+v: slice %d us, want at least %d", claims[i], s, params.MinSlice)
			}
			sum += s * claims[i].Busy
		}
		if len(claims) > 1 && sum > params.MaxPeriod*6/5 { // gains do not shorten the smallest
			t.Fatalf("%+v: a turn of all is %d us", claims, sum)
		}
	}
}

// Among jobs that wait for the same one slices are in proportion to the shares.
func TestSlicesBesideAnEagerJobAreTheShares(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		claims := someJobs(random)
		for i := range claims {
			claims[i].Gain = 0
		}
		slices := slicesOf(claims, params)
		for i, a := range claims {
			for k, b := range claims {
				if waitsForEager(claims, i) != waitsForEager(claims, k) {
					continue
				}
				as, bs := float64(slices[i]*a.Busy)/float64(a.Cores), float64(slices[k]*b.Busy)/float64(b.Cores)
				if as > 1.01*bs+2 {
					t.Fatalf("%+v has %.1f us for each of its share, %+v %.1f", a, as, b, bs)
				}
			}
		}
	}
}

// What several processes beside an eager job have: as long as the driver's slices, or so
// that the eager job does not wait for longer than what it leaves of its share is worth.
func TestSlicesOfSeveralBesideAnEagerJob(t *testing.T) {
	for _, c := range []struct {
		name   string
		claims []Claim
		want   []uint32
	}{
		{"one process below a high job", []Claim{high(eager(claim(1, 30, hard, 1))), claim(2, 70, hard, 1)}, []uint32{20000, 1000}},
		{"four below a high job of 20", []Claim{high(eager(claim(1, 20, hard, 1))), claim(2, 80, hard, 4)}, []uint32{20000, 1800}},
		{"four below a high job of 50", []Claim{high(eager(claim(1, 50, hard, 1))), claim(2, 50, hard, 4)}, []uint32{20000, 1000}},
		{"four below a high job of 5", []Claim{high(eager(claim(1, 5, hard, 1))), claim(2, 95, hard, 4)}, []uint32{20000, 2000}},
		{"their kernels fit", []Claim{high(eager(claim(1, 50, hard, 1))), long(claim(2, 50, hard, 4), 1000)}, []uint32{20000, 1200}},
		{"kernels that fit no slice", []Claim{high(eager(claim(1, 50, hard, 1))), long(claim(2, 50, hard, 4), 5000)}, []uint32{20000, 2000}},
		{"four beside an equal", []Claim{waiting(claim(1, 20, hard, 1)), claim(2, 80, hard, 4)}, []uint32{4000, 2000}},
		{"four of 10 % below a high job of 90", []Claim{high(eager(claim(1, 90, hard, 1))), claim(2, 10, hard, 4)}, []uint32{36000, 1000}},
		{"the same, equal", []Claim{waiting(claim(1, 90, hard, 1)), claim(2, 10, hard, 4)}, []uint32{42000, 2000}},
		{"one has had too much", []Claim{
			waiting(claim(1, 20, hard, 1)), gained(claim(2, 40, hard, 1), 0.1), gained(claim(3, 40, hard, 1), 1.9),
		}, []uint32{4000, 500, 3800}},
	} {
		for i, got := range slicesOf(c.claims, params) {
			if got != c.want[i] {
				t.Errorf("%s: job %d: got %d us, want %d", c.name, i+1, got, c.want[i])
			}
		}
	}
}

func long(c Claim, kernelUS uint32) Claim {
	c.Kernel = kernelUS * 1000
	return c
}

func gained(c Claim, gain float64) Claim {
	c.Gain = gain
	return c
}
