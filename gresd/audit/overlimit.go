// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
)

const (
	// overlimitSpan is over what use is averaged that must not be above a hard limit, and
	// overlimitGrace is for how long that average must be above it: launches of which nobody knows
	// yet what they cost, and kernels of some seconds, which are paid for after they have run, are
	// over by then.
	overlimitSpan  = 10 * time.Second
	overlimitGrace = 10 * time.Second
	// overlimitSlack is how far the average may be above the limit, in hundredths of the card.
	overlimitSlack = 5
	// turnCost bounds what a process does not work of a turn on the card.
	turnCost = 250 * time.Microsecond
)

// Times tells how long processes had a card.
type Times interface {
	OnCard(card gpu.UUID) (gputime.Account, bool)
}

// leasts follows what each job worked on a card at least, whatever its processes say. The driver's
// samples tell exactly for how much of the time somebody worked; who that was they do not tell where
// jobs compete. The card's records tell exactly who was on it, but a process stays on it that does
// nothing, until another one comes. So a job worked for no less than it was there by the records,
// without all the time for which nobody worked. Where no other process was on the card, it worked for
// what the card did: so say the records, or that no other job has a share of it.
type leasts struct {
	looked time.Time
	before *gputime.Account // nil: not known
	owners owners
	jobs   map[uint32]*least
}

// least is what one job worked in the last looks, in parts of the time, the newest last.
type least struct {
	limit gpu.Share
	looks []part
	span  time.Duration // of all
}

type part struct {
	span time.Duration
	of   float64
}

// owners are the jobs of processes; of those of the last look, too, for the driver's samples tell
// of processes that have ended.
type owners struct{ now, before map[uint32]uint32 }

func (o owners) of(pid uint32) uint32 {
	if job, there := o.now[pid]; there {
		return job
	}
	return o.before[pid]
}

// look adds a look and returns, by job, what each that has a limit worked at least in the last
// overlimitSpan, in hundredths of the card. Of jobs that are not known for so long there is nothing.
func (l *leasts) look(c Card, jobs []Job, samples []driver.Use, records *gputime.Account, now time.Time) map[uint32]float64 {
	busy, meant := busyOf(c, samples)
	if !meant {
		*l = leasts{}
		return nil
	}
	l.owners = owners{now: map[uint32]uint32{}, before: l.owners.now}
	for _, p := range c.Processes {
		if p.judged() {
			l.owners.now[p.PID] = p.Job
		}
	}
	first, span := l.looked.IsZero(), now.Sub(l.looked)
	there := l.there(records)
	alone := l.alone(c, samples)
	if there != nil && !onlyOf(alone, there) || there == nil && c.Shared {
		alone = 0
	}
	if records != nil && l.before != nil && records.At <= l.before.At {
		records = nil // of the look before; with the next one that is not one span
	}
	l.looked, l.before = now, records
	found, next := map[uint32]float64{}, map[uint32]*least{}
	for _, job := range jobs {
		share := job.holds(c.UUID)
		if share == nil || !share.Capped {
			continue
		}
		of := l.jobs[job.ID]
		if of == nil || of.limit != share.Cores {
			of = &least{limit: share.Cores}
		}
		next[job.ID] = of
		if first {
			continue
		}
		work := 0.0
		if alone == job.ID {
			work = busy
		} else if there != nil {
			work = there[job.ID] - max(0, 1-busy)
		}
		of.add(part{span, work})
		if of.span >= overlimitSpan {
			found[job.ID] = of.mean()
		}
	}
	l.jobs = next
	return found
}

// busyOf is the part of the time in which somebody worked on a card. It is not meant where the driver
// tells otherwise than one mean for each process, or where programs work beside each other by MPS.
func busyOf(c Card, samples []driver.Use) (busy float64, meant bool) {
	for _, p := range c.Processes {
		if p.Kind&driver.MPSClient != 0 {
			return 0, false
		}
	}
	seen := map[uint32]bool{}
	for _, s := range samples {
		if seen[s.PID] {
			return 0, false
		}
		seen[s.PID] = true
		busy += float64(s.Percent) / 100
	}
	return min(1, busy), true
}

// there is for which part of the time each job was on the card since the last look; nil: not known.
// 0 stands for who is of no job.
func (l *leasts) there(records *gputime.Account) map[uint32]float64 {
	if records == nil || l.before == nil || records.At <= l.before.At {
		return nil
	}
	there := map[uint32]float64{}
	for pid, sum := range records.Uses {
		if use := sum.Since(l.before.Uses[pid]); use.Had > 0 {
			there[l.owners.of(pid)] += max(0, float64(use.Had-time.Duration(use.Turns)*turnCost)/float64(records.At-l.before.At))
		}
	}
	return there
}

func onlyOf(job uint32, there map[uint32]float64) bool {
	for other := range there {
		if other != job {
			return false
		}
	}
	return true
}

// alone is the job of all processes that the driver lists and tells of; 0: there is none.
func (l *leasts) alone(c Card, samples []driver.Use) (job uint32) {
	for i, p := range c.Processes {
		owner := l.owners.now[p.PID]
		if owner == 0 || i > 0 && owner != job {
			return 0
		}
		job = owner
	}
	for _, s := range samples {
		if l.owners.of(s.PID) != job {
			return 0
		}
	}
	return job
}

func (l *least) add(p part) {
	l.looks, l.span = append(l.looks, p), l.span+p.span
	for l.span-l.looks[0].span >= overlimitSpan {
		l.span -= l.looks[0].span
		l.looks = l.looks[1:]
	}
}

func (l *least) mean() float64 {
	sum := 0.0
	for _, p := range l.looks {
		sum += p.of * float64(p.span)
	}
	return 100 * sum / float64(l.span)
}

// overlimit are the jobs that had more of a card than their hard limit.
func overlimit(c Card, jobs []Job) []Finding {
	var found []Finding
	for _, job := range jobs {
		had, known := c.Least[job.ID]
		share := job.holds(c.UUID)
		if !known || share == nil || had <= float64(share.Cores)+overlimitSlack {
			continue
		}
		found = append(found, Finding{
			Kind: Overlimit, Job: job.ID, UUID: c.UUID, owner: job.UID,
			Text: fmt.Sprintf("job %d of user %d had at least %.0f %% of the time of card %s in the last %.0f s, by the card's own account: "+
				"its hard limit is %d %%; it works by calls that libvgpu does not know or does not see, and only slices hold it beside others",
				job.ID, job.UID, had, c.Name, overlimitSpan.Seconds(), share.Cores),
		})
	}
	return found
}
