// SPDX-License-Identifier: Apache-2.0

package gputime

import "time"

// mostOvercharge is by how much charges can exceed the work: a launch of 5 µs that its host needs 25 µs
// for. A larger difference shows a late sample, or a forged number.
const mostOvercharge = 10

// correction compares the charges of a job on a card with its work.
type correction struct {
	charged, gaps, idle growing
	balance             time.Duration
	at                  time.Time // when they were last read
	left                time.Duration
	given               time.Duration // by the last sample
	// During the last gaps, with a length of all, the card worked for work. idlePart is the idle part of
	// the gaps, 0 to 1.
	idlePart, work, all float64
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

// sums are the values in a job's cache, in nanoseconds: all charges, all gaps, all idle time that was not
// charged, and the balance.
type sums struct {
	charged, gaps, idle uint64
	balance             int64
}

// growth is the change of sums between two samples.
type growth struct{ charged, gaps, idle, saved time.Duration }

// read returns the growth between the last two samples. It is interpolated: a sample is older than the
// cache.
func (c *correction) read(s sums, u Used, now time.Time) growth {
	first := c.at.IsZero() || s.charged < c.charged.sum || s.gaps < c.gaps.sum || s.idle < c.idle.sum
	part := 1.0
	if span := now.Sub(c.at); !first && span > 0 {
		part = max(0, min(1, float64(u.Until.Sub(c.at))/float64(span)))
	}
	saved := time.Duration(s.balance) - c.balance
	c.at, c.balance = now, time.Duration(s.balance)
	if first {
		c.charged, c.gaps, c.idle = begin(s.charged), begin(s.gaps), begin(s.idle)
		return growth{charged: u.Most}
	}
	most := 2 * u.Span
	return growth{
		c.charged.read(s.charged, part, most), c.gaps.read(s.gaps, part, most), c.idle.read(s.idle, part, most),
		max(-most, min(most, saved)),
	}
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
	work := float64(u.Most-g.charged-g.idle) + gaps
	c.work = keep*c.work + max(0, min(gaps, work))
	if c.all = keep*c.all + gaps; c.all > 0 {
		c.idlePart = 1 - c.work/c.all
	}
}

// add returns by how much the balance is to change for one sample, in whole microseconds. One percent of
// the time can be a rounding of the driver's: it is left for the next sample. A job gets back no more
// than it had left of its limit by the driver's own account, less half a percent of the time, however
// much it was charged. While the balance is full, the budget drops time: that time pays for differences
// of both kinds.
func (c *correction) add(g growth, u Used, limit time.Duration) (d time.Duration) {
	band, room := u.Span/100, limit+max(0, c.given)-u.Most-u.Span/200
	over, under := c.left+g.charged-u.Most, c.left+g.charged-u.Least
	dropped := max(0, limit+c.given-g.charged-g.saved)
	c.given, c.left = 0, 0
	switch {
	case over > band:
		d = max(0, min(over-band-dropped, room, mostOvercharge*u.Most, u.Span-limit)+time.Microsecond-1).Truncate(time.Microsecond)
		c.given, c.left = d, min(over-d, band)
		if u.Most == 0 { // the sample is late, perhaps
			c.left = min(over, limit)
		}
	case under < -band:
		d = min(0, under+dropped).Truncate(time.Microsecond)
		c.given, c.left = d, max(under-d, -band)
	case over > 0:
		c.left = over
	case under < 0:
		c.left = under
	}
	return d
}
