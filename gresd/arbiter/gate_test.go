// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

func TestOwnPart(t *testing.T) {
	always := func(slices ...float64) (list []rival) {
		for _, s := range slices {
			list = append(list, rival{s, 1})
		}
		return list
	}
	for _, c := range []struct {
		name   string
		slice  float64
		rivals []rival
		want   float64
	}{
		{"alone", 6000, nil, 1},
		{"beside one that is always there", 6000, always(14000), 0.3},
		{"beside ten", 1000, always(1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000), 1.0 / 11},
		{"beside one that never is", 6000, []rival{{14000, 0}}, 1},
		{"beside one that is there half of the time", 6000, []rival{{14000, 0.5}}, 0.65},
		{"beside two, one after the other or both", 5000, []rival{{5000, 0.5}, {10000, 0.5}}, 0.25 * (1 + 1.0/2 + 1.0/3 + 1.0/4)},
	} {
		if got := ownPart(c.slice, c.rivals); math.Abs(got-c.want) > 0.001 {
			t.Errorf("%s: %.4f, want %.4f", c.name, got, c.want)
		}
	}
}

// pollGates divides a card of jobs without gains.
func pollGates(c *card, claims []Claim, used []usage, now time.Time) map[Key]libvgpu.Schedule {
	c.found(claims, used)
	c.divide(params, now, 0)
	c.gate(params, now, 0)
	return c.plan()
}

// openGates plays looks at two jobs, of which the first has the part of the card that had
// says while its gate is open, and the second is on the card for the part load. It counts
// the looks for which the first one's gate was shut.
func openGates(first Claim, exact bool, looks int, had, load func(look int) float64) (shut, firstShut int) {
	const tick = 50 * time.Millisecond
	start, firstShut := time.Now(), -1
	var c card
	var plan map[Key]libvgpu.Schedule
	for i := range looks {
		now := start.Add(time.Duration(i) * tick)
		claims := []Claim{first, claim(2, 70, hard, 1)}
		used := []usage{{span: tick, ns: had(i) * float64(tick), exact: exact, look: tick}, {span: tick, exact: exact, look: tick}}
		if plan[claims[0].Key].Gate&libvgpu.GateBudget != 0 {
			used[0].ns = min(used[0].ns, 0.3*float64(tick))
		}
		if plan[claims[1].Key].Gate != 0 { // it measures
			used[1].elapsed = load(i) * float64(tick)
		}
		plan = pollGates(&c, claims, used, now)
		if plan[claims[0].Key].Gate&libvgpu.GateBudget != 0 {
			if shut++; firstShut < 0 {
				firstShut = i
			}
		}
	}
	return shut, firstShut
}

// A neighbour that launches little is busy, and leaves most of its share. A hard job does
// not get it. The gate opens again when the neighbour takes its share.
func TestAGateThatLeavesTooMuchIsShut(t *testing.T) {
	const second = 20 // looks
	always := func(part float64) func(int) float64 { return func(int) float64 { return part } }
	until := func(look int, before, after float64) func(int) float64 {
		return func(i int) float64 {
			if i < look {
				return before
			}
			return after
		}
	}
	for _, c := range []struct {
		name     string
		job      Claim
		exact    bool
		had      func(int) float64
		load     func(int) float64
		from, by int // looks at which it is first shut
		shut     int // looks of 100 s at which it is shut, about
	}{
		{"at its share", claim(1, 30, hard, 1), true, always(0.30), always(1), -1, -1, 0},
		{"a point above it", claim(1, 30, hard, 1), true, always(0.31), always(1), -1, -1, 0},
		{"80 of 30", claim(1, 30, hard, 1), true, always(0.8), always(0.2), 3, second / 2, 100 * second},
		{"40 of 30", claim(1, 30, hard, 1), true, always(0.4), always(0.8), 2, 2 * second, 100 * second},
		{"40 of 30, beside one whose work is always on its way", claim(1, 30, hard, 1), true, always(0.4), always(1), 2, 2 * second, 98 * second},
		{"soft", claim(1, 30, soft, 1), true, always(0.8), always(0.2), -1, -1, 0},
		{"soft with a ceiling of 30", withCeiling(claim(1, 30, soft, 1), 30), true, always(0.8), always(0.2), 3, second / 2, 100 * second},
		{"nobody knows", claim(1, 30, hard, 1), false, always(0.8), always(0.2), -1, -1, 0},
		{"what it lacked before is made good", claim(1, 30, hard, 1), true, until(20*second, 0.2, 0.8), always(0.2), 20*second + 4, 21 * second, 80 * second},
		{"a neighbour that began late", claim(1, 30, hard, 1), true, until(second, 0.8, 0.3), until(second, 0.1, 0.97), 3, second / 2, 4 * second},
		{"a neighbour that goes to work after a while", claim(1, 30, hard, 1), true, until(10*second, 0.8, 0.3), until(10*second, 0.1, 0.97), 3, second / 2, 14 * second},
		{"one that waits for its results, beside another", claim(1, 30, hard, 1), true, until(second, 0.8, 0.26), until(second, 0.1, 0.85), 3, second / 2, 2 * second},
		{"a job that has little work by now", claim(1, 30, hard, 1), true, until(10*second, 0.8, 0.1), always(0.2), 3, second / 2, 11 * second},
	} {
		shut, first := openGates(c.job, c.exact, 100*second, c.had, c.load)
		if first < c.from || first > c.by {
			t.Errorf("%s: first shut at look %d, want %d to %d", c.name, first, c.from, c.by)
		}
		if math.Abs(float64(shut-c.shut)) > 2*second || c.shut == 0 && shut > 0 {
			t.Errorf("%s: shut at %d looks, want %d", c.name, shut, c.shut)
		}
	}
}

// So does one that works for a moment now and then: it counts as busy for a while each time.
func TestANeighbourThatComesForMomentsOpensNoGate(t *testing.T) {
	const tick = 50 * time.Millisecond
	var c card
	start, open := time.Now(), 0
	for i := range 1200 {
		now := start.Add(time.Duration(i) * tick)
		claims := []Claim{claim(1, 30, hard, 1), claim(2, 70, hard, 0)}
		if i%12 < 5 {
			claims[1].Busy = 1
		}
		had := 0.3
		if j := c.jobs[1]; j != nil && j.open {
			had = 0.9
			open++
		}
		pollGates(&c, claims, []usage{{span: tick, ns: had * float64(tick), exact: true, look: tick}, {span: tick, exact: true, look: tick}}, now)
	}
	if open > 20 {
		t.Errorf("open at %d of 1200 looks, want at most 20", open)
	}
}

// Where the card keeps no records, open gates of hard jobs measure, and that counts.
func TestWithoutRecordsOpenGatesMeasure(t *testing.T) {
	job := claim(1, 30, hard, 1)
	job.NoRecords = true
	if s := planOf([]Claim{job, claim(2, 70, hard, 1)})[job.Key]; s.Gate != measure {
		t.Errorf("gate %d, want %d", s.Gate, measure)
	}
	if shut, _ := openGates(job, false, 200, func(int) float64 { return 0.8 }, func(int) float64 { return 0.2 }); shut < 150 {
		t.Errorf("shut at %d of 200 looks at a job that had too much", shut)
	}
}

// The load of a job counts once its launches have been measured for a while.
func TestLoad(t *testing.T) {
	const tick = 50 * time.Millisecond
	job := claim(2, 50, hard, 1)
	start := time.Now()
	var c card
	var loads []float64
	for i := range 60 {
		now := start.Add(time.Duration(i) * tick)
		claims := []Claim{claim(1, 30, hard, 1), job}
		pollGates(&c, claims, []usage{{look: tick}, {look: tick, elapsed: float64(i%2) * float64(tick)}}, now)
		loads = append(loads, c.jobs[2].load)
	}
	if loads[5] != 0 || math.Abs(loads[20]-0.5) > 0.05 || math.Abs(loads[59]-0.5) > 0.05 {
		t.Errorf("loads %.2f, %.2f, %.2f; want 0 (not known), 0.5, 0.5", loads[5], loads[20], loads[59])
	}
}

// What a kernel cost is best known when it ran through, and budgets do not need slices.
func TestBudgetsLetKernelsRunThrough(t *testing.T) {
	long := func(c Claim, ms uint32) Claim { c.Kernel = ms * 1e6; return c }
	for _, c := range []struct {
		name   string
		claims []Claim
		slices [2]uint32
	}{
		{"short kernels", []Claim{long(claim(1, 30, hard, 1), 1), claim(2, 50, hard, 1)}, [2]uint32{7500, 12500}},
		{"20 ms", []Claim{long(claim(1, 30, hard, 1), 20), claim(2, 50, hard, 1)}, [2]uint32{50000, 12500}},
		{"10 ms", []Claim{claim(1, 30, hard, 1), long(claim(2, 50, hard, 1), 10)}, [2]uint32{7500, 25000}},
		{"slices divide the card", []Claim{long(claim(1, 30, hard, 1), 20), claim(2, 70, hard, 1)}, [2]uint32{6000, 14000}},
		{"a soft neighbour", []Claim{long(claim(1, 30, hard, 1), 20), claim(2, 50, soft, 1)}, [2]uint32{7500, 12500}},
		{"somebody waits for results", []Claim{long(claim(1, 30, hard, 1), 20), low(claim(2, 50, hard, 1))}, [2]uint32{19407, 750}},
	} {
		plan := planOf(c.claims)
		for i, claim := range c.claims {
			if got := plan[claim.Key].SliceUS; got != c.slices[i] {
				t.Errorf("%s: slice of job %d: %d, want %d", c.name, claim.JobID, got, c.slices[i])
			}
		}
	}
}

// Beside a job whose kernels are longer than its slices it must be known when others are
// on the card.
func TestRivalsOfLongKernelsMeasure(t *testing.T) {
	for _, c := range []struct {
		kernel uint32
		want   uint32
	}{{1e6, 0}, {50e6, measure}} {
		job := claim(1, 20, hard, 1)
		job.Kernel = c.kernel
		neighbour := claim(2, 60, soft, 1)
		if got := planOf([]Claim{job, neighbour})[neighbour.Key].Gate; got != c.want {
			t.Errorf("kernels of %d ns: the neighbour's gate is %d, want %d", c.kernel, got, c.want)
		}
	}
}

// A capped job is charged as it was seen to have the card, until its neighbours' loads
// are known.
func TestACappedJobIsHeldAtItsShare(t *testing.T) {
	capped := claim(1, 30, hard, 1)
	s := planOf([]Claim{capped, claim(2, 70, hard, 1)}, func(j *job) {
		if j.JobID == 1 {
			j.shut, j.openPart = true, 0.8
		}
	})[capped.Key]
	if s.Gate != libvgpu.GateBudget || s.WeightPPM != 800000 || s.LeastPPM != 800000 || s.Cores != 30 {
		t.Errorf("%+v, want a budget of 30 and a part of 0.8", s)
	}
}
