// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math"
)

// Trend is a straight line through values that were taken at equal distances.
type Trend struct {
	N           int
	First, Last float64 // the values themselves
	Growth      float64 // of the line, from the first value to the last
	Error       float64 // standard error of Growth, by what is left beside the line
}

// TrendOf fits a line by least squares. It wants three values or more.
func TrendOf(v []float64) Trend {
	n := float64(len(v))
	t := Trend{N: len(v)}
	if len(v) < 3 {
		return t
	}
	t.First, t.Last = v[0], v[len(v)-1]
	var mean float64
	for _, y := range v {
		mean += y / n
	}
	var sxy, sxx float64
	for i, y := range v {
		x := float64(i) - (n-1)/2
		sxy, sxx = sxy+x*(y-mean), sxx+x*x
	}
	slope := sxy / sxx
	var left float64
	for i, y := range v {
		d := y - mean - slope*(float64(i)-(n-1)/2)
		left += d * d
	}
	t.Growth, t.Error = slope*(n-1), math.Sqrt(left/(n-2)/sxx)*(n-1)
	return t
}

// Leaks says whether the growth is real, which is three standard errors, and more
// than the least that counts.
func (t Trend) Leaks(least float64) bool { return t.Growth > least && t.Growth > 3*t.Error }

func (t Trend) String() string {
	return fmt.Sprintf("%d values, first %.0f, last %.0f, growth %+.1f ± %.1f", t.N, t.First, t.Last, t.Growth, t.Error)
}
