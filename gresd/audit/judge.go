// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// Kind is the rule that was broken.
type Kind string

// The kinds, which are also labels of metrics.
const (
	Unregistered Kind = "unregistered" // a process of a job that the library does not count
	Escaped      Kind = "escaped"      // the same, where its job is above its memory limit with it
	Exceeded     Kind = "exceeded"     // a job with more memory than its limit
	Stranger     Kind = "stranger"     // a process of nobody who may use the card
	Overuse      Kind = "overuse"      // a job that computes more than its share while others wait
	Overlimit    Kind = "overlimit"    // a job that computes more than its hard limit, whoever waits
)

// Kinds returns every kind, in a fixed order.
func Kinds() []Kind { return []Kind{Unregistered, Escaped, Exceeded, Stranger, Overuse, Overlimit} }

// Process is one process on a card.
type Process struct {
	PID    uint32 // in gresd's PID namespace
	Start  uint64 // start time in clock ticks since boot
	UID    uint32 // real
	Name   string
	Memory gpu.Bytes // 0: the driver does not say
	Kind   driver.ProcessKind
	// Job is the job of Slurm that it is part of, with a share or without; 0 for
	// none.
	Job uint32
	// Exempt processes are never judged: gresd's own, and MPS servers.
	Exempt bool
	// Whole: its job has the whole card, for all that is known.
	Whole bool
	// Inside is in another PID namespace than gresd.
	Inside bool
	// Library is only looked at where the job may be above its limit.
	Library Library
}

// Library says whether libvgpu is in the memory of a process.
type Library uint8

// What its memory map tells. One that ends has no map any more, and its memory of the card
// still for a moment.
const (
	Unread Library = iota
	Loaded
	Absent
	Ending
	Blocked // the process does not let gresd read the map
	Hidden  // Blocked for longer than the grace: it counts as Absent
)

// Card is what the driver says of a card.
type Card struct {
	UUID      gpu.UUID
	Name      string // for messages
	Processes []Process
	Shared    bool               // several jobs have a share of it, or it has a process of which nobody knows whose it is
	Percent   map[uint32]float64 // mean use of the last seconds, by pid; nil: not known
	Least     map[uint32]float64 // percent that jobs worked at least in the last seconds; absent: not known
}

// Slot is what the library says of one process and one card.
type Slot struct {
	PID     uint32 // in gresd's PID namespace, when OnHost
	Start   uint32 // low bits of its start time
	OnHost  bool   // PID is known
	Counted bool   // it has a context or memory on the card
	Memory  gpu.Bytes
}

func (s Slot) of(p Process) bool { return s.OnHost && s.PID == p.PID && s.Start == uint32(p.Start) }

// Share is what a job holds of a card.
type Share struct {
	UUID  gpu.UUID
	Limit gpu.Bytes // 0: none
	Cores gpu.Share
	Hard  bool
	// Capped says that a hard limit of the card's time is in force, and that this card alone tells
	// what the job has of it.
	Capped bool
	Slots  []Slot
	// Known is false when the job's cache could not be read: then nobody can be
	// called unregistered.
	Known bool
}

// Job is one job with a share of cards.
type Job struct {
	ID, UID uint32
	Shares  []Share
}

// Finding is one rule that was broken.
type Finding struct {
	Kind    Kind
	Job     uint32 // 0 for a stranger of no job
	UUID    gpu.UUID
	Process Process // the one to blame; of Overuse and Overlimit: none
	Text    string  // what it is, with numbers, for people

	owner uint32    // uid of the job
	above gpu.Bytes // of Escaped: what the job has above its limit
}

type key struct {
	kind  Kind
	job   uint32
	uuid  gpu.UUID
	pid   uint32
	start uint64
}

func (f Finding) key() key {
	k := key{kind: f.Kind, job: f.Job, uuid: f.UUID}
	if f.Kind == Unregistered || f.Kind == Escaped || f.Kind == Stranger {
		k.pid, k.start = f.Process.PID, f.Process.Start
	}
	return k
}

// limits of what is allowed.
type limits struct {
	grace     time.Duration // for which a rule must be broken
	tolerance gpu.Bytes     // above a memory limit
}

const (
	overuseGrace = 30 * time.Second
	// escapedGrace is over with the second look, and not longer than grace: what has memory of a
	// card and not the library will not get it. Where the library is there it may be about to
	// count, as in a process that was restored from a checkpoint.
	escapedGrace = every * 9 / 10
	// slack is how far use may be above a share, in hundredths of the card: the
	// driver's samples are rough.
	slack = 15
	// busy is the use from which a job counts as at work.
	busy = 5
)

// judge remembers since when rules are broken. The zero value is not of use.
type judge struct {
	limits
	since   map[key]time.Time
	told    map[key]bool
	blocked map[identity]time.Time // since when processes block reads of their memory map
}

func newJudge(l limits) *judge {
	return &judge{limits: l, since: map[key]time.Time{}, told: map[key]bool{}, blocked: map[identity]time.Time{}}
}

// look returns what is wrong for longer than is forgiven: fresh for the first
// time, and standing in all. A card that could not be asked must be left out:
// what is known of it stays.
func (j *judge) look(now time.Time, cards []Card, jobs []Job) (fresh, standing []Finding) {
	since, told := map[key]time.Time{}, map[key]bool{}
	asked, blamed := map[gpu.UUID]bool{}, map[key]gpu.Bytes{}
	j.hide(now, cards)
	for _, c := range cards {
		asked[c.UUID] = true
		for _, f := range j.suspects(c, jobs) {
			k := f.key()
			first, known := j.since[k]
			if !known {
				first = now
			}
			since[k] = first
			if now.Sub(first) < j.graceOf(f) {
				continue
			}
			if f.Kind == Escaped { // the largest first, and no more than it takes
				of := key{job: f.Job, uuid: f.UUID}
				if blamed[of] >= f.above {
					continue
				}
				blamed[of] += f.Process.Memory
			}
			standing = append(standing, f)
			if !j.told[k] {
				fresh = append(fresh, f)
			}
			told[k] = true
		}
	}
	for k, first := range j.since {
		if !asked[k.uuid] && slices.ContainsFunc(jobs, func(job Job) bool { return job.holds(k.uuid) != nil }) {
			since[k] = first
			if j.told[k] {
				told[k] = true
			}
		}
	}
	j.since, j.told = since, told
	return fresh, standing
}

func (j *judge) graceOf(f Finding) time.Duration {
	switch {
	case f.Kind == Overuse:
		return overuseGrace
	case f.Kind == Overlimit:
		return overlimitGrace
	case f.Kind == Escaped && f.Process.Library != Loaded:
		return min(escapedGrace, j.grace)
	}
	return j.grace
}

// again starts the time of a finding anew, after something was done about it.
func (j *judge) again(f Finding, now time.Time) {
	j.since[f.key()] = now
	delete(j.told, f.key())
}

func (job Job) holds(uuid gpu.UUID) *Share {
	for i := range job.Shares {
		if job.Shares[i].UUID == uuid {
			return &job.Shares[i]
		}
	}
	return nil
}

// suspects are all that breaks a rule on one card now.
func (j *judge) suspects(c Card, jobs []Job) []Finding {
	var found []Finding
	shared := false
	for _, job := range jobs {
		share := job.holds(c.UUID)
		if share == nil {
			continue
		}
		shared = true
		own := of(c, job.ID)
		found = append(found, unregistered(c, job, *share, own, jobs)...)
		found = append(found, j.escaped(c, job, *share, own, jobs)...)
		found = append(found, j.exceeded(c, job, *share, own)...)
	}
	if !shared {
		return nil
	}
	found = append(found, strangers(c, jobs)...)
	return slices.Concat(found, overuse(c, jobs), overlimit(c, jobs))
}

// of are the processes of a job that can be judged, by rising pid.
func of(c Card, job uint32) []Process {
	var own []Process
	for _, p := range c.Processes {
		if p.Job == job && p.judged() {
			own = append(own, p)
		}
	}
	return own
}

// judged is false for what is never touched: what only draws, MPS servers, and
// what is gresd's own.
func (p Process) judged() bool { return !p.Exempt && p.Kind != driver.Graphics }

func unregistered(c Card, job Job, share Share, own []Process, jobs []Job) []Finding {
	if !share.Known {
		return nil
	}
	var found []Finding
	for _, p := range share.uncounted(own) {
		if other := job.limitedBy(p, jobs); other != 0 {
			found = append(found, Finding{
				Kind: Unregistered, Job: job.ID, UUID: c.UUID, Process: p, owner: job.UID,
				Text: fmt.Sprintf("%s of job %d uses %s of card %s with the limits of job %d: it runs in a container or a namespace "+
					"of that job; start it outside of them", p, job.ID, memory(p.Memory), c.Name, other),
			})
			continue
		}
		found = append(found, Finding{
			Kind: Unregistered, Job: job.ID, UUID: c.UUID, Process: p, owner: job.UID,
			Text: fmt.Sprintf("%s of job %d uses %s of card %s without libvgpu, which holds programs to their share: "+
				"it may be linked statically, have been started without the job's environment, "+
				"or have opened a library with RTLD_DEEPBIND or dlmopen", p, job.ID, memory(p.Memory), c.Name),
		})
	}
	return found
}

// limitedBy returns the other job of the same user that has a slot for a process, or 0. The process
// has entered the namespaces of the other job, so libvgpu enforces the limits of that job.
func (job Job) limitedBy(p Process, jobs []Job) uint32 {
	for _, other := range jobs {
		if other.ID == job.ID || other.UID != job.UID {
			continue // a user can write any process into the cache of a job
		}
		for _, share := range other.Shares {
			if slices.ContainsFunc(share.Slots, func(s Slot) bool { return s.of(p) }) {
				return other.ID
			}
		}
	}
	return 0
}

// uncounted are those of processes for which no slot counts.
func (s Share) uncounted(own []Process) []Process {
	// A process whose pid here is not known may be any in another namespace.
	unknown := 0
	for _, slot := range s.Slots {
		if slot.Counted && !slot.OnHost {
			unknown++
		}
	}
	var left []Process
	for _, p := range own {
		switch {
		case slices.ContainsFunc(s.Slots, func(slot Slot) bool { return slot.Counted && slot.of(p) }):
		case p.Inside && unknown > 0:
			unknown--
		default:
			left = append(left, p)
		}
	}
	return left
}

// charged is what the library counts for a job, of all processes but some.
func (s Share) charged(without []Process) gpu.Bytes {
	var sum gpu.Bytes
	for _, slot := range s.Slots {
		if !slices.ContainsFunc(without, slot.of) {
			sum = min(sum+slot.Memory, most)
		}
	}
	return sum
}

// most is more than any card has: a job's user writes what its slots say.
const most gpu.Bytes = 1 << 50

func memoryOf(processes []Process) gpu.Bytes {
	var sum gpu.Bytes
	for _, p := range processes {
		sum += p.Memory
	}
	return sum
}

func (j *judge) exceeded(c Card, job Job, share Share, own []Process) []Finding {
	sum := memoryOf(own)
	if len(own) == 0 || share.Limit == 0 || sum <= share.Limit+j.tolerance {
		return nil
	}
	largest := slices.MaxFunc(own, func(a, b Process) int { return cmp.Compare(a.Memory, b.Memory) })
	return []Finding{{
		Kind: Exceeded, Job: job.ID, UUID: c.UUID, Process: largest, owner: job.UID,
		Text: fmt.Sprintf("job %d holds %s of card %s: its limit is %s; %s has the most, %s",
			job.ID, sum, c.Name, share.Limit, largest, largest.Memory),
	}}
}

// strangers belong to no job of Slurm, or to one that has neither a share of the
// card nor the whole card.
func strangers(c Card, jobs []Job) []Finding {
	var found []Finding
	for _, p := range c.Processes {
		whose := "no job of Slurm"
		if p.Job != 0 {
			i := slices.IndexFunc(jobs, func(job Job) bool { return job.ID == p.Job })
			if p.Whole || i >= 0 && jobs[i].holds(c.UUID) != nil {
				continue
			}
			whose = fmt.Sprintf("job %d, which has no share of this card", p.Job)
		}
		if !p.judged() {
			continue
		}
		found = append(found, Finding{
			Kind: Stranger, Job: p.Job, UUID: c.UUID, Process: p,
			Text: fmt.Sprintf("%s of user %d uses %s of card %s, where jobs have shares, and belongs to %s",
				p, p.UID, memory(p.Memory), c.Name, whose),
		})
	}
	return found
}

// overuse compares jobs that are at work together. A hard share is broken by
// more than it beside any other job at work; others may use what is idle, and
// break the rules only where another does not get its share.
func overuse(c Card, jobs []Job) []Finding {
	if c.Percent == nil {
		return nil
	}
	type at struct {
		job   Job
		share Share
		use   float64
	}
	var working []at
	for _, job := range jobs {
		share := job.holds(c.UUID)
		if share == nil {
			continue
		}
		w := at{job: job, share: *share}
		for _, p := range c.Processes {
			if p.Job == job.ID {
				if p.Kind&driver.MPSClient != 0 {
					return nil // several run at once: the numbers mean something else
				}
				w.use += c.Percent[p.PID]
			}
		}
		if w.use > busy {
			working = append(working, w)
		}
	}
	var found []Finding
	for i, w := range working {
		if w.use <= float64(w.share.Cores)+slack {
			continue
		}
		short := false
		for k, other := range working {
			short = short || k != i && (w.share.Hard || other.use < float64(other.share.Cores)-busy)
		}
		if !short {
			continue
		}
		found = append(found, Finding{
			Kind: Overuse, Job: w.job.ID, UUID: c.UUID, owner: w.job.UID,
			Text: fmt.Sprintf("job %d has about %.0f %% of the time of card %s: its share is %d %%, and others are at work",
				w.job.ID, w.use, c.Name, w.share.Cores),
		})
	}
	return found
}

func (p Process) String() string { return fmt.Sprintf("process %d (%s)", p.PID, p.Name) }

func memory(n gpu.Bytes) string {
	if n == 0 {
		return "memory"
	}
	return n.String()
}
