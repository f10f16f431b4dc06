// SPDX-License-Identifier: Apache-2.0

package series

import (
	"encoding/binary"
	"math"
	"testing"
	"time"
)

// file builds what vgpu-load writes.
func file(count, grid, kernel uint64, samples ...[3]uint64) []byte {
	var b []byte
	for _, w := range []uint64{magic, count, grid, kernel} {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	for _, s := range samples {
		for _, w := range s {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
	}
	return b
}

func TestDecode(t *testing.T) {
	card, err := decode(file(2, 264, 50, [3]uint64{1000, 264, 0}, [3]uint64{2000, 528, 1}, [3]uint64{}))
	if err != nil || len(card) != 2 || card[1] != (Sample{2000, 2}) {
		t.Errorf("work of a card: got %v, %v", card, err)
	}
	sim, err := decode(file(1, 264, 50, [3]uint64{1000, 0, 3}))
	if err != nil || len(sim) != 1 || sim[0] != (Sample{1000, 150}) {
		t.Errorf("kernels of a simulated card: got %v, %v", sim, err)
	}
	for name, data := range map[string][]byte{
		"empty": nil, "another file": make([]byte, 100), "cut": file(2, 1, 1, [3]uint64{}), "no grid": file(0, 0, 1),
	} {
		if s, err := decode(data); err == nil {
			t.Errorf("%s: got %v, want an error", name, s)
		}
	}
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9 {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestRatesAndWindows(t *testing.T) {
	s := Series{{0, 0}, {1e9, 100}, {2e9, 100}, {3e9, 300}}
	near(t, "At half a second", s.At(5e8), 50)
	near(t, "At before", s.At(-1), 0)
	near(t, "At after", s.At(9e9), 300)
	near(t, "Rate", s.Rate(0, 3e9), 100)
	near(t, "Rate of nothing", s.Rate(5, 5), 0)
	w := s.Windows(0, 3e9, time.Second)
	if len(w) != 3 || w[0] != 100 || w[1] != 0 || w[2] != 200 {
		t.Errorf("Windows: got %v", w)
	}
	if d := s.Stall(0, 3e9); d != 2*time.Second {
		t.Errorf("Stall: got %v, want 2s: work is seen at 1 s and again at 3 s", d)
	}
	if d := s.Stall(0, 10e9); d != 7*time.Second {
		t.Errorf("Stall at the end: got %v, want 7s", d)
	}
	if sum := Sum(w, w[:2]); len(sum) != 3 || sum[0] != 200 || sum[2] != 200 {
		t.Errorf("Sum: got %v", sum)
	}
}

func TestFigures(t *testing.T) {
	near(t, "Sigma", Sigma([]float64{2, 4, 4, 4, 5, 5, 7, 9}), 2)
	near(t, "Jain of equals", Jain([]float64{3, 3, 3, 3}), 1)
	near(t, "Jain of one that has all", Jain([]float64{5, 0, 0, 0}), 0.25)
	v := []float64{5, 1, 4, 2, 3}
	near(t, "median", Quantile(v, 0.5), 3)
	near(t, "p99", Quantile(v, 0.99), 5)
	near(t, "least", Quantile(v, 0), 1)
	near(t, "of nothing", Quantile(nil, 0.5), 0)
}

func TestSettle(t *testing.T) {
	w := []float64{100, 80, 30, 31, 29, 30, 60, 30, 30, 31, 29}
	if got := Settle(w, 30, 2, 2); got != 7 {
		t.Errorf("Settle: got %d, want 7, behind the last window that is off", got)
	}
	if got := Settle(w[:7], 30, 2, 2); got != -1 {
		t.Errorf("Settle of what ends off: got %d, want -1", got)
	}
	if got := Reached(w, 70, 2); got != 0 {
		t.Errorf("Reached: got %d, want 0", got)
	}
	if got := Reached(w, 95, 2); got != -1 {
		t.Errorf("Reached never: got %d, want -1", got)
	}
}
