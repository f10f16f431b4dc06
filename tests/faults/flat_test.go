// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"math/rand/v2"
	"testing"
)

func TestTrend(t *testing.T) {
	noise := func(seed uint64, leak, size float64) []float64 {
		dice := rand.New(rand.NewPCG(seed, 1))
		v := make([]float64, 25)
		for i := range v {
			v[i] = 100 + leak*float64(i) + size*dice.NormFloat64()
		}
		return v
	}
	found := 0
	for seed := range uint64(100) {
		if TrendOf(noise(seed, 0, 3)).Leaks(2) {
			found++
		}
		if tr := TrendOf(noise(seed, 1, 3)); !tr.Leaks(2) {
			t.Errorf("seed %d: one a round in a noise of three is not found: %s", seed, tr)
		}
	}
	if found > 2 { // three standard errors are one in 700
		t.Errorf("noise alone leaks in %d of 100 runs", found)
	}
	if tr := TrendOf([]float64{10, 10, 10, 10}); tr.Leaks(0.5) || tr.Growth != 0 {
		t.Errorf("a constant: %s", tr)
	}
	if tr := TrendOf([]float64{10, 11, 12, 13}); !tr.Leaks(2) || tr.Growth != 3 {
		t.Errorf("one more each time: %s", tr)
	}
}
