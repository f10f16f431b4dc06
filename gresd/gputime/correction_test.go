// SPDX-License-Identifier: Apache-2.0

package gputime

import (
	"math"
	"testing"
	"time"
)

const ms = time.Millisecond

// second adds a sample of one second. The job's limit is 20 %.
func (c *correction) second(charged, least, most time.Duration) time.Duration {
	return c.add(growth{charged: charged, waits: 1}, Used{Span: time.Second, Least: least, Most: most}, 200*ms)
}

func TestCorrection(t *testing.T) {
	for _, test := range []struct {
		name                 string
		before               correction
		charged, least, most time.Duration
		want                 time.Duration
		after                correction
	}{
		{"charges that are exact", correction{}, 200 * ms, 200 * ms, 200 * ms, 0, correction{}},
		{"a difference of one percent", correction{}, 110 * ms, 100 * ms, 100 * ms, 0, correction{left: 10 * ms}},
		{"and one percent too little", correction{}, 90 * ms, 100 * ms, 100 * ms, 0, correction{left: -10 * ms}},
		{"charged too much", correction{}, 150 * ms, 100 * ms, 100 * ms, 40 * ms, correction{left: 10 * ms, given: 40 * ms}},
		{"charged too little", correction{}, 150 * ms, 300 * ms, 300 * ms, -100 * ms, correction{left: -10 * ms}},
		{"what was left is carried over", correction{left: 10 * ms}, 104 * ms, 100 * ms, 100 * ms, 4 * ms, correction{left: 10 * ms, given: 4 * ms}},
		{"and comes to nothing", correction{left: 10 * ms}, 95 * ms, 100 * ms, 100 * ms, 0, correction{left: 5 * ms}},
		{"too little, below the limit", correction{}, 50 * ms, 100 * ms, 100 * ms, 0, correction{left: -10 * ms}},
		{"too little is carried over", correction{left: -8 * ms}, 196 * ms, 206 * ms, 206 * ms, -6 * ms, correction{left: -10 * ms}},
		{"no more than the limit left", correction{}, 500 * ms, 150 * ms, 150 * ms, 45 * ms, correction{left: 10 * ms, given: 45 * ms}},
		{"nothing at the limit", correction{}, time.Second, 200 * ms, 200 * ms, 0, correction{left: 10 * ms}},
		{"nothing above it", correction{}, time.Second, 300 * ms, 300 * ms, 0, correction{left: 10 * ms}},
		{"what was given is part of the limit", correction{given: 100 * ms}, 300 * ms, 200 * ms, 200 * ms, 90 * ms, correction{left: 10 * ms, given: 90 * ms}},
		{"but only once", correction{}, 300 * ms, 200 * ms, 200 * ms, 0, correction{left: 10 * ms}},
		{"charged a hundred times", correction{}, 200 * ms, 2 * ms, 2 * ms, 20 * ms, correction{left: 10 * ms, given: 20 * ms}},
		{"a sample that is late", correction{}, 200 * ms, 0, 0, 0, correction{left: 200 * ms}},
		{"and comes", correction{left: 200 * ms}, 200 * ms, 400 * ms, 400 * ms, 0, correction{}},
		{"no more than all of the card", correction{given: 900 * ms}, time.Second, 150 * ms, 150 * ms, 800 * ms, correction{left: 10 * ms, given: 800 * ms}},
		{"between the bounds", correction{}, 300 * ms, 100 * ms, 400 * ms, 0, correction{}},
		{"above both bounds", correction{}, 450 * ms, 100 * ms, 150 * ms, 45 * ms, correction{left: 10 * ms, given: 45 * ms}},
		{"below both bounds", correction{}, 150 * ms, 250 * ms, 300 * ms, -50 * ms, correction{left: -10 * ms}},
		{"nothing is known", correction{left: 7 * ms}, 900 * ms, 0, time.Second, 0, correction{}},
		{"whole microseconds", correction{}, 150*ms + 999, 100 * ms, 100 * ms, 40*ms + time.Microsecond, correction{left: 10*ms - 1, given: 40*ms + time.Microsecond}},
	} {
		c := test.before
		if got := c.second(test.charged, test.least, test.most); got != test.want || c != test.after {
			t.Errorf("%s: %v, then %+v; want %v, %+v", test.name, got, c, test.want, test.after)
		}
	}
}

// A job that did not wait for its budget gets nothing back: its balance is full.
func TestAJobThatDidNotWaitGetsNothing(t *testing.T) {
	var c correction
	u := Used{Span: time.Second, Least: 50 * ms, Most: 50 * ms}
	if got := c.add(growth{charged: 150 * ms}, u, 200*ms); got != 0 || c != (correction{left: 10 * ms}) {
		t.Errorf("%v, then %+v; want 0, and one percent carried over", got, c)
	}
}

// budget is a job whose charges are wrong by a factor: it uses what its budget has.
type budget struct {
	correction
	factor   float64 // charges by work
	most     time.Duration
	forged   time.Duration // added to charged_ns in each second
	granted  time.Duration // by the last correction
	lastWork time.Duration
}

func (b *budget) run(seconds int) (mean time.Duration) {
	for range seconds {
		b.lastWork = min(b.most, time.Duration(float64(max(0, 200*ms+b.granted))/b.factor))
		charged := time.Duration(float64(b.lastWork) * b.factor)
		b.granted = b.second(min(charged+b.forged, 2*time.Second), b.lastWork, b.lastWork)
		mean += b.lastWork / time.Duration(seconds)
	}
	return mean
}

func TestWhatCorrectionsComeTo(t *testing.T) {
	for _, test := range []struct {
		name      string
		budget    budget
		least, at time.Duration // of the mean of the second ten seconds, and the most of all
	}{
		{"a host that is charged twice the work", budget{factor: 2, most: time.Second}, 194 * ms, 200 * ms},
		{"and five times", budget{factor: 5, most: time.Second}, 170 * ms, 200 * ms},
		{"charged half of the work", budget{factor: 0.5, most: time.Second}, 150 * ms, 210 * ms},
		{"exact", budget{factor: 1, most: time.Second}, 200 * ms, 200 * ms},
		{"exact, with a forged sum", budget{factor: 1, most: time.Second, forged: time.Second}, 200 * ms, 200 * ms},
		{"with a forged sum and little work", budget{factor: 1, most: 20 * ms, forged: time.Second}, 20 * ms, 20 * ms},
	} {
		test.budget.run(10)
		if got := test.budget.run(10); got < test.least || got > test.at {
			t.Errorf("%s: %v of each second, want %v to %v", test.name, got, test.least, test.at)
		}
	}
	// A job that forges its sum saves up for a while: later it gets less than it left.
	b := budget{factor: 1, most: 20 * ms, forged: time.Second}
	b.run(20)
	b.most = time.Second
	first := b.run(1)
	if rest := b.run(9); first > 400*ms || first+9*rest > 10*200*ms+200*ms {
		t.Errorf("after a pause it had %v, then %v of each second", first, rest)
	}
}

// The driver's samples are whole percents, and charges are 5 % too high or too low. Over many samples, the
// job still has its limit.
func TestRoundingDoesNotAddUp(t *testing.T) {
	for _, limit := range []time.Duration{32 * ms, 115 * ms, 164500 * time.Microsecond} {
		var c correction
		var sum, granted time.Duration
		for i := range 600 {
			factor := 1 + 0.05*math.Sin(float64(i))
			work := time.Duration(float64(max(0, limit+granted)) / factor)
			rounded := work.Round(10 * ms)
			u := Used{Span: time.Second, Least: rounded, Most: rounded}
			granted = c.add(growth{charged: limit + granted, waits: 1}, u, limit)
			sum += work / 600
		}
		if sum < limit-3*ms || sum > limit+ms {
			t.Errorf("limit %v of each second: had %v", limit, sum)
		}
	}
}

func TestChargesAreReadUpToTheSample(t *testing.T) {
	var c correction
	begin := time.Now()
	at := func(sum uint64, late time.Duration, now int) time.Duration {
		end := begin.Add(time.Duration(now) * time.Second)
		g := c.read(sums{sum, sum / 2, 0}, Used{Until: end.Add(-late), Span: time.Second, Most: 7}, end)
		charged, gaps := g.charged, g.gaps
		if charged != 7 && charged < 2*time.Second && (gaps < charged/2-ms || gaps > charged/2+ms) {
			t.Errorf("gaps of %v in %v, want half", gaps, charged)
		}
		return charged
	}
	if got := at(500e6, 0, 0); got != 7 {
		t.Errorf("the first sample: %v, want what was measured", got)
	}
	for i, test := range []struct {
		sum  uint64
		late time.Duration
		want time.Duration
	}{
		{700e6, 0, 200 * ms},
		{900e6, 250 * ms, 150 * ms},
		{1100e6, 250 * ms, 200 * ms},
		{1300e6, 2 * time.Second, 50 * ms},
		{1500e6, 0, 200*ms + 200*ms},
		{1500e6 + 1<<63, 0, 2 * time.Second}, // forged
		{1, 0, 7},                            // a new cache
		{100e6, 0, 100 * ms},
	} {
		if got := at(test.sum, test.late, i+1); got < test.want-1000 || got > test.want+1000 {
			t.Errorf("sample %d: %v, want %v", i, got, test.want)
		}
	}
}

// A host needs 20 us for each kernel of 5 us: three quarters of the job's gaps are idle.
func TestTheIdlePartOfGapsIsLearned(t *testing.T) {
	var c correction
	for i, work := range []time.Duration{50 * ms, 200 * ms, 210 * ms, 190 * ms, 200 * ms} {
		gaps := 4 * work
		charged := time.Duration(float64(gaps) * (1 - c.idle))
		c.learn(growth{charged: charged, gaps: gaps}, Used{Span: time.Second, Least: work, Most: work})
		if c.idle < 0.749 || c.idle > 0.751 {
			t.Errorf("second %d: %.3f of the gaps are idle, want 0.75", i, c.idle)
		}
	}
	for _, test := range []struct {
		name        string
		gaps        time.Duration
		least, most time.Duration
	}{
		{"no gaps", 0, 5 * ms, 5 * ms},
		{"bounds that differ", 500 * ms, 100 * ms, 200 * ms},
		{"a late sample", 500 * ms, 0, 0},
	} {
		before := c.idle
		if c.learn(growth{charged: 500 * ms, gaps: test.gaps}, Used{Span: time.Second, Least: test.least, Most: test.most}); c.idle != before {
			t.Errorf("%s: %.3f of the gaps are idle, want %.3f as before", test.name, c.idle, before)
		}
	}
	// Longer kernels fill the gaps: this is learned in a few seconds.
	for range 10 {
		c.learn(growth{charged: time.Duration(float64(400*ms) * (1 - c.idle)), gaps: 400 * ms}, Used{Span: time.Second, Least: 400 * ms, Most: 400 * ms})
	}
	if c.idle > 0.02 {
		t.Errorf("the card was never idle: %.3f, want 0", c.idle)
	}
}
