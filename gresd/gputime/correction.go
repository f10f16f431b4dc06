// SPDX-License-Identifier: Apache-2.0

package gputime

import "time"

// mostOvercharge is by how much charges can exceed the work: a launch of 5 µs that its host needs 25 µs
// for. A larger difference shows a late sample, or a forged number.
const mostOvercharge = 10

// correction compares the charges of a job on a card with its work.
type correction struct {
	sum   uint64 // charged_ns when it was last read; it can be forged
	at    time.Time
	until float64 // of it, up to the last sample
	left  time.Duration
	given time.Duration // by the last sample
}

// read returns the growth of charged_ns between the last two samples. Charges up to a sample are
// interpolated: a sample is older than the cache.
func (c *correction) read(sum uint64, u Used, now time.Time) time.Duration {
	first, before := c.at.IsZero() || sum < c.sum, c.until
	part := 1.0
	if span := now.Sub(c.at); !first && span > 0 {
		part = max(0, min(1, float64(u.Until.Sub(c.at))/float64(span)))
	}
	c.until = float64(c.sum) + part*float64(sum-c.sum)
	c.sum, c.at = sum, now
	if first {
		c.until = float64(sum)
		return u.Most
	}
	return time.Duration(max(0, min(c.until-before, 2*float64(u.Span))))
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
