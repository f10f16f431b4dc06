// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// hide marks the processes that block reads of their memory map for longer than the grace. If the map
// was read in between, and the library was absent, the time goes on.
func (j *judge) hide(now time.Time, cards []Card) {
	blocked := map[identity]time.Time{}
	for _, c := range cards {
		for i := range c.Processes {
			p := &c.Processes[i]
			id := identity{p.PID, p.Start}
			first, known := j.blocked[id]
			switch {
			case p.Library == Blocked && !known:
				first = now
			case p.Library == Blocked && now.Sub(first) >= j.grace:
				p.Library = Hidden
			case !known || p.Library != Blocked && p.Library != Absent:
				continue
			}
			blocked[id] = first
		}
	}
	j.blocked = blocked
}

// near reports whether a job may be above its limit because of memory that libvgpu does not count.
func (j *judge) near(share Share, own []Process) bool {
	allowed := share.Limit + j.tolerance
	return share.Known && share.Limit != 0 &&
		(share.charged(nil)+memoryOf(share.uncounted(own)) > allowed || memoryOf(own) > allowed)
}

// escaped returns the processes without libvgpu if they use more than the limit leaves for them. A
// process without libvgpu in its memory can have a slot: exec leaves the slot of the earlier program.
func (j *judge) escaped(c Card, job Job, share Share, own []Process, jobs []Job) []Finding {
	var absent, loaded []Process
	for _, p := range own {
		switch p.Library {
		case Absent, Hidden:
			absent = append(absent, p)
		case Loaded:
			loaded = append(loaded, p)
		case Unread, Ending, Blocked:
		}
	}
	free := slices.Concat(absent, share.uncounted(loaded))
	sum, allowed := share.charged(absent)+memoryOf(free), share.Limit+j.tolerance
	if !share.Known || share.Limit == 0 || sum <= allowed {
		return nil
	}
	slices.SortStableFunc(free, func(a, b Process) int { return cmp.Compare(b.Memory, a.Memory) })
	var found []Finding
	for _, p := range free {
		how := "without libvgpu"
		if other := job.limitedBy(p, jobs); other != 0 {
			how = fmt.Sprintf("with the limits of job %d", other)
		} else if p.Library == Hidden {
			how = "and blocks reads of its memory map"
		}
		found = append(found, Finding{
			Kind: Escaped, Job: job.ID, UUID: c.UUID, Process: p, owner: job.UID, above: sum - allowed,
			Text: fmt.Sprintf("%s of job %d holds %s of card %s %s, and so the job has %s: its limit is %s; "+
				"ask for more with --vgpu-mem, or start the program with the dynamic loader and the job's environment",
				p, job.ID, memory(p.Memory), c.Name, how, sum, share.Limit),
		})
	}
	return found
}
