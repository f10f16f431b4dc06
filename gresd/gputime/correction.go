// SPDX-License-Identifier: Apache-2.0

package gputime

import "time"

// mostOvercharge is by how much charges can exceed the work: a launch of 5 µs that its host needs 25 µs
// for. A larger difference shows a late sample, or a forged number.
const mostOvercharge = 10

// correction compares the charges of a job on a card with its work.
type correction struct {
	charged, gaps, waits growing
	at                   time.Time // when they were last read
	left                 time.Duration
	given                time.Duration // by the last sample
	// idle is the part of the gaps in which the card did not work. In all of the last gaps, it worked
	// for work.
	idle, work, all float64
}

// growing is a sum in the job's cache, in nanoseconds. It can be forged.
type growing struct {
	sum   uint64
	until float64 // of it, up to the last sample
}

func begin(sum uint64) growing { return growing{sum, float64(sum)} }

// read returns the growth up to a sample: a part of the growth since the last call.
func (g *growing) read(sum uint64, part float64, most time.Duration) time.Duration {
	before := g.until
	g.until = float64(g.sum) + part*float64(sum-g.sum)
	g.sum = sum
	return time.Duration(max(0, min(g.until-before, float64(most))))
}

// sums are what the budget of a job adds up, in nanoseconds.
type sums struct{ charged, gaps, waits uint64 }

// growth is the same between two samples.
type growth struct{ charged, gaps, waits time.Duration }

// read returns the growth between the last two samples. It is interpolated: a sample is older than the
// cache.
func (c *correction) read(s sums, u Used, now time.Time) growth {
	first := c.at.IsZero() || s.charged < c.charged.sum || s.gaps < c.gaps.sum || s.waits < c.waits.sum
	part := 1.0
	if span := now.Sub(c.at); !first && span > 0 {
		part = max(0, min(1, float64(u.Until.Sub(c.at))/float64(span)))
	}
	c.at = now
	if first {
		c.charged, c.gaps, c.waits = begin(s.charged), begin(s.gaps), begin(s.waits)
		return growth{charged: u.Most}
	}
	most := 2 * u.Span
	return growth{c.charged.read(s.charged, part, most), c.gaps.read(s.gaps, part, most), c.waits.read(s.waits, part, most)}
}

// memory is the time over which the idle part of gaps is averaged: samples and charges do not cover
// exactly the same time.
const memory = 3 * time.Second

// learn compares a sample with its charges. Each launch of a slow host is followed by a gap: the driver's
// sample shows how much of the gaps was work.
func (c *correction) learn(g growth, u Used) {
	if u.Least < u.Most || u.Most == 0 {
		return
	}
	keep := max(0, 1-float64(u.Span)/float64(memory))
	gaps := float64(g.gaps)
	work := float64(u.Most-g.charged) + gaps*(1-c.idle)
	c.work = keep*c.work + max(0, min(gaps, work))
	if c.all = keep*c.all + gaps; c.all > 0 {
		c.idle = 1 - c.work/c.all
	}
}

// add returns by how much the balance is to change for one sample, in whole microseconds. One percent of
// the time can be a rounding of the driver's: it is left for the next sample. Only a job that waited for
// its budget gets time back, and no more than it had left of its limit by the driver's own account, less
// half a percent of the time, however much it was charged. Only work above the limit costs more.
func (c *correction) add(g growth, u Used, limit time.Duration) (d time.Duration) {
	band, room := u.Span/100, limit+c.given-u.Most-u.Span/200
	over, under := c.left+g.charged-u.Most, c.left+g.charged-u.Least
	beyond := max(0, u.Least-limit-c.given)
	c.given, c.left = 0, 0
	switch {
	case over > band && g.waits > 0:
		d = max(0, min(over-band, room, mostOvercharge*u.Most, u.Span-limit)+time.Microsecond-1).Truncate(time.Microsecond)
		c.given, c.left = d, min(over-d, band)
	case under < -band && beyond > 0:
		d = max(under, -beyond).Truncate(time.Microsecond)
		c.left = max(under-d, -band)
	case over > 0:
		c.left = min(over, band)
	case under < 0:
		c.left = max(under, -band)
	}
	if over > 0 && u.Most == 0 { // the sample is late, perhaps
		c.left = min(over, limit)
	}
	return d
}
