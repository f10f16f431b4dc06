// SPDX-License-Identifier: Apache-2.0

package arbiter

// slicesOf returns the slice of each process of each claim, in microseconds.
// They are in proportion to the shares, but for the jobs below an eager one:
// what such a job waits for is the sum of their slices, so these share a short
// time, and its own are as long as the card's period so that a burst is served
// in one slice. It takes less than its share, so the others get theirs.
func slicesOf(claims []Claim, p Params) []uint32 {
	var long, short, every group
	isShort := make([]bool, len(claims))
	above := false // some eager job is above others in priority
	for i, c := range claims {
		every.add(c)
		above = above || higher(claims, i)
		if isShort[i] = waitsForEager(claims, i); isShort[i] {
			short.add(c)
		} else {
			long.add(c)
		}
	}
	if len(short.claims) == 0 {
		long.us = max(long.stretched(p, p.Period), roomy(claims, p))
	} else {
		short.us = min(short.stretched(p, shortTime(short, long, above)), longest(p)/2)
		// At least what its share is against theirs: while it does not use it all, that
		// takes nothing from them.
		own := uint64(max(2*2*shortWait, short.us)) * long.weight / max(1, short.weight)
		least := uint64(ownTurn)
		if above {
			least = uint64(p.Period)
		}
		most := p.Period
		if short.procs() > 1 { // or many would have more than their share while it works
			most = longest(p)
		}
		long.us = uint32(min(uint64(most), max(least, own)))
		long.us = min(long.stretched(p, long.us), longest(p)-short.us)
	}
	every.us = max(every.stretched(p, p.Period), roomy(claims, p))
	out := make([]uint32, len(claims))
	for i, c := range claims {
		if isShort[i] {
			out[i] = short.slice(c, p)
			if short.procs() == 1 {
				// Should the eager one give up so much at each wait that it lacks its share
				// even so, its gain makes this shorter. While it sleeps, nobody switches.
				out[i] = min(out[i], every.slice(c, p))
			}
		} else {
			out[i] = long.slice(c, p)
		}
	}
	return out
}

// group is jobs that have their slices in the same part of a period.
type group struct {
	us            uint32
	claims        []Claim
	weight, cores uint64
}

func (g *group) add(c Claim) {
	g.claims = append(g.claims, c)
	g.weight += c.weight()
	g.cores += uint64(c.Cores)
}

// procs are its busy processes.
func (g group) procs() (n uint32) {
	for _, c := range g.claims {
		n += c.Busy
	}
	return n
}

// slice is that of each process of a job.
func (g group) slice(c Claim, p Params) uint32 {
	us := c.weight() * uint64(g.us) / max(1, g.weight) / procs(c)
	// Who has had too much gets less than its share for a while, but never so little
	// that the card does nothing but switch.
	least := min(uint64(p.MinSlice), uint64(c.Cores)*uint64(g.us)/max(1, g.cores)/procs(c))
	return uint32(max(1, us, least))
}

// stretched is a time that is long enough for the smallest slice, up to the longest
// period: a switch between two contexts costs the same whatever the slice.
func (g group) stretched(p Params, us uint32) uint32 {
	most := uint64(longest(p))
	for _, c := range g.claims {
		needed := most
		if c.Cores > 0 {
			needed = (uint64(p.MinSlice)*g.cores*procs(c) + uint64(c.Cores) - 1) / uint64(c.Cores)
		}
		us = max(us, uint32(min(needed, most)))
	}
	return us
}

// shortTime is what the jobs with short slices have together, in microseconds. One process
// alone goes on while the eager job sleeps, whatever its slice is. Several switch all the
// time, and what that costs is taken from their shares: below an eager job of higher
// priority it may be half of that job's, for it takes less than it; but never do they
// switch more often than by slices like the driver's own, of 2 ms, or half of it.
func shortTime(short, long group, above bool) uint32 {
	var eager, kernel uint32
	busy := short.procs()
	for _, c := range short.claims {
		kernel = max(kernel, c.Kernel/1000)
	}
	for _, c := range long.claims {
		if c.Eager {
			eager += c.Cores
		}
	}
	slice := uint32(2 * shortWait)
	if above {
		lost := max(1, min(eager, 100)) // of 200
		// A kernel that does not fit is on the card twice.
		slice = min(slice, max(shortWait, kernel+switchCost, switchCost*(200-lost)/lost))
	}
	switch {
	case busy > 1:
		return busy * slice
	case above:
		return shortWait
	}
	return 2 * shortWait
}

// goodSlice is the slice from which switching costs less than 3 % of the card, in
// microseconds (measured on an H200: 96.9 % of solo work are left at 6000, 95.2 at
// 3000, 92.1 at 1500).
const goodSlice = 6000

// roomy is the period in which every busy process has a good slice on the average:
// the more take part, the longer it is, up to the longest that is allowed.
func roomy(claims []Claim, p Params) uint32 {
	var procs uint64
	for _, c := range claims {
		procs += uint64(c.Busy)
	}
	return uint32(min(procs*goodSlice, uint64(longest(p))))
}

// longest is the longest period.
func longest(p Params) uint32 { return max(p.Period, p.MaxPeriod) }

// shortWait is what a job of higher priority waits for one that is below it, in
// microseconds.
const shortWait = 1000

// switchCost is what the card loses to a switch, in microseconds (measured on an H200:
// 150 to 300).
const switchCost = 200

// ownTurn is the slice of an eager job among equals, in microseconds: a burst of
// work gets through, and the others keep a third of the card should it not end.
const ownTurn = 4000
