// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"fmt"
	"time"
)

const (
	// The judge looks at each second, and at the whole run.
	window  = time.Second
	runTime = 2500 * time.Millisecond
	// A job may exceed its limit by these parts of a second and of the whole run. Measurements are
	// not exact, and some launches are charged their estimate.
	overSecond, overAll = 0.06, 0.03
	// The saved budget, and the known work that starts when the budget is 0.
	burst = 20 * time.Millisecond
	// So many launches of an unknown kernel start at once, because their estimate is short.
	unseen = 6
	// 1 MiB within the card takes 5 ms.
	copy1MiB   = 5000 // us
	memgraphUS = 200  // us, of a kernel in a graph with memory nodes

	// A program with varying lengths is judged in its seconds 3 to 10. A program with a lease is
	// judged from second 3 to its end.
	mixedTime, leaseTime = 10 * time.Second, 5 * time.Second
	lease                = time.Second
	judgedFrom           = 2 * time.Second
	// Temporary: in these seconds together, a program with varying lengths may have 1.3 times its limit.
	// When the meter measures every launch, it may have its limit and one hundredth of the card.
	mixedFactor = 1.3

	// A ring may take twice its native time divided by its limit. A busy machine may take half as
	// long again, and delay 3 rounds, or one round by half a second.
	ringFactor, ringBusy, ringRounds, ringDelay = 2, 1.5, 3, 0.5
	slice                                       = 2 * time.Millisecond // the driver's default
	// The processes of a ring end at most so many seconds late.
	ringEnd  = 5.0
	ringTime = 5 * time.Second
)

// time returns how long the program runs.
func (p program) time() time.Duration {
	switch {
	case p.mixed():
		return mixedTime
	case p.lease:
		return leaseTime
	case p.ring():
		return ringTime
	}
	return runTime
}

// mixed returns true if launches of one kernel differ in length.
func (p program) mixed() bool { return p.has("vary") }

// longest is the time of the longest operation of each process.
func (p program) longest() []time.Duration {
	longest, all, graphs := make([]int, len(p.procs)), make([]int, len(p.procs)), make([]bool, len(p.procs))
	p.each(func(i, _ int, o operation) {
		us := 0
		switch {
		case o.word == "launch":
			us = o.arg[1]
		case o.word == "copy" && (o.arg[1]%19 == 15 || o.arg[1]%19 == 16):
			us = (o.arg[2]%4 + 1) * copy1MiB / 20
		case o.word == "copy" && o.arg[1]%19 < 15:
			us = (o.arg[2]%4 + 1) * copy1MiB
		case o.word == "vary", o.word == "ring":
			us = o.arg[2]
		case o.word == "memgraph":
			us = (o.arg[2]%8 + 1) * memgraphUS
		}
		longest[i], all[i] = max(longest[i], us), all[i]+us
		graphs[i] = graphs[i] || o.word == "graph"
	})
	out := make([]time.Duration, len(p.procs))
	for i, us := range longest {
		if graphs[i] {
			us = max(us, all[i])
		}
		out[i] = time.Duration(us) * time.Microsecond
	}
	return out
}

// bound is the time by which the job may exceed its limit at any time. This work is on its way when
// the budget is used up, and the job pays for it later.
func (p program) bound() time.Duration {
	most := burst
	for _, longest := range p.longest() {
		most += unseen * longest
	}
	return most
}

// fits returns true if the program always needs less than its memory limit. No call may then be
// refused. Programs with pools never fit, because a free in a stream can be late.
func (p program) fits() bool {
	const context, copies, code = 544, 32, 64
	if p.has("alloc", "pool", "give") {
		return false
	}
	mib := 0
	for i, proc := range p.procs {
		if proc.livesMS != 0 { // it starts again while its memory is still charged
			return false
		}
		one := program{procs: p.procs[i : i+1]}
		contexts := 1
		if one.has("context", "end", "reset", "retain", "green") {
			contexts = 5 + len(proc.threads)
		}
		mib += contexts * (context + code)
		if one.has("copy") {
			mib += contexts * len(proc.threads) * copies
		}
		for _, thread := range proc.threads {
			created, slots := 0, map[int]bool{}
			for _, o := range thread {
				switch o.word {
				case "memgraph":
					n := o.arg[2]%8 + 1
					if o.arg[3]%3 == 0 {
						n = 1
					}
					mib += 2 * n * (o.arg[1] + 2) // the last one of the slot can still run
				case "create":
					created = max(created, o.arg[1])
					slots[o.arg[0]] = true
				}
			}
			// Each of the 4 slots has a handle, a mapping and two descriptors. Each of these can
			// keep other memory.
			if len(slots) > 0 {
				mib += 4 * 4 * created
			}
		}
	}
	return mib <= p.memory<<10
}

// sample is the state of the card at one time. now, used and queued are the clock, the time in use,
// and the work in the queues, in ns. memory is in bytes. orphaned is the part of it that only
// descriptors keep after the exporter has ended: no job is charged for it (docs/security.md).
type sample struct{ now, used, memory, queued, orphaned uint64 }

// rounds is the progress of a ring: the rounds that began, the seconds since the first round, and the
// seconds of the longest round. late is in seconds, too.
type rounds struct {
	n                      int
	seconds, longest, late float64
}

// record is the result of a run, by the simulated card and the worker.
type record struct {
	samples []sample
	ring    rounds
}

func judge(p program, r record) (v verdict) {
	bad := func(format string, args ...any) {
		if v.why == "" {
			v.why = fmt.Sprintf(format, args...)
		}
	}
	samples := r.samples
	for _, s := range samples {
		if limit := uint64(p.memory) << 30; s.memory > limit+s.orphaned {
			bad("%d MiB of memory in use, %d of them orphaned, limit %d MiB", s.memory>>20, s.orphaned>>20, limit>>20)
		}
	}
	if p.mixed() || p.lease {
		samples = between(samples, judgedFrom, p.time())
	}
	limit, all := float64(p.limit)/100, overAll
	second := float64(p.bound()) // in nanoseconds, as whole
	whole := second
	if p.mixed() {
		all, whole = limit*(mixedFactor-1), 0
		for _, longest := range p.longest() {
			whole = max(whole, float64(longest))
		}
	}
	more := 0.0
	// A kernel of a ring can take a whole round, and four rounds can be on their way.
	if p.has("ring") {
		more += 4 * r.ring.longest * 1e9
	}
	if p.lease && len(samples) > 0 { // the job launched this while the gate was open
		more += float64(samples[0].queued)
	}
	part := func(from, to sample, over, bound float64) (float64, bool) {
		dt, used := float64(to.now-from.now), float64(to.used-from.used)
		return used / dt, used > dt*(limit+over)+bound+more
	}
	for i, j := 0, 0; j < len(samples); j++ {
		for ; samples[j].now-samples[i].now >= uint64(window); i++ {
			got, over := part(samples[i], samples[j], overSecond, second)
			v.sec = max(v.sec, got)
			if over {
				bad("%.3f of the card in a second, limit %d %%", got, p.limit)
			}
		}
	}
	if n := len(samples); n > 1 {
		got, over := part(samples[0], samples[n-1], all, whole)
		v.all = got
		if over {
			bad("%.3f of the card in %.1f s, limit %d %%", got, float64(samples[n-1].now-samples[0].now)/1e9, p.limit)
		}
	}
	return v
}

// between returns the samples of a part of a run.
func between(samples []sample, from, to time.Duration) (out []sample) {
	for _, s := range samples {
		if at := s.now - samples[0].now; at >= uint64(from) && at <= uint64(to) {
			out = append(out, s)
		}
	}
	return out
}

// lateRing compares a ring with its run without the library. It returns "" if the ring is in time.
func lateRing(p program, native, got rounds) string {
	if got.late > ringEnd {
		return fmt.Sprintf("the processes of the ring end %.1f s late", got.late)
	}
	if native.n < 2 || native.seconds <= 0 {
		return ""
	}
	seconds := (p.time() - window).Seconds() // a ring that has not begun after a second is late
	if got.n > 0 {
		seconds = got.seconds
	}
	rate, longer := float64(native.n)/native.seconds, float64(ringFactor*ringBusy*100)/float64(p.limit)
	// If the contexts happen to be in another order, the token goes around within one time slice. A
	// run with this order says nothing about the rounds of a run with the usual order.
	usual := rate <= 1/(float64(len(p.procs))*slice.Seconds())
	if want := rate*seconds/longer - ringRounds; usual && float64(got.n) < want {
		return fmt.Sprintf("%d rounds of the ring in %.1f s, want %.0f: without the library %.0f in a second", got.n, seconds, want, rate)
	}
	if most := native.longest*longer + ringDelay; got.longest > most {
		return fmt.Sprintf("a round of the ring took %.2f s, want %.2f: without the library at most %.3f", got.longest, most, native.longest)
	}
	return ""
}
