// SPDX-License-Identifier: Apache-2.0

// Package audit compares what the driver says of granted cards with what was
// granted: processes of jobs that the library does not count, jobs above their
// limits, and processes of nobody who may use the card. What is wrong is decided in
// judge.go, without effects; here it is reported and, where the site says so, killed.
//
// Never touched: what only draws, MPS servers, gresd's own processes, and jobs
// of Slurm that have the whole card.
package audit

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// every is the time between two looks.
const every = time.Second

// Grants is what the auditor needs of the open grants.
type Grants interface {
	Jobs() map[string]int // on each card, by UUID
	Open() []uint32
	Spec(jobID uint32) (libvgpu.GrantSpec, bool)
	Cache(jobID uint32, maxAge time.Duration) (libvgpu.CacheView, error)
}

// Driver is what the auditor asks. Its calls return in a bounded time.
type Driver interface {
	Processes(gpu.UUID) ([]driver.Process, error)
}

// Meter measures how long processes and jobs had a card.
type Meter interface {
	OnCard(card gpu.UUID) (gputime.Account, bool)
	Second(gputime.View) (gputime.Card, map[uint32]gputime.Used)
}

// Parts are the parts of an auditor. All must be set.
type Parts struct {
	Policy config.Audit
	Grants Grants
	Driver Driver
	Meter  Meter
	// Library is libvgpu, as tasks see it.
	Library string
	Name    func(gpu.UUID) string           // of a card, for messages
	Tell    func(jobID uint32, text string) // the user of a job
	// Whole says whether a job of Slurm may have the whole card. It does not wait.
	Whole func(jobID uint32, uuid gpu.UUID) bool
	Count func(kind string) // a metric
	Log   *slog.Logger
}

// Auditor looks at granted cards, again and again.
type Auditor struct {
	Parts
	table *table
	judge *judge
	wake  wakeup.Bell

	mu       sync.Mutex
	standing []string
	next     *config.Audit // nil: no change
}

// New returns an auditor that does nothing before [Auditor.Run].
func New(parts Parts) *Auditor {
	table := newTable("/proc", os.Getpid())
	table.libraries = namesOf(parts.Library)
	return &Auditor{
		Parts: parts, table: table, wake: wakeup.NewBell(),
		judge: newJudge(limits{grace: grace, tolerance: tolerance}),
	}
}

const (
	grace     = 5 * time.Second // a process breaks a rule for this long
	tolerance = 64 * gpu.MiB    // above a memory limit
)

// SetPolicy changes what is done from the next look on.
func (a *Auditor) SetPolicy(p config.Audit) {
	a.mu.Lock()
	a.next = &p
	a.mu.Unlock()
	a.Wake()
}

// follow takes over a changed policy. Only the goroutine of Run uses it.
func (a *Auditor) follow() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next != nil {
		a.Policy, a.next = *a.next, nil
	}
}

// Wake tells the auditor that jobs have come or gone. It never blocks.
func (a *Auditor) Wake() { a.wake.Ring() }

// Problems are the rules that are broken now.
func (a *Auditor) Problems() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.standing)
}

// Run looks every second while there are jobs, until ctx is done.
func (a *Auditor) Run(ctx context.Context) {
	for ctx.Err() == nil {
		var next <-chan time.Time
		looked := time.Now()
		if a.step(looked) > 0 {
			next = time.After(wakeup.Next(every))
		}
		select {
		case <-ctx.Done():
		case <-a.wake:
			// A burst of jobs is no reason for a burst of questions, nor for a pause.
			wakeup.Wait(ctx, time.Until(looked.Add(every)))
		case <-next:
		}
	}
}

// step looks once and returns the number of cards that have jobs.
func (a *Auditor) step(now time.Time) int {
	a.follow()
	held, quiet := a.ask()
	var jobs []Job
	if !quiet { // else nobody can break a rule, and all answered
		jobs = a.jobs(a.Grants.Open())
	}
	fresh, standing := a.judge.look(now, a.cards(held, jobs), jobs)
	a.table.turn()
	for _, f := range fresh {
		a.report(f)
	}
	var texts []string
	for _, f := range standing {
		policy := a.policy(f.Kind)
		if policy == config.AuditIgnore {
			continue
		}
		texts = append(texts, "audit: "+f.Text)
		if policy == config.AuditKill {
			a.kill(f, slices.ContainsFunc(fresh, func(other Finding) bool { return other.key() == f.key() }), now)
		}
	}
	stuck := slices.Concat(a.table.stuck.List(), a.table.files.List())
	slices.Sort(stuck)
	for _, pid := range slices.Compact(stuck) {
		texts = append(texts, fmt.Sprintf("audit: process %d cannot be looked at: its files or memory do not answer (a dead file system?)", pid))
	}
	a.mu.Lock()
	a.standing = texts
	a.mu.Unlock()
	return len(held)
}

func (a *Auditor) policy(kind Kind) string {
	switch kind {
	case Unregistered:
		return a.Policy.Unregistered
	case Escaped:
		return a.Policy.Escaped
	case Exceeded:
		return a.Policy.Exceeded
	case Stranger:
		return a.Policy.Strangers
	}
	return config.AuditReport
}

func (a *Auditor) report(f Finding) {
	if a.policy(f.Kind) == config.AuditIgnore {
		return
	}
	a.Count(string(f.Kind))
	a.Log.Warn("audit: "+f.Text, "kind", f.Kind, "job_id", f.Job, "gpu_uuid", f.UUID, "pid", f.Process.PID,
		"uid", f.Process.UID, "policy", a.policy(f.Kind))
	if f.Job != 0 && f.Kind != Stranger {
		a.Tell(f.Job, "vgpu: audit: "+f.Text)
	}
}

// kill says what it does only the first time.
func (a *Auditor) kill(f Finding, first bool, now time.Time) {
	err := a.table.kill(f)
	if f.Kind == Exceeded {
		a.judge.again(f, now) // the driver needs a moment to free the memory
	}
	switch {
	case !first:
	case err != nil:
		a.Log.Warn("audit: not killed", "error", err, "job_id", f.Job, "pid", f.Process.PID)
	default:
		a.Log.Warn("audit: killed", "kind", f.Kind, "job_id", f.Job, "pid", f.Process.PID, "uid", f.Process.UID)
		a.Tell(f.Job, "vgpu: audit: killed "+f.Process.String()+": "+f.Text)
	}
}

// jobs are the open grants with what the library says of their processes.
func (a *Auditor) jobs(open []uint32) []Job {
	var jobs []Job
	for _, id := range open {
		spec, ok := a.Grants.Spec(id)
		if !ok {
			continue
		}
		view, err := a.Grants.Cache(id, every/2)
		jobs = append(jobs, jobOf(id, spec, view, err == nil && len(view.Cards) == len(spec.Cards)))
	}
	return jobs
}

func jobOf(id uint32, spec libvgpu.GrantSpec, view libvgpu.CacheView, known bool) Job {
	job := Job{ID: id, UID: spec.UID}
	for i, card := range spec.Cards {
		share := Share{
			UUID: gpu.UUID(card.UUID), Limit: gpu.Bytes(card.MemLimit), Cores: gpu.Share(card.Cores),
			Hard: card.Mode == libvgpu.ModeHard, Known: known,
			// Work side by side takes no time from others. The parts of a job with several cards open
			// and shut together, for its kernels wait for each other.
			Capped: card.Mode == libvgpu.ModeHard && card.Cores < 100 && card.Engine == libvgpu.EngineTime && len(spec.Cards) == 1,
		}
		if known {
			for _, slot := range view.Slots {
				if slot.Alive {
					share.Slots = append(share.Slots, Slot{
						PID: slot.HostPID, Start: uint32(slot.StartTime), OnHost: slot.OnHost,
						Counted: slot.Cards[i].Contexts > 0 || slot.Cards[i].Mem > 0,
						Memory:  gpu.Bytes(min(slot.Cards[i].Mem, uint64(most))),
					})
				}
			}
		}
		job.Shares = append(job.Shares, share)
	}
	return job
}

// held is one card of jobs.
type held struct {
	jobs   int
	listed []driver.Process
	err    error
}

// ask asks the driver about the cards of jobs. quiet says that all have answered,
// and that no process is on any of them.
func (a *Auditor) ask() (cards map[gpu.UUID]*held, quiet bool) {
	cards = map[gpu.UUID]*held{}
	for uuid, jobs := range a.Grants.Jobs() {
		cards[gpu.UUID(uuid)] = &held{jobs: jobs}
	}
	quiet = true
	for uuid, card := range cards {
		card.listed, card.err = a.Driver.Processes(uuid)
		quiet = quiet && card.err == nil && len(card.listed) == 0
		if card.jobs > 1 && len(card.listed) > 0 { // the answer is the next question's
			a.Meter.OnCard(uuid)
		}
	}
	return cards, quiet
}

// cards are those that have answered.
func (a *Auditor) cards(held map[gpu.UUID]*held, jobs []Job) []Card {
	var cards []Card
	for uuid, h := range held {
		if h.err != nil {
			continue // health and the measurer say it
		}
		card := Card{UUID: uuid, Name: a.Name(uuid), Shared: h.jobs > 1}
		for _, p := range h.listed {
			if f, ok := a.table.look(p.PID); ok {
				process := merge(f, p, jobs)
				process.Whole = process.Job != 0 && !holdsAny(jobs, process.Job) && a.Whole(process.Job, uuid)
				card.Processes = append(card.Processes, process)
			}
		}
		card.Shared = card.Shared || len(card.Processes) < len(h.listed)
		a.readLibraries(card, jobs)
		if jobs != nil && (card.Shared || len(h.listed) > 0 && capped(jobs, uuid)) {
			a.measure(&card, jobs)
		}
		cards = append(cards, card)
	}
	return cards
}

// readLibraries looks at the memory maps of jobs that may be above their limit: others are
// spared it, since a process with CUDA has thousands of mappings.
func (a *Auditor) readLibraries(c Card, jobs []Job) {
	for _, job := range jobs {
		if share := job.holds(c.UUID); share == nil || !a.judge.near(*share, of(c, job.ID)) {
			continue
		}
		for i := range c.Processes {
			if p := &c.Processes[i]; p.Job == job.ID && p.judged() {
				p.Library = a.table.library(p.PID)
			}
		}
	}
}

// merge puts what driver and kernel say together. A claim to be of a job counts
// only where the user is the job's.
func merge(f facts, p driver.Process, jobs []Job) Process {
	process := f.Process
	process.Memory, process.Kind = p.Memory, p.Kind
	if f.claimed && !slices.ContainsFunc(jobs, func(j Job) bool { return j.ID == f.Job && j.UID == f.UID }) {
		process.Job = 0
	}
	return process
}

func holdsAny(jobs []Job, id uint32) bool {
	return slices.ContainsFunc(jobs, func(j Job) bool { return j.ID == id })
}

// measure asks how the processes and jobs on a card used it.
func (a *Auditor) measure(c *Card, jobs []Job) {
	card, used := a.Meter.Second(viewOf(*c, jobs))
	if c.Shared {
		c.Percent = card.Percent()
	}
	c.Least = leastOf(used)
}

func leastOf(used map[uint32]gputime.Used) map[uint32]float64 {
	least := map[uint32]float64{}
	for job, u := range used {
		if u.Known {
			least[job] = u.Percent
		}
	}
	return least
}

func viewOf(c Card, jobs []Job) gputime.View {
	v := gputime.View{UUID: c.UUID, Owners: map[uint32]uint32{}, Limits: map[uint32]gpu.Share{}, Shared: c.Shared}
	for _, p := range c.Processes {
		v.Owners[p.PID] = 0
		if p.judged() {
			v.Owners[p.PID] = p.Job
		}
		v.MPS = v.MPS || p.Kind&driver.MPSClient != 0
	}
	for _, j := range jobs {
		if share := j.holds(c.UUID); share != nil && share.Capped {
			v.Limits[j.ID] = share.Cores
		}
	}
	return v
}

func capped(jobs []Job, uuid gpu.UUID) bool {
	return slices.ContainsFunc(jobs, func(j Job) bool {
		share := j.holds(uuid)
		return share != nil && share.Capped
	})
}
