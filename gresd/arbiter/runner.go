// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"cmp"
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

// Grants gives access to the open grants of the node.
type Grants interface {
	Open() []uint32 // sorted
	Spec(jobID uint32) (libvgpu.GrantSpec, bool)
	Cache(jobID uint32, maxAge time.Duration) (libvgpu.CacheView, error)
	SetSchedule(jobID uint32, card int, s libvgpu.Schedule) bool
}

// quickTick is about the time between two polls of a card with windows. With 20 polls a second, a
// job of 30 that waits for results had up to 34.6 % (simulated card). With 60 it had at most 32.0.
const quickTick = 15 * time.Millisecond

// A view of a job that another reader had read may be this old, because several read at the same
// moments.
const atOnce = 5 * time.Millisecond

// Runner polls the open grants, again and again, and divides their cards.
type Runner struct {
	grants  Grants
	params  Params
	every   time.Duration
	log     *slog.Logger
	wake    wakeup.Bell
	sampler *sampler
	broken  map[uint32]bool // jobs whose cache could not be read, already said
	held    func(jobID uint32) bool
	verdict func(card gpu.UUID) probe.Verdict

	cards map[cardKey]*card
	work  atomic.Pointer[map[Key]Work] // published
}

// cardKey names a card and the engine that divides it. The jobs of each engine have a [card].
type cardKey struct {
	uuid       gpu.UUID
	concurrent bool
}

// NewRunner returns a runner that does nothing before [Runner.Run].
func NewRunner(grants Grants, params Params, tick time.Duration, log *slog.Logger) *Runner {
	return &Runner{
		grants: grants, params: params, every: tick, log: log,
		verdict: func(gpu.UUID) probe.Verdict { return probe.Unknown },
		held:    func(uint32) bool { return false },
		wake:    wakeup.NewBell(),
		sampler: newSampler(), broken: map[uint32]bool{}, cards: map[cardKey]*card{},
	}
}

// Measure sets the source of the time that processes had a card. It must be set before
// [Runner.Run]. Without it, only the processes' own accounts are known.
func (r *Runner) Measure(times Times) { r.sampler.exact.times = times }

// Except sets the function that reports jobs whose share something else enforces, such as an MPS
// server. These jobs get neither slices nor gates, because the server's channels are not theirs.
// It must be set before [Runner.Run].
func (r *Runner) Except(held func(jobID uint32) bool) { r.held = held }

// Slices sets the function that returns the result of gresd's own test of a card. It must be set
// before [Runner.Run].
func (r *Runner) Slices(verdict func(card gpu.UUID) probe.Verdict) { r.verdict = verdict }

// Work returns what a job did on a card. It is not known of jobs that something
// else holds at their share ([Runner.Except]) or whose cache cannot be read.
func (r *Runner) Work(key Key) (Work, bool) {
	works := r.work.Load()
	if works == nil {
		return Work{}, false
	}
	w, known := (*works)[key]
	return w, known
}

// Wake starts a poll, because jobs have come or gone, or their engine has changed. It never
// blocks.
func (r *Runner) Wake() { r.wake.Ring() }

// Run looks at the jobs at every tick, more often if they have windows, and sleeps while
// none of them has processes. It returns when ctx is done; the last schedules stay in force.
func (r *Runner) Run(ctx context.Context) {
	defer context.AfterFunc(ctx, r.wake.Ring)()
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
		if r.wake.Sleep(time.Until(next)) {
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

// tick is the time until the next poll.
func (r *Runner) tick() time.Duration {
	tick := r.every
	for _, c := range r.cards {
		switch {
		case c.crowd.quiet.job != (Key{}): // a job is about to be alone, or is
			return min(tick, quietTick)
		case c.windows.used: // a whole part of it
			tick = r.every / max(1, (r.every+quickTick/2)/quickTick)
		}
	}
	return tick
}

// step polls once, publishes what has changed, and returns the number of jobs that
// are awake.
func (r *Runner) step(now time.Time) (awake int) {
	awake = r.observe(now)
	works, mono := map[Key]Work{}, monotonic()
	for _, c := range r.cards {
		if c.concurrent {
			c.sideBySide(now, uint64(mono))
		} else {
			c.entitle()
			c.divide(r.params, now, mono)
			c.gate(r.params, now, uint64(mono))
		}
		c.publish(r, works, now)
	}
	r.work.Store(&works)
	return awake
}

// observe polls the jobs of all cards, and returns how many are awake.
func (r *Runner) observe(now time.Time) (awake int) {
	for _, c := range r.cards {
		c.poll, c.list = c.poll+1, c.list[:0]
	}
	jobs := r.grants.Open()
	r.sampler.begin()
	for _, id := range jobs {
		spec, ok := r.grants.Spec(id)
		if !ok {
			continue
		}
		if r.held(id) {
			for i, part := range spec.Cards {
				r.card(part).job(Key{id, gpu.UUID(part.UUID)}).known = false
				r.grants.SetSchedule(id, i, libvgpu.Schedule{Cores: part.Cores})
			}
			continue
		}
		acts, asleep := r.look(id, spec.Cards, now)
		if !asleep {
			awake++
		}
		longest := uint32(0)
		for _, act := range acts {
			longest = max(longest, act.kernel)
		}
		for i, part := range spec.Cards {
			key, act := Key{id, gpu.UUID(part.UUID)}, acts[i]
			verdict := r.verdict(key.Card)
			r.card(part).observe(Claim{
				Key: key, Cores: part.Cores, Mode: part.Mode, Ceiling: part.Ceiling, Priority: part.Priority,
				Busy: act.busy, Kernel: act.kernel, Cards: len(spec.Cards), Longest: longest,
				NoSlices:  verdict == probe.Ignored || verdict == probe.Unknown && act.noSlices,
				Unsliced:  verdict == probe.Obeyed && act.noSlices,
				NoRecords: act.unseen,
				Wants:     act.wants,
			}, i, act, !r.broken[id])
		}
	}
	contested := map[gpu.UUID]bool{}
	for key, c := range r.cards {
		if several := c.compare(); len(c.jobs) == 0 {
			delete(r.cards, key)
		} else if !c.concurrent {
			contested[key.uuid] = several
		}
	}
	if r.sampler.end(now, contested) {
		r.log.Warn("time on the card is not known exactly: its records name no process of this node's jobs; does gresd run in a PID namespace of its own, such as a container's")
	}
	maps.DeleteFunc(r.broken, func(job uint32, _ bool) bool { return !slices.Contains(jobs, job) })
	return awake
}

// card returns the card of a part of a grant.
func (r *Runner) card(part libvgpu.GrantCard) *card {
	key := cardKey{gpu.UUID(part.UUID), part.Engine == libvgpu.EngineConcurrent}
	c := r.cards[key]
	if c == nil {
		c = &card{jobs: map[uint32]*job{}, concurrent: key.concurrent}
		r.cards[key] = c
	}
	return c
}

// observe stores a job's claim, and its use since the last poll.
func (c *card) observe(claim Claim, place int, act activity, readable bool) {
	j := c.job(claim.Key)
	j.Claim, j.place, j.used, j.sign, j.readable = claim, place, act.used, act.sign, readable
	j.limit, j.limited = limitOf(claim)
	j.procs = float64(max(1, j.Busy))
	c.list = append(c.list, j)
}

// limitOf is how much of the card a job may have at most: its cores in hard mode, its
// ceiling in soft mode.
func limitOf(c Claim) (limit uint32, limited bool) {
	switch c.Mode {
	case libvgpu.ModeOff:
		return 0, false
	case libvgpu.ModeSoft:
		limit = c.Ceiling
		return limit, limit != 0 && limit < 100
	}
	return c.Cores, c.Cores < 100
}

// job returns what is known of a job that was found in this poll.
func (c *card) job(key Key) *job {
	j := c.jobs[key.JobID]
	if j == nil {
		j = &job{Claim: Claim{Key: key}, worked: worked{Work: Work{Had: -1}}}
		c.jobs[key.JobID] = j
	}
	j.poll = c.poll
	return j
}

// compare completes the jobs of this poll with their neighbors, and forgets all other jobs. It
// reports whether several jobs work on the card.
func (c *card) compare() (contested bool) {
	maps.DeleteFunc(c.jobs, func(_ uint32, j *job) bool { return j.poll != c.poll })
	slices.SortFunc(c.list, func(a, b *job) int { return cmp.Compare(a.JobID, b.JobID) })
	refused, taking := false, 0
	for _, j := range c.list {
		j.others, j.othersCores = 0, 0
		for _, other := range c.list {
			if other != j && other.Busy > 0 {
				j.others, j.othersCores = j.others+1, j.othersCores+other.Cores
			}
		}
		contested = contested || j.Busy > 0 && j.others > 0
		if refused = refused || j.NoSlices; j.Busy > 0 && j.Cores > 0 {
			taking++
		}
	}
	c.unsliced = refused && taking > 1
	return contested
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

// look returns what a job does. If a cache cannot be read, because its owner cut it or wrote over
// it, the job counts as idle. Its gate then stays shut and its slice stays its share.
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
