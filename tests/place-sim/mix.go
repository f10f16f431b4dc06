// SPDX-License-Identifier: Apache-2.0

package main

// kind is one kind of job: cards, hundredths of each, and how many such jobs
// there are.
type kind struct {
	cards, units int
	count        int
}

// published are the GPU jobs of Alibaba's trace of 2023 for GPU sharing, counted
// from openb_pod_list_default.csv (gpu_milli rounded up to hundredths; the 1088
// jobs without a GPU left out):
// https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023
// It comes with Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
// Workloads with Fragmentation Gradient Descent", USENIX ATC 2023.
var published = []kind{
	{1, 5, 7},
	{1, 11, 24},
	{1, 14, 1},
	{1, 16, 74},
	{1, 22, 62},
	{1, 23, 140},
	{1, 27, 4},
	{1, 29, 1},
	{1, 32, 328},
	{1, 33, 7},
	{1, 35, 6},
	{1, 37, 47},
	{1, 44, 2},
	{1, 46, 128},
	{1, 47, 750},
	{1, 48, 19},
	{1, 55, 72},
	{1, 59, 75},
	{1, 65, 253},
	{1, 81, 1078},
	{1, 100, 3911},
	{2, 100, 16},
	{4, 100, 15},
	{8, 100, 44},
}

// lifeSigma is the standard deviation of the logarithm of the lifetimes in that
// trace; ours are lognormal with it.
const lifeSigma = 1.9

// mix is a distribution of jobs.
type mix struct {
	name  string
	kinds []kind
}

func mixes() []mix {
	var parts []kind
	for _, k := range published {
		if k.units < 100 {
			parts = append(parts, k)
		}
	}
	var even []kind
	for units := 5; units <= 100; units += 5 {
		even = append(even, kind{1, units, 1})
	}
	return []mix{
		{"all GPU jobs of the trace", published},
		{"its shared jobs only", parts},
		{"5, 10, … 100 % alike", even},
	}
}

// total is the number of jobs, and mean the units that one of them takes.
func (m mix) total() (total int, mean float64) {
	units := 0
	for _, k := range m.kinds {
		total += k.count
		units += k.count * k.cards * k.units
	}
	return total, float64(units) / float64(total)
}

// pick returns the kind at a position from 0 to total-1.
func (m mix) pick(at int) kind {
	for _, k := range m.kinds {
		if at -= k.count; at < 0 {
			return k
		}
	}
	panic("position above the total")
}
