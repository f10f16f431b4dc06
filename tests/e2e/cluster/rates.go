// SPDX-License-Identifier: Apache-2.0

package cluster

// Rates reads the output of "vgpu-worker --saturate", run any number of times:
// the work of each run in a second, in the unit of [Cluster.Measure], and the part of its time in which it
// wanted a processor and had none.
func Rates(output string) (rates, late []float64) {
	for _, l := range lines(output) {
		if l.Cmd == "saturate" && l.UnitNS > 0 {
			rates = append(rates, l.Rate*(l.KernelUS*1000-l.GapNS)/l.UnitNS)
			late = append(late, min(1, l.Late))
		}
	}
	return rates, late
}
