// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/cardtime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// lateTimes answers with what was true when it was asked before, as the meter does.
type lateTimes struct {
	fakeTimes
	answer cardtime.Account
	asks   int
}

func (l *lateTimes) OnCard(gpu.UUID) (cardtime.Account, bool) {
	old := l.answer
	l.answer = l.account
	l.asks++
	return old, old.At != 0 && l.known
}

// contended is a node with a card and jobs, which compete for it: job 1, of 16 %, waits for
// its results, the others, of the rest in equal parts, never do.
type contended struct {
	*fakeGrants
	jobs  uint32
	times lateTimes
	r     *Runner
	l     looks
	now   time.Time
	reads map[uint32]int
	slots map[uint32]*libvgpu.SlotView
	part  float64 // of the card that job 1 takes; 0: it sleeps
}

const tickOfNode = 50 * time.Millisecond

func newContended(records bool, jobs uint32) *contended {
	c := &contended{
		fakeGrants: newFakeGrants(), jobs: jobs, now: time.Unix(1000, 0), reads: map[uint32]int{}, part: 0.1,
		slots: map[uint32]*libvgpu.SlotView{},
	}
	c.times.known, c.times.account.At = records, time.Hour
	for job := uint32(1); job <= jobs; job++ {
		s := slot(job, 1, 0)
		s.HostPID, s.OnHost = job, true
		c.slots[job] = &s
		c.add(job, 84/(jobs-1), view(s))
	}
	c.add(1, 16, c.views[1])
	c.r = NewRunner(c, params, tickOfNode, slog.New(slog.DiscardHandler))
	c.r.Measure(&c.times)
	c.l.full = c.now
	return c
}

func (c *contended) Cache(job uint32, maxAge time.Duration) (libvgpu.CacheView, error) {
	c.reads[job]++
	return c.fakeGrants.Cache(job, maxAge)
}

// pass lets so many milliseconds pass.
func (c *contended) pass(ms int) {
	for range ms {
		parts := map[uint32]float64{}
		for job, s := range c.slots {
			parts[job] = (1 - c.part) / float64(c.jobs-1)
			if job == 1 {
				parts[job] = c.part
			}
			card := libvgpu.SlotCard{Launches: s.Cards[0].Launches, GPUNS: s.Cards[0].GPUNS, Syncs: s.Cards[0].Syncs}
			card.GPUNS += uint64(parts[job] * 1e6)
			if parts[job] > 0 {
				card.Launches++
				if job == 1 && c.now.UnixMilli()%20 == 0 {
					card.Syncs++
				}
			}
			s.Cards = []libvgpu.SlotCard{card}
			c.views[job] = view(*s)
		}
		c.times.pass(time.Millisecond, parts)
		c.now = c.now.Add(time.Millisecond)
		c.r.lookWhenDue(&c.l, func() time.Time { return c.now })
	}
}

// What contended jobs cost gresd is what it reads of them: all of them at each tick, and
// more often no more than what says whether the one that waits goes first.
func TestOneThatWaitsDoesNotHaveAllReadMoreOften(t *testing.T) {
	for _, jobs := range []uint32{2, 8} {
		for _, records := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d jobs, records %v", jobs, records), func(t *testing.T) {
				readsAndAsks(t, newContended(records, jobs), records)
			})
		}
	}
}

func readsAndAsks(t *testing.T, c *contended, records bool) {
	t.Helper()
	const ticks = int(time.Second / tickOfNode)
	c.pass(4000)
	if !c.r.quick || !c.r.sampler.jobs[jobKey{1, 0}].eager {
		t.Fatal("job 1 is not followed, or not eager")
	}
	clear(c.reads)
	c.times.asks, c.looks = 0, 0
	c.pass(1000)
	if c.looks > ticks+1 {
		t.Errorf("%d looks a second at all jobs, want %d", c.looks, ticks)
	}
	for job, n := range c.reads {
		most := ticks + 1
		if job == 1 && !records {
			most = 67
		}
		if n > most {
			t.Errorf("the file of job %d was read %d times a second, want at most %d", job, n, most)
		}
	}
	if !records {
		return
	}
	// At each tick; and once between, where its slices are 4 of 6 ms: it has enough credit
	// for one peek less. Beside seven its credit is seldom gone before the next tick.
	least, most := 2*ticks-2, 2*ticks+2
	if c.jobs == 8 {
		least, most = ticks-2, ticks+ticks/2
	}
	if asks := c.times.asks; asks < least || asks > most {
		t.Errorf("the card was asked %d times a second, want %d to %d", asks, least, most)
	}
	// One that has to pay back cannot have credit soon.
	c.part = 0.7
	c.pass(2000)
	c.times.asks = 0
	if c.pass(1000); c.times.asks > ticks+2 {
		t.Errorf("the card was asked %d times a second of a job that pays back, want %d", c.times.asks, ticks)
	}
}

// Where jobs take turns, quick looks are at all jobs.
func TestWhereJobsTakeTurnsQuickLooksAreAtAll(t *testing.T) {
	for _, turns := range []bool{false, true} {
		c := newContended(true, 8)
		if turns {
			p := params
			p.Engine = Turns
			c.r.Set(p, tickOfNode)
		}
		c.pass(4000)
		c.looks = 0
		c.pass(1000)
		if many := c.looks > 50; many != turns {
			t.Errorf("turns %v: %d looks a second at all jobs", turns, c.looks)
		}
	}
}

// within passes time until something is so, and returns how many milliseconds that took.
func (c *contended) within(t *testing.T, what string, is func() bool) int {
	t.Helper()
	for ms := 1; ms < 1000; ms++ {
		if c.pass(1); is() {
			return ms
		}
	}
	t.Fatalf("not within a second: %s", what)
	return 0
}

// Whatever the looks' moments: who waits goes first until its credit is gone, and no
// more than two peeks longer; and that it begins to work is seen by one.
func TestAPeekTellsWhoGoesFirst(t *testing.T) {
	const peek = 17 // ms
	for _, records := range []bool{true, false} {
		for offset := 0; offset < 50; offset += 7 {
			c := newContended(records, 2)
			c.pass(4000 + offset)
			short := c.sched[2].SliceUS
			// It has saved up 16 % of creditMax, gets as much of each second, and of what it
			// did not take before the next look what is more than the most is not lost.
			saved, gets := 0.16*float64(creditMax.Milliseconds()), 0.16
			more := (gets - c.part) * float64((tickOfNode + quickTick).Milliseconds())
			c.part = 0.65 // its slices are 4 of 6 ms
			gone, late := int(saved/(c.part-gets)), int(more/(c.part-gets))+2*peek+2
			took := c.within(t, "its credit is gone", func() bool { return c.sched[2].SliceUS > 2*short })
			if took < gone-2*peek || took > gone+late {
				t.Errorf("records %v, %d ms after a look: it went first for %d ms, want %d", records, offset, took, gone)
			}
			c.part = 0
			c.within(t, "it sleeps", func() bool { return c.sched[2].Others == 0 })
			c.pass(100)
			c.part = 0.1
			if took := c.within(t, "it works", func() bool { return c.sched[2].Others == 1 }); took > peek {
				t.Errorf("records %v: that it works was seen after %d ms, want at most %d", records, took, peek)
			}
		}
	}
}
