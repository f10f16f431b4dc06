// SPDX-License-Identifier: Apache-2.0

package gputime

import (
	"math"
	"testing"
	"time"
)

const ms = time.Millisecond

// second adds a sample of one second. The job's limit is 20 %, and its budget drops no time.
func (c *correction) second(charged, least, most time.Duration) time.Duration {
	saved := 200*ms + c.given - charged
	return c.add(growth{charged: charged, saved: saved}, Used{Span: time.Second, Least: least, Most: most}, 200*ms)
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
		{"charged too little", correction{}, 150 * ms, 300 * ms, 300 * ms, -150 * ms, correction{given: -150 * ms}},
		{"what was left is carried over", correction{left: 10 * ms}, 104 * ms, 100 * ms, 100 * ms, 4 * ms, correction{left: 10 * ms, given: 4 * ms}},
		{"and comes to nothing", correction{left: 10 * ms}, 95 * ms, 100 * ms, 100 * ms, 0, correction{left: 5 * ms}},
		{"too little is carried over", correction{left: -8 * ms}, 96 * ms, 100 * ms, 100 * ms, -12 * ms, correction{given: -12 * ms}},
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
		{"below both bounds", correction{}, 50 * ms, 100 * ms, 150 * ms, -50 * ms, correction{given: -50 * ms}},
		{"nothing is known", correction{left: 7 * ms}, 900 * ms, 0, time.Second, 0, correction{}},
		{"whole microseconds", correction{}, 150*ms + 999, 100 * ms, 100 * ms, 40*ms + time.Microsecond, correction{left: 10*ms - 1, given: 40*ms + time.Microsecond}},
	} {
		c := test.before
		if got := c.second(test.charged, test.least, test.most); got != test.want || c != test.after {
			t.Errorf("%s: %v, then %+v; want %v, %+v", test.name, got, c, test.want, test.after)
		}
	}
}

// The budget of a job that uses less than its limit drops time. This time pays for differences first.
func TestDroppedTimePaysForDifferences(t *testing.T) {
	for _, test := range []struct {
		name          string
		charged, work time.Duration
		dropped       time.Duration
		want          time.Duration
		after         correction
	}{
		{"charged too much", 100 * ms, 60 * ms, 100 * ms, 0, correction{left: 10 * ms}},
		{"more than was dropped", 180 * ms, 60 * ms, 20 * ms, 90 * ms, correction{left: 10 * ms, given: 90 * ms}},
		{"charged too little", 80 * ms, 110 * ms, 120 * ms, 0, correction{left: -10 * ms}},
		{"by more than was dropped", 180 * ms, 300 * ms, 20 * ms, -100 * ms, correction{left: -10 * ms, given: -100 * ms}},
	} {
		var c correction
		g := growth{charged: test.charged, saved: 200*ms - test.charged - test.dropped}
		if got := c.add(g, Used{Span: time.Second, Least: test.work, Most: test.work}, 200*ms); got != test.want || c != test.after {
			t.Errorf("%s: %v, then %+v; want %v, %+v", test.name, got, c, test.want, test.after)
		}
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
			granted = c.add(growth{charged: limit + granted}, u, limit)
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
		g := c.read(sums{charged: sum, gaps: sum / 2}, Used{Until: end.Add(-late), Span: time.Second, Most: 7}, end)
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

// A host needs 20 us for each kernel of 5 us: three quarters of the job's gaps are idle. Some of that time
// is charged, until it is learned.
func TestTheIdlePartOfGapsIsLearned(t *testing.T) {
	var c correction
	second := func(gaps, idle, work time.Duration) {
		c.learn(growth{charged: gaps - idle, gaps: gaps, idle: idle}, Used{Span: time.Second, Least: work, Most: work})
	}
	for i, test := range []struct{ work, idle time.Duration }{
		{50 * ms, 0},
		{200 * ms, 500 * ms},
		{210 * ms, 700 * ms},
		{190 * ms, 760 * ms},
		{200 * ms, 600 * ms},
	} {
		if second(4*test.work, test.idle, test.work); c.idlePart < 0.749 || c.idlePart > 0.751 {
			t.Errorf("second %d: %.3f of the gaps are idle, want 0.75", i, c.idlePart)
		}
	}
	before := c.idlePart
	second(0, 0, 5*ms)
	second(500*ms, 0, 0)
	c.learn(growth{charged: 500 * ms, gaps: 500 * ms}, Used{Span: time.Second, Least: 100 * ms, Most: 200 * ms})
	if c.idlePart != before {
		t.Errorf("no gaps, a late sample, and bounds that differ: %.3f, want %.3f as before", c.idlePart, before)
	}
	// Longer kernels fill the gaps: this is learned in a few seconds.
	for range 10 {
		second(400*ms, 300*ms, 400*ms)
	}
	if c.idlePart > 0.02 {
		t.Errorf("the card was never idle: %.3f, want 0", c.idlePart)
	}
}
