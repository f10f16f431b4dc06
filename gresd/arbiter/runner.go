// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Grants is what the runner needs of the open grants of the node.
type Grants interface {
	Open() []uint32 // sorted
	Spec(jobID uint32) (libvgpu.GrantSpec, bool)
	Cache(jobID uint32, maxAge time.Duration) (libvgpu.CacheView, error)
	SetSchedule(jobID uint32, card int, s libvgpu.Schedule) bool
}

// quickTick is about the time between two looks where jobs have windows: with 20 looks a second
// a job of 30 that waits for results had up to 34.6 % beside one of 70 (simulated card), with
// 60 no more than 32.0.
const quickTick = 15 * time.Millisecond

// atOnce is how old a view of a job may be that somebody else had read: several look
// at the same moments.
const atOnce = 5 * time.Millisecond

// Runner applies [Plan] to the open grants, again and again, and sets windows
// on cards without time slices.
type Runner struct {
	grants  Grants
	pace    atomic.Pointer[pace]
	log     *slog.Logger
	sleeper wakeup.Sleeper
	sampler *sampler
	broken  map[uint32]bool // jobs whose cache could not be read, already said
	held    func(jobID uint32) bool
	verdict func(card gpu.UUID) probe.Verdict
	balance balance
	gates   gates
	beside  beside

	place   map[Key]int // where a card is in the job's grant
	windows map[gpu.UUID]*windows
	leases  map[Key]uint64 // until when open gates may count on neighbours

	work ledgerOfWork
}

// NewRunner returns a runner that does nothing before [Runner.Run].
func NewRunner(grants Grants, params Params, tick time.Duration, log *slog.Logger) *Runner {
	r := &Runner{
		grants: grants, log: log,
		verdict: func(gpu.UUID) probe.Verdict { return probe.Unknown },
		sampler: newSampler(), broken: map[uint32]bool{},
		windows: map[gpu.UUID]*windows{}, leases: map[Key]uint64{},
	}
	r.pace.Store(&pace{params, tick})
	return r
}

// pace is what can change while a runner runs.
type pace struct {
	params Params
	tick   time.Duration
}

// Set changes how cards are divided from the next look on.
func (r *Runner) Set(params Params, tick time.Duration) {
	r.pace.Store(&pace{params, tick})
	r.Wake()
}

// Measure sets who tells how long processes had a card. It must be set before
// [Runner.Run]; without, what processes say of themselves is all that is known.
func (r *Runner) Measure(times Times) { r.sampler.exact.times = times }

// Except sets what says which jobs something else holds at their share, such as
// an MPS server: they get neither slices nor gates, for the server's channels are
// not theirs. It must be set before [Runner.Run].
func (r *Runner) Except(held func(jobID uint32) bool) { r.held = held }

// Slices sets the function that returns the result of gresd's own test of a card. It must be set
// before [Runner.Run].
func (r *Runner) Slices(verdict func(card gpu.UUID) probe.Verdict) { r.verdict = verdict }

// Wake tells the runner that jobs have come or gone, or are held by others than before. It never blocks.
func (r *Runner) Wake() { r.sleeper.Wake() }

// Run looks at the jobs at every tick, more often if they have windows, and sleeps while
// none of them has processes. It returns when ctx is done; the last schedules stay in force.
func (r *Runner) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, r.sleeper.Wake)()
	next := time.Now()
	var rest time.Time // no look before
	for ctx.Err() == nil {
		if now := time.Now(); !now.Before(next) {
			awake := r.step(now)
			next = now.Add(wakeup.After(now, r.tick()))
			if awake == 0 {
				next = now.Add(time.Hour) // or when woken
			}
			took := time.Since(now)
			rest = now.Add(took + wakeup.Rest(took))
			next = later(next, rest)
		}
		if r.sleeper.Sleep(time.Until(next)) {
			next = later(time.Now(), rest)
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// tick is the time until the next look.
func (r *Runner) tick() time.Duration {
	tick := r.pace.Load().tick
	if len(r.windows) > 0 { // a whole part of it
		tick /= max(1, (tick+quickTick/2)/quickTick)
	}
	if r.beside.isQuiet() {
		tick = min(tick, quietTick)
	}
	return tick
}

// step looks once, publishes what has changed, and returns the number of jobs that
// are awake.
func (r *Runner) step(now time.Time) int {
	jobs, awake := r.grants.Open(), 0
	var claims, besides []Claim  // of cards that time divides, and where work runs side by side
	var used, usedBeside []usage // of each of them
	r.place = map[Key]int{}
	r.sampler.exact.look()
	for _, job := range jobs {
		spec, ok := r.grants.Spec(job)
		if !ok {
			continue
		}
		if r.held != nil && r.held(job) {
			for i, card := range spec.Cards {
				r.grants.SetSchedule(job, i, libvgpu.Schedule{Cores: card.Cores})
				r.work.note(Key{job, gpu.UUID(card.UUID)}, false, false, time.Time{}, now)
			}
			continue
		}
		acts, asleep := r.look(job, spec.Cards, now)
		if !asleep {
			awake++
		}
		for i, card := range spec.Cards {
			key := Key{job, gpu.UUID(card.UUID)}
			r.place[key] = i
			r.work.note(key, !r.broken[job], acts[i].busy > 0, r.sampler.last(job, i), now)
			verdict := r.verdict(key.Card)
			claim := Claim{
				Key: key, Cores: card.Cores, Mode: card.Mode, Ceiling: card.Ceiling, Priority: card.Priority,
				Busy: acts[i].busy, Kernel: acts[i].kernel,
				NoSlices:  verdict == probe.Ignored || verdict == probe.Unknown && acts[i].noSlices,
				Unsliced:  verdict == probe.Obeyed && acts[i].noSlices,
				NoRecords: r.sampler.exact.refused(key.Card) || acts[i].unseen,
				Wants:     acts[i].wants,
			}
			if card.Engine == libvgpu.EngineConcurrent {
				besides, usedBeside = append(besides, claim), append(usedBeside, acts[i].used)
				continue
			}
			claims, used = append(claims, claim), append(used, acts[i].used)
		}
	}
	if r.sampler.exact.judge() {
		r.log.Warn("time on the card is not known exactly: its records name no process of this node's jobs; does gresd run in a PID namespace of its own, such as a container's")
	}
	r.sampler.forget(now)
	maps.DeleteFunc(r.broken, func(job uint32, _ bool) bool { return !slices.Contains(jobs, job) })
	r.balance.worked(claims, used)
	r.gates.update(claims, used, now)
	params := r.pace.Load().params
	r.balance.update(claims, used, &r.gates, params)
	plan := Plan(claims, params)
	r.setWindows(claims, used, params, plan, now)
	r.gates.note(plan, now)
	r.work.bound(claims, used, func(key Key) uint32 { return plan[key].Others })
	r.sampler.exact.ask(claims)
	r.work.keep(jobs)
	r.lease(claims, plan, uint64(monotonic()))
	maps.Copy(plan, r.beside.plan(besides, usedBeside, now, uint64(monotonic())))
	for key, s := range plan {
		r.tell(key, s)
	}
	return awake
}

// An open gate may count on neighbours for leaseFor; it is told anew with less than
// leaseLeft to go. A gresd that is started again is there sooner.
const (
	leaseFor  = uint64(4 * time.Second)
	leaseLeft = uint64(3 * time.Second)
)

// lease limits the time for which the gates of jobs with a limit stay open because busy
// neighbours hold them: should this gresd die, the neighbours may end unseen.
func (r *Runner) lease(claims []Claim, plan map[Key]libvgpu.Schedule, now uint64) {
	leases := map[Key]uint64{}
	for _, c := range claims {
		s := plan[c.Key]
		limit, limited := limitOf(c)
		if !limited || s.Others == 0 || s.Gate&^libvgpu.GateMeasure != 0 {
			continue
		}
		s.Cores = limit // the budget is refilled at that when the lease has run out
		until := r.leases[c.Key]
		if until < now+leaseLeft {
			until = now + leaseFor
		}
		leases[c.Key], s.LeaseNS = until, until
		plan[c.Key] = s
	}
	r.leases = leases
}

func (r *Runner) tell(key Key, s libvgpu.Schedule) {
	place, known := r.place[key]
	if known && r.grants.SetSchedule(key.JobID, place, s) && s.Gate&libvgpu.GateWindow == 0 {
		r.log.Debug("schedule", "job_id", key.JobID, "gpu_uuid", key.Card, "slice_us", s.SliceUS,
			"gate", s.Gate, "busy_procs", s.BusyProcs, "others", s.Others)
	}
}

// setWindows divides the cards without time slices on which several jobs work.
func (r *Runner) setWindows(claims []Claim, used []usage, p Params, plan map[Key]libvgpu.Schedule, now time.Time) {
	kept := map[gpu.UUID]*windows{}
	for card, list := range byCard(claims) {
		var had []usage
		refused, busy := false, 0
		for i, c := range claims {
			if c.Card == card {
				had, refused = append(had, used[i]), refused || c.NoSlices
				if takesWindows(c) {
					busy++
				}
			}
		}
		if !refused || busy < 2 {
			continue
		}
		w := r.windows[card]
		if w == nil {
			w = &windows{since: now}
			r.log.Debug("jobs have exclusive windows", "gpu_uuid", card)
		}
		kept[card] = w
		w.update(list, had, p, now, monotonic())
		for _, c := range list {
			plan[c.Key] = w.schedule(list, c)
			r.work.windows(c.Key, w.jobs[c.Key])
		}
	}
	r.windows = kept
}

// monotonic is CLOCK_MONOTONIC, the clock of grants and caches. Go's scheduler is not told
// of the call: that would wake its monitor thread.
func monotonic() int64 {
	var ts unix.Timespec
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		panic(errno) // every kernel has this clock
	}
	return ts.Nano()
}

// look returns what a job does. A cache that cannot be read, because its owner
// cut it or wrote over it, shows nothing: the job then counts as idle, its gate
// stays shut and its slice stays its share.
func (r *Runner) look(job uint32, cards []libvgpu.GrantCard, now time.Time) (acts []activity, asleep bool) {
	view, err := r.grants.Cache(job, atOnce)
	if err == nil && len(view.Cards) == len(cards) {
		delete(r.broken, job)
		return r.sampler.look(job, view, cards, now), view.Asleep
	}
	if !r.broken[job] {
		r.broken[job] = true
		r.log.Warn("cache of a job cannot be read", "job_id", job, "error", err)
	}
	return make([]activity, len(cards)), false
}
