// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"testing"
	"time"
)

func waiting(c Claim) Claim {
	c.Interactive, c.Eager = true, true
	return c
}

// An interactive job among equals that takes less than its share goes first, for a
// short own slice; with its credit gone, or against another one like it, the slices
// are the shares again.
func TestAnInteractiveJobGoesFirstAmongEquals(t *testing.T) {
	saturating := claim(1, 30, hard, 1)
	saturating.Interactive = true // its credit is gone
	for _, c := range []struct {
		name   string
		claims []Claim
		slices []uint32
		gates  []uint32
	}{
		{"beside a busy one", []Claim{waiting(claim(1, 30, hard, 1)), claim(2, 70, hard, 1)}, []uint32{4000, 2000}, []uint32{measure, 0}},
		{"of two processes", []Claim{waiting(claim(1, 30, hard, 2)), claim(2, 70, hard, 1)}, []uint32{2000, 2000}, []uint32{measure, 0}},
		{
			"beside two busy ones",
			[]Claim{waiting(claim(1, 20, hard, 1)), claim(2, 40, hard, 1), claim(3, 40, hard, 1)},
			[]uint32{4000, 2000, 2000},
			[]uint32{measure, 0, 0},
		},
		{"beside another one", []Claim{waiting(claim(1, 30, hard, 1)), waiting(claim(2, 70, hard, 1))}, []uint32{6000, 14000}, []uint32{measure, measure}},
		{"without credit", []Claim{saturating, claim(2, 70, hard, 1)}, []uint32{6000, 14000}, []uint32{measure, 0}},
		{"alone: held by its budget", []Claim{waiting(claim(1, 30, hard, 1)), claim(2, 70, hard, 0)}, []uint32{4000, 2000}, []uint32{1, 0}},
	} {
		plan := Plan(c.claims, params)
		for i, claim := range c.claims {
			if s := plan[claim.Key]; s.SliceUS != c.slices[i] || s.Gate != c.gates[i] {
				t.Errorf("%s: job %d: slice %d, gate %d; want %d, %d", c.name, claim.JobID, s.SliceUS, s.Gate, c.slices[i], c.gates[i])
			}
		}
	}
}

func TestInteractiveIsWhoseHostOftenWaits(t *testing.T) {
	const tick = 50 * time.Millisecond
	for _, c := range []struct {
		name  string
		every int    // ticks from one time to the next
		waits uint32 // each time
		want  bool
	}{
		{"1000 times a second", 1, 50, true},
		{"20 times", 1, 1, true},
		{"5 times", 4, 1, true},
		{"2 times", 10, 1, false},
		{"once in five seconds", 100, 1, false},
	} {
		s, now := newSampler(), time.Now()
		var syncs uint32
		got := 0
		for i := range 200 {
			v := slot(1, uint64(i)+1, 0)
			if i%c.every == 0 {
				syncs += c.waits
			}
			v.Cards[0].Syncs = syncs
			if s.look(7, view(v), oneCard, now.Add(time.Duration(i)*tick))[0].interactive && i >= 100 {
				got++
			}
		}
		if c.want && got < 60 || !c.want && got > 0 {
			t.Errorf("%s: interactive at %d of 100 looks, want %v", c.name, got, c.want)
		}
		v := slot(1, 201, 0)
		v.Cards[0].Syncs = syncs
		s.look(7, view(v), oneCard, now.Add(200*tick))
		// So long after a program began, which waits for each of its first steps, perhaps.
		if s.look(7, view(v), oneCard, now.Add(200*tick+1050*time.Millisecond))[0].interactive {
			t.Errorf("%s: still interactive a second after its last wait", c.name)
		}
	}
}
