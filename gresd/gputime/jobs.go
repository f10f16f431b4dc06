// SPDX-License-Identifier: Apache-2.0

package gputime

import (
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// turnCost bounds the time on the card before and after the work of one turn.
const turnCost = 250 * time.Microsecond

// longestSpan is the time between two looks after which the earlier one says nothing.
const longestSpan = 2 * latelySpan

// View is a card with the jobs of its processes, as the kernel tells them: a job can write false pids
// into its cache.
type View struct {
	UUID   gpu.UUID
	Owners map[uint32]uint32 // the job of each process that the driver lists; 0: of no job
	Limits map[uint32]gpu.Share
	Shared bool // several jobs, or processes of no known job
	MPS    bool // programs run side by side
}

// Used is the time that a job worked on a card.
type Used struct {
	Until             time.Time
	Span, Least, Most time.Duration // Least and Most are bounds
	// Percent is the least use over the last ten seconds, if Known.
	Percent float64
	Known   bool
}

// Jobs follows how long each job worked on one card. The sum of the driver's samples is exact, but if
// jobs compete, the sample of one process is not. The card's records show exactly which process was on
// it, but a process without work stays on it until another one comes. So the time on the card is the
// upper bound of a job's work. This time without the card's idle time is the lower bound. If no other
// process was on the card, the job's work is the sum of the samples.
type Jobs struct {
	before *Account // nil: not known
	owners owners
	until  time.Time
	least  map[uint32]*least
}

// least is the least use of one job by its last looks, the newest last.
type least struct {
	limit gpu.Share
	looks []Used
	span  time.Duration // of all
}

// owners are the jobs of the processes now and at the last look: a sample can name a process that has
// ended.
type owners struct{ now, before map[uint32]uint32 }

func (o owners) of(pid uint32) uint32 {
	if job, there := o.now[pid]; there {
		return job
	}
	return o.before[pid]
}

// Add returns the work of each job that has a limit, by the looks since the last call and the newest
// records; nil: these are not known. If nothing measures a job, its bounds are far apart.
func (j *Jobs) Add(v View, looks []Look, records *Account) map[uint32]Used {
	several := v.MPS
	for _, l := range looks {
		several = several || l.Several
	}
	if several {
		*j = Jobs{}
		return nil
	}
	j.owners = owners{v.Owners, j.owners.now}
	if len(looks) == 0 {
		return nil
	}
	until := looks[len(looks)-1].Until
	u := Used{Until: until, Span: until.Sub(j.until)}
	first := u.Span > longestSpan
	if first {
		j.least, j.before = nil, nil
	}
	busy := busyIn(looks)
	there, unclaimed := j.there(records)
	alone := j.alone(v, looks)
	if there != nil && !onlyOf(alone, there) || there == nil && v.Shared {
		alone = 0
	}
	if records != nil && j.before != nil && records.At <= j.before.At {
		records = nil // the same records as before: this and the next are not one span
	}
	j.until, j.before = until, records
	used, next := map[uint32]Used{}, map[uint32]*least{}
	for job, limit := range v.Limits {
		of := j.least[job]
		if of == nil || of.limit != limit {
			of = &least{limit: limit}
		}
		next[job] = of
		if first {
			continue
		}
		u.Least, u.Most = 0, u.Span
		switch {
		case alone == job:
			u.Least = min(busy, u.Span)
			u.Most = u.Least
		case there != nil:
			scale := float64(u.Span)
			u.Most = time.Duration(scale * min(1, there[job].had+unclaimed))
			u.Least = max(0, time.Duration(scale*there[job].worked)-max(0, u.Span-busy))
		}
		of.add(u)
		u.Percent, u.Known = of.mean()
		used[job] = u
	}
	j.least = next
	return used
}

// busyIn returns the time with work of any process.
func busyIn(looks []Look) (busy time.Duration) {
	for _, l := range looks {
		percent := 0.0
		for _, p := range l.Percent {
			percent += p
		}
		busy += time.Duration(min(100, percent) / 100 * float64(l.Until.Sub(l.Since)))
	}
	return busy
}

// part is the part of the time that a job was on the card, and the same without switches.
type part struct{ had, worked float64 }

// there is the part of each job since the last look, and that of processes of no known job; nil: not
// known.
func (j *Jobs) there(records *Account) (there map[uint32]part, unclaimed float64) {
	if records == nil || j.before == nil || records.At <= j.before.At {
		return nil, 0
	}
	there = map[uint32]part{}
	span := float64(records.At - j.before.At)
	for pid, sum := range records.Uses {
		use := sum.Since(j.before.Uses[pid])
		if use.Had == 0 {
			continue
		}
		job := j.owners.of(pid)
		p := there[job]
		p.had += float64(use.Had) / span
		p.worked += max(0, float64(use.Had-time.Duration(use.Turns)*turnCost)/span)
		there[job] = p
	}
	return there, there[0].had
}

func onlyOf(job uint32, there map[uint32]part) bool {
	for other := range there {
		if other != job {
			return false
		}
	}
	return true
}

// alone returns the job if the driver reports only processes of one job; 0: there is no such job.
func (j *Jobs) alone(v View, looks []Look) (job uint32) {
	for _, owner := range v.Owners {
		if owner == 0 || job != 0 && owner != job {
			return 0
		}
		job = owner
	}
	for _, l := range looks {
		for pid := range l.Percent {
			if j.owners.of(pid) != job {
				return 0
			}
		}
	}
	return job
}

func (l *least) add(u Used) {
	l.looks, l.span = append(l.looks, u), l.span+u.Span
	for l.span-l.looks[0].Span >= meanSpan {
		l.span -= l.looks[0].Span
		l.looks = l.looks[1:]
	}
}

func (l *least) mean() (percent float64, known bool) {
	if l.span < meanSpan {
		return 0, false
	}
	sum := time.Duration(0)
	for _, u := range l.looks {
		sum += u.Least
	}
	return 100 * float64(sum) / float64(l.span), true
}
