// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
	"testing"
	"time"
)

// model is a card that serves its jobs in turn, each for its slice or until it has
// nothing to do; its host then gives it the next step after a pause.
type model struct {
	jobs    []modelJob
	on      int
	left    time.Duration // of the slice
	switch_ time.Duration // still to be paid
	now     time.Duration
	changes int // of slices, after a second
	all     float64
	least   time.Duration // of all slices, in the last three seconds
}

type modelJob struct {
	share   uint32
	step    time.Duration // work between two waits; 0: endless
	pause   time.Duration // of the host after a step
	slice   time.Duration
	todo    time.Duration // of the step
	resumes time.Duration // when the host launches the next one
	had     time.Duration
	state   jobState // what the sampler knows of it
	windows []float64
}

const (
	modelLook   = 50 * time.Millisecond
	modelTick   = 50 * time.Microsecond
	modelSwitch = 100 * time.Microsecond
	modelPause  = 100 * time.Microsecond // a host's, at least
	modelEnd    = 7 * time.Second
)

func (m *model) ready(i int) bool {
	j := &m.jobs[i]
	return j.step == 0 || j.todo > 0 || m.now >= j.resumes
}

func (m *model) tick() {
	m.now += modelTick
	if m.switch_ > 0 {
		m.switch_ -= modelTick
		return
	}
	j := &m.jobs[m.on]
	if j.step > 0 && j.todo <= 0 && m.now >= j.resumes {
		j.todo = j.step
	}
	if m.left <= 0 || !m.ready(m.on) {
		for k := 1; k <= len(m.jobs); k++ {
			if next := (m.on + k) % len(m.jobs); m.ready(next) {
				if next != m.on {
					m.switch_ = modelSwitch
				}
				m.on, m.left = next, m.jobs[next].slice
				break
			}
		}
		return
	}
	j.had += modelTick
	m.left -= modelTick
	if j.step > 0 {
		if j.todo -= modelTick; j.todo <= 0 {
			j.resumes = m.now + max(j.pause, modelPause)
		}
	}
}

// run lets a balance follow the model's jobs, and returns each one's part of what all
// had after a second.
func (m *model) run(t *testing.T, balanced bool) []float64 {
	t.Helper()
	claims := make([]Claim, len(m.jobs))
	before := make([]time.Duration, len(m.jobs))
	start := make([]time.Duration, len(m.jobs))
	var b balance
	m.all, m.least = 1, time.Hour
	for m.now < modelEnd {
		used := make([]usage, len(m.jobs))
		sum := time.Duration(0)
		for i := range m.jobs {
			sum += m.jobs[i].had - before[i]
		}
		fade := math.Exp(-float64(modelLook) / float64(allMemory))
		m.all = m.all*fade + float64(sum)/float64(modelLook)*(1-fade)
		for i := range m.jobs {
			claims[i] = claim(uint32(i+1), m.jobs[i].share, hard, 1)
			claims[i].Interactive, claims[i].Measured = m.jobs[i].step > 0, true
			used[i] = usage{ns: float64(m.jobs[i].had - before[i]), span: modelLook, exact: true, all: m.all}
			before[i] = m.jobs[i].had
			m.jobs[i].state = m.jobs[i].state.after(used[i], m.jobs[i].share, claims[i].Interactive)
			claims[i].Eager = balanced && m.jobs[i].state.eager
			if m.now > time.Second {
				m.jobs[i].windows = append(m.jobs[i].windows, 100*used[i].ns/float64(modelLook))
			}
			if m.now <= time.Second {
				start[i] = m.jobs[i].had
			}
		}
		if balanced {
			b.update(claims, used, allOpen)
		}
		plan := Plan(claims, params)
		for range 2 { // the library follows a tick later
			for end := m.now + modelLook/2; m.now < end; {
				m.tick()
			}
			for i, c := range claims {
				slice := time.Duration(plan[c.Key].SliceUS) * time.Microsecond
				if m.now > time.Second && slice != m.jobs[i].slice {
					m.changes++
				}
				m.jobs[i].slice = slice
				if m.now > modelEnd-3*time.Second {
					m.least = min(m.least, slice)
				}
			}
		}
	}
	parts, sum := make([]float64, len(m.jobs)), 0.0
	for i := range m.jobs {
		parts[i] = float64(m.jobs[i].had - start[i])
		sum += parts[i]
	}
	for i := range parts {
		parts[i] *= 100 / sum
	}
	return parts
}

// mostSwing is the standard deviation, in points, of what a job may have in 200 ms.
const mostSwing = 10.0

// swingOf is the standard deviation of the means of so many windows.
func swingOf(windows []float64, n int) float64 {
	var sum, squares, count float64
	for i := 0; i+n <= len(windows); i += n {
		mean := 0.0
		for _, w := range windows[i : i+n] {
			mean += w / float64(n)
		}
		sum, squares, count = sum+mean, squares+mean*mean, count+1
	}
	return math.Sqrt(max(0, squares/count-sum*sum/count/count))
}

func TestABalanceGivesJobsThatWaitTheirShares(t *testing.T) {
	ms := time.Millisecond
	for _, c := range []struct {
		name string
		jobs []modelJob
	}{
		{"steps of 13 ms", []modelJob{{share: 30, step: 13 * ms}, {share: 70, step: 13 * ms}}},
		{"steps of 42 ms", []modelJob{{share: 30, step: 42 * ms}, {share: 70, step: 42 * ms}}},
		{"steps of 3 and 20 ms", []modelJob{{share: 70, step: 3 * ms}, {share: 30, step: 20 * ms}}},
		{"steps with pauses", []modelJob{{share: 30, step: 12 * ms, pause: 1 * ms}, {share: 70, step: 12 * ms, pause: 1 * ms}}},
		{"steps beside endless work", []modelJob{{share: 30, step: 13 * ms}, {share: 70}}},
		{"endless work beside steps", []modelJob{{share: 30}, {share: 70, step: 13 * ms}}},
		{"four equal ones", []modelJob{{share: 25, step: 13 * ms}, {share: 25, step: 5 * ms}, {share: 25}, {share: 25, step: 40 * ms}}},
	} {
		plain := (&model{jobs: append([]modelJob{}, c.jobs...)}).run(t, false)
		m := &model{jobs: append([]modelJob{}, c.jobs...)}
		parts := m.run(t, true)
		changes := float64(m.changes) / 6 / float64(len(c.jobs))
		swings := []float64{}
		for i := range m.jobs {
			swings = append(swings, swingOf(m.jobs[i].windows, 4))
		}
		t.Logf("%s: %.1f, with slices by share alone %.1f; %.1f changes of each slice a second; swings %.1f", c.name, parts, plain, changes, swings)
		if changes > 6 { // each costs the card 0.4 ms
			t.Errorf("%s: each slice is changed %.1f times a second, want at most 6", c.name, changes)
		}
		for i, part := range parts {
			if math.Abs(part-float64(c.jobs[i].share)) > 1 {
				t.Errorf("%s: job %d had %.1f %%, want %d ± 1", c.name, i+1, part, c.jobs[i].share)
			}
			// Not twice its share and a third of it in turn: its steps take as long as its
			// worst windows say.
			if swing := swingOf(m.jobs[i].windows, 4); swing > mostSwing {
				t.Errorf("%s: what job %d had in 200 ms differs by %.1f points, want at most %.0f", c.name, i+1, swing, mostSwing)
			}
		}
	}
}

// The job that began first has spent its credit when the other one comes; that one keeps its
// own only for as long as it lacks some of its share. For as long as it did, all had slices of
// 2 and 6 ms, and two trainings lost 4.5 % of an H200 to that.
func TestWhoBeganFirstIsForgotten(t *testing.T) {
	for first := range 2 {
		for _, steps := range [][2]time.Duration{{13, 13}, {13, 40}, {5, 30}} {
			m := &model{jobs: []modelJob{
				{share: 30, step: steps[0] * time.Millisecond},
				{share: 70, step: steps[1] * time.Millisecond},
			}}
			for i := range m.jobs {
				if i != first {
					m.jobs[i].state = jobState{credit: float64(m.jobs[i].share) / 100 * float64(creditMax), eager: true}
				}
			}
			parts := m.run(t, true)
			t.Logf("job %d first, steps of %d ms: %.1f, slices of %v at least", first+1, steps, parts, m.least)
			if m.least < 4*time.Millisecond {
				t.Errorf("job %d first, steps of %d ms: slices of %v after %v, want 4 ms at least", first+1, steps, m.least, modelEnd-3*time.Second)
			}
		}
	}
}

// Who counts on neighbours is told so again and again, and nobody else is.
func TestOpenGatesOfJobsWithALimitHaveALease(t *testing.T) {
	second := uint64(time.Second)
	for _, c := range []struct {
		name   string
		claims []Claim
		want   []bool
	}{
		{"two that fill the card", []Claim{claim(1, 30, hard, 1), claim(2, 70, hard, 1)}, []bool{true, true}},
		{"two that do not: their budgets hold them", []Claim{claim(1, 30, hard, 1), claim(2, 50, hard, 1)}, []bool{false, false}},
		{"alone: its budget holds it", []Claim{claim(1, 30, hard, 1)}, []bool{false}},
		{"soft ones", []Claim{claim(1, 30, soft, 1), claim(2, 70, soft, 1)}, []bool{false, false}},
		{"a soft one with a ceiling", []Claim{withCeiling(claim(1, 30, soft, 1), 60), claim(2, 70, soft, 1)}, []bool{true, false}},
		{"turns", []Claim{noSlices(claim(1, 30, hard, 1)), claim(2, 70, hard, 1)}, []bool{false, false}},
	} {
		r := &Runner{leases: map[Key]uint64{}}
		told := map[uint64]bool{}
		for now := 10 * second; now < 20*second; now += second / 20 {
			plan := Plan(c.claims, params)
			r.lease(c.claims, plan, now)
			for i, want := range c.want {
				until := plan[c.claims[i].Key].LeaseNS
				if (until != 0) != want || want && (until < now+3*second || until > now+4*second) {
					t.Fatalf("%s: job %d: a lease until %d at %d, want one: %v", c.name, i+1, until, now, want)
				}
				if limit, _ := limitOf(c.claims[i]); want && plan[c.claims[i].Key].Cores != limit {
					t.Fatalf("%s: job %d: the lease leaves it %d %%, want %d", c.name, i+1, plan[c.claims[i].Key].Cores, limit)
				}
				told[until] = true
			}
		}
		if len(told) > 12 {
			t.Errorf("%s: told %d times in 10 s", c.name, len(told))
		}
	}
}

func allOpen(Key) bool { return true }
