// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// found lets a card find jobs in a poll. used is their use of the card; nil: none.
func (c *card) found(claims []Claim, used []usage) {
	if c.jobs == nil {
		c.jobs = map[uint32]*job{}
	}
	c.poll, c.list = c.poll+1, c.list[:0]
	for i, claim := range claims {
		act := activity{}
		if used != nil {
			act.used = used[i]
		}
		c.observe(claim, 0, act, true)
	}
	c.compare()
}

// plan returns the schedules.
func (c *card) plan() map[Key]libvgpu.Schedule {
	plan := map[Key]libvgpu.Schedule{}
	for _, j := range c.list {
		plan[j.Key] = j.schedule
	}
	return plan
}

// planOf returns the schedules, without leases, of jobs that are polled once.
func planOf(claims []Claim, set ...func(j *job)) map[Key]libvgpu.Schedule {
	cards, of, longest := map[gpu.UUID][]Claim{}, map[uint32]int{}, map[uint32]uint32{}
	for _, c := range claims {
		of[c.JobID]++
		longest[c.JobID] = max(longest[c.JobID], c.Kernel)
	}
	for _, c := range claims {
		c.Cards, c.Longest = of[c.JobID], longest[c.JobID]
		cards[c.Card] = append(cards[c.Card], c)
	}
	plan := map[Key]libvgpu.Schedule{}
	for _, list := range cards {
		c, now := &card{}, time.Unix(1000, 0)
		c.found(list, nil)
		for _, j := range c.list {
			for _, f := range set {
				f(j)
			}
		}
		c.divide(params, now, 1e12)
		c.gate(params, now, 0)
		for key, s := range c.plan() {
			if s.LeaseNS != 0 {
				s.LeaseNS, s.Cores = 0, c.jobs[key.JobID].Cores
			}
			plan[key] = s
		}
	}
	return plan
}

// The order of the jobs changes nothing.
func TestTheOrderOfJobsChangesNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		claims, gains := someJobs(random)
		set := func(j *job) { j.gain = gains[j.JobID] }
		want := planOf(claims, set)
		random.Shuffle(len(claims), func(i, k int) { claims[i], claims[k] = claims[k], claims[i] })
		if got := planOf(claims, set); !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v: %+v, in another order %+v", claims, got, want)
		}
	}
}
