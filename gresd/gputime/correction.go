// SPDX-License-Identifier: Apache-2.0

package gputime

import "time"

// mostOvercharge is by how much charges can exceed the work: a launch of 5 µs that its host needs 25 µs
// for. A larger difference shows a late sample, or a forged number.
const mostOvercharge = 10

// correction compares the charges of a job on a card with its work.
type correction struct {
	charged, gaps growing
	at            time.Time // when they were last read
	left          time.Duration
	given         time.Duration // by the last sample
	// idle is the part of the gaps in which the card did not work. In all of the last gaps, it worked
	// for work.
	idle, work, all float64
}

// growing is a sum in the job's cache, in nanoseconds. It can be forged.
type growing struct {
	sum   uint64
	until float64 // of it, up to the last sample
}

// read returns the growth up to a sample: a part of the growth since the last call.
func (g *growing) read(sum uint64, part float64, most time.Duration) time.Duration {
	before := g.until
	g.until = float64(g.sum) + part*float64(sum-g.sum)
	g.sum = sum
	return time.Duration(max(0, min(g.until-before, float64(most))))
}

// read returns the growth of charged_ns and gaps_ns between the last two samples. Both are interpolated:
// a sample is older than the cache.
func (c *correction) read(charged, gaps uint64, u Used, now time.Time) (dCharged, dGaps time.Duration) {
	first := c.at.IsZero() || charged < c.charged.sum || gaps < c.gaps.sum
	part := 1.0
	if span := now.Sub(c.at); !first && span > 0 {
		part = max(0, min(1, float64(u.Until.Sub(c.at))/float64(span)))
	}
	c.at = now
	if first {
		c.charged, c.gaps = growing{charged, float64(charged)}, growing{gaps, float64(gaps)}
		return u.Most, 0
	}
	return c.charged.read(charged, part, 2*u.Span), c.gaps.read(gaps, part, 2*u.Span)
}

// memory is the time over which the idle part of gaps is averaged: samples and charges do not cover
// exactly the same time.
const memory = 3 * time.Second

// learn compares a sample with its charges. Each launch of a slow host is followed by a gap: the driver's
// sample shows how much of the gaps was work.
func (c *correction) learn(charged, gaps time.Duration, u Used) {
	if u.Least < u.Most || u.Most == 0 {
		return
	}
	keep := max(0, 1-float64(u.Span)/float64(memory))
	work := float64(u.Most-charged) + float64(gaps)*(1-c.idle)
	c.work = keep*c.work + max(0, min(float64(gaps), work))
	if c.all = keep*c.all + float64(gaps); c.all > 0 {
		c.idle = 1 - c.work/c.all
	}
}

// add returns by how much the balance is to change for one sample, in whole microseconds. One percent of
// the time can be a rounding of the driver's: it is left for the next sample. A job gets back no more
// than it had left of its limit by the driver's own account, less half a percent of the time, however
// much it was charged.
func (c *correction) add(charged time.Duration, u Used, limit time.Duration) (d time.Duration) {
	band, room := u.Span/100, limit+c.given-u.Most-u.Span/200
	over, under := c.left+charged-u.Most, c.left+charged-u.Least
	c.given, c.left = 0, 0
	switch {
	case over > band:
		d = max(0, min(over-band, room, mostOvercharge*u.Most, u.Span-limit)+time.Microsecond-1).Truncate(time.Microsecond)
		c.given, c.left = d, min(over-d, band)
		if u.Most == 0 { // the sample is late, perhaps
			c.left = min(over, limit)
		}
	case under < -band:
		d = under.Truncate(time.Microsecond)
		c.left = under - d
	case over > 0:
		c.left = over
	case under < 0:
		c.left = under
	}
	return d
}
