// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
)

// window is the number of looks over which the use of a card is averaged.
const window = 10

// use averages the driver's samples of one card.
type use struct {
	newest uint64               // time of the newest sample seen
	looks  []map[uint32]float64 // percent by pid, the newest last
	leasts leasts
}

// ahead is how far the driver's clock may be before ours.
const ahead = time.Second

// since is from when on samples are new. They have the time of day: when it was set back, what was
// seen until then says nothing about them.
func (u *use) since(now time.Time) time.Time {
	if u.newest > uint64(now.Add(ahead).UnixMicro()) {
		*u = use{}
	}
	if u.newest == 0 {
		return now.Add(-time.Second)
	}
	return time.UnixMicro(int64(u.newest))
}

// add takes the samples of one look. A process without any was idle.
func (u *use) add(samples []driver.Use) {
	for _, s := range samples {
		u.newest = max(u.newest, s.TimeUS)
	}
	u.looks = append(u.looks, driver.Mean(samples))
	if len(u.looks) > window {
		u.looks = u.looks[1:]
	}
}

// mean is the use by pid over the whole window, nil before it is full.
func (u *use) mean() map[uint32]float64 {
	if len(u.looks) < window {
		return nil
	}
	mean := map[uint32]float64{}
	for _, look := range u.looks {
		for pid, percent := range look {
			mean[pid] += percent / window
		}
	}
	return mean
}
