// SPDX-License-Identifier: Apache-2.0

// Package series turns the progress of a tenant into rates, windows and the
// figures that are told of them. It is pure but for [Read].
//
// Times are nanoseconds of CLOCK_MONOTONIC, work is in units, rates are units a
// second.
package series

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sort"
	"time"
)

// Sample is how much work was done by a time.
type Sample struct {
	T     int64
	Units float64
}

// Series are samples of one process, in the order of time.
type Series []Sample

// The file that vgpu-load writes: see load/samples.c.
const (
	magic      = 0x31444145474c5056
	headSize   = 32
	sampleSize = 24
)

var errFile = errors.New("not a file of samples")

// Read reads the file of one vgpu-load. The process may have been killed: what
// it had written counts.
func Read(path string) (Series, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

func decode(data []byte) (Series, error) {
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(data[at:]) }
	if len(data) < headSize || word(0) != magic {
		return nil, errFile
	}
	count, grid, kernel := word(8), float64(word(16)), float64(word(24))
	if count > uint64(len(data)-headSize)/sampleSize || grid == 0 {
		return nil, errFile
	}
	s := make(Series, count)
	for i := range s {
		at := headSize + i*sampleSize
		s[i].T = int64(word(at))
		if work := word(at + 8); work > 0 {
			s[i].Units = float64(work) / grid
		} else { // a simulated card counts kernels only
			s[i].Units = float64(word(at+16)) * kernel
		}
	}
	return s, nil
}

// At returns the work done by a time, by interpolation. Before the first sample
// and after the last it is theirs.
func (s Series) At(t int64) float64 {
	i := sort.Search(len(s), func(i int) bool { return s[i].T >= t })
	switch {
	case len(s) == 0:
		return 0
	case i == 0:
		return s[0].Units
	case i == len(s):
		return s[i-1].Units
	}
	a, b := s[i-1], s[i]
	return a.Units + (b.Units-a.Units)*float64(t-a.T)/float64(b.T-a.T)
}

// Rate is the work a second between two times.
func (s Series) Rate(from, to int64) float64 {
	if to <= from {
		return 0
	}
	return (s.At(to) - s.At(from)) * 1e9 / float64(to-from)
}

// Windows are the rates in windows of the given width, one behind the other.
func (s Series) Windows(from, to int64, width time.Duration) []float64 {
	var rates []float64
	for t := from; t+int64(width) <= to; t += int64(width) {
		rates = append(rates, s.Rate(t, t+int64(width)))
	}
	return rates
}

// Stall is the longest time between two times in which no work was done.
func (s Series) Stall(from, to int64) time.Duration {
	longest, _ := s.LongestStall(from, to)
	return longest
}

// LongestStall is [Series.Stall], and when it began.
func (s Series) LongestStall(from, to int64) (longest time.Duration, at int64) {
	last, units := from, s.At(from)
	see := func(now int64) {
		if d := time.Duration(now - last); d > longest {
			longest, at = d, last
		}
	}
	for _, x := range s {
		if x.T <= from || x.T > to {
			continue
		}
		if x.Units > units {
			see(x.T)
			last, units = x.T, x.Units
		}
	}
	see(to)
	return longest, at
}

// Sum adds windows of several processes, position by position.
func Sum(windows ...[]float64) []float64 {
	var sum []float64
	for _, w := range windows {
		for i, v := range w {
			if i == len(sum) {
				sum = append(sum, 0)
			}
			sum[i] += v
		}
	}
	return sum
}

// Mean of the values; 0 without any.
func Mean(v []float64) float64 {
	var sum float64
	for _, x := range v {
		sum += x
	}
	return sum / float64(max(1, len(v)))
}

// Sigma is the standard deviation of the values.
func Sigma(v []float64) float64 {
	mean, sum := Mean(v), 0.0
	for _, x := range v {
		sum += (x - mean) * (x - mean)
	}
	return math.Sqrt(sum / float64(max(1, len(v))))
}

// Quantile returns the smallest value that at least the part q of all values
// does not exceed: 0.5 the median, 1 the largest; 0 without any.
func Quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(v))
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// Jain is Jain's index of fairness: 1 when all are equal, 1/n when one has all.
func Jain(v []float64) float64 {
	var sum, squares float64
	for _, x := range v {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(v)) * squares)
}

// Settle returns the first window from which on every mean of span windows
// stays within tolerance of the target, -1 if there is none.
func Settle(windows []float64, target, tolerance float64, span int) int {
	first := -1
	for i := 0; i+span <= len(windows); i++ {
		if math.Abs(Mean(windows[i:i+span])-target) > tolerance {
			first = -1
		} else if first < 0 {
			first = i
		}
	}
	return first
}

// Reached returns the first window from which on the mean of span windows is at
// least the target, -1 if there is none.
func Reached(windows []float64, target float64, span int) int {
	for i := 0; i+span <= len(windows); i++ {
		if Mean(windows[i:i+span]) >= target {
			return i
		}
	}
	return -1
}
