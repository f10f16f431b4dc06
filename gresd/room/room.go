// SPDX-License-Identifier: Apache-2.0

// Package room lets jobs wait for room on the cards.
//
// Where gresd chooses the cards, slurmctld starts jobs that no card has room for. Such a job
// waits in its Prolog, and has the first room that another leaves: one that is sent back starts
// no sooner than slurmd forgets its run (AuthInfo=cred_expire), whatever becomes free meanwhile.
// Jobs wait in the order of the line; one that only a later, smaller one leaves room for lets
// that one go first, until cards are kept free for it.
package room

import (
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/backlog"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// Waiter is a job that waits in its Prolog.
type Waiter struct {
	jobID uint32
	since time.Time     // it has been in the line
	Wake  wakeup.Bell   // something became free, and those before have had their look
	Left  chan struct{} // closed when it need not wait any more
	over  bool          // its Epilog has come; with room.mu
	whole []gpu.UUID    // cards that Slurm has chosen for it as a whole
}

// Room is the jobs that wait here, in the order in which they may have what becomes free, and the
// line of those that were sent back.
type Room struct {
	cards *cards.Cards
	node  *node.Node
	inUse func() place.InUse // of each card
	log   *slog.Logger

	lineMu sync.Mutex
	line   *backlog.Line // with lineMu
	write  func() error  // with lineMu: writes the line as it is now; nil: it is written
	saveMu sync.Mutex    // over a write
	pace   node.Pace     // of questions about jobs in the line

	mu      sync.Mutex
	waiters []*Waiter
	turn    *Waiter                  // that may look
	waited  map[uint32]time.Duration // by jobs whose Prolog is not answered yet
}

// HasWaited notes how long a job has waited, whose Prolog is not answered yet.
func (r *Room) HasWaited(jobID uint32, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waited[jobID] = d
}

// Answered forgets a job, and returns how long it has waited.
func (r *Room) Answered(jobID uint32) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.waited[jobID]
	delete(r.waited, jobID)
	return d
}

// Join adds a job, at the place of its time in the line. One of the same job leaves: its Prolog has
// asked again. All look, and so does this one.
func (r *Room) Join(jobID uint32, whole []gpu.UUID) *Waiter {
	defer r.Changed()
	since := r.since(jobID)
	w := &Waiter{jobID: jobID, since: since, whole: whole, Wake: wakeup.NewBell(), Left: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(jobID, false) // the other sees with Has that the job still waits
	i := 0
	for i < len(r.waiters) && !r.waiters[i].since.After(since) {
		i++
	}
	r.waiters = slices.Insert(r.waiters, i, w)
	return w
}

// Leave takes a job out that waits no more: cards that were kept idle for it are for all.
func (r *Room) Leave(w *Waiter) {
	r.mu.Lock()
	r.waiters = slices.DeleteFunc(r.waiters, func(other *Waiter) bool { return other == w })
	r.mu.Unlock()
	r.Changed()
}

// End lets a job leave that waits no more; over says that it was its Epilog.
func (r *Room) End(jobID uint32, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(jobID, over)
}

// end is End with r.mu held.
func (r *Room) end(jobID uint32, over bool) {
	for i, w := range r.waiters {
		if w.jobID == jobID {
			w.over = over
			close(w.Left)
			r.waiters = slices.Delete(r.waiters, i, i+1)
			return
		}
	}
}

// IsOver says whether the Epilog of a job came while it waited.
func (r *Room) IsOver(w *Waiter) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return w.over
}

// Has says whether a job waits here.
func (r *Room) Has(jobID uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.waiters, func(w *Waiter) bool { return w.jobID == jobID })
}

// wholeBefore are the cards that Slurm has chosen as a whole for jobs that wait, and that come
// before a job.
func (r *Room) wholeBefore(jobID uint32) (cards []gpu.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.waiters {
		if w.jobID == jobID {
			break
		}
		cards = append(cards, w.whole...)
	}
	return cards
}

// Changed has all look again, one after the other, from the first one on. Whoever makes room for
// shares calls it before another can look.
func (r *Room) Changed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiters) > 0 {
		r.lets(r.waiters[0])
	}
}

// lets a job look. r.mu is held.
func (r *Room) lets(w *Waiter) {
	r.turn = w
	w.Wake.Ring()
}

// InTurn says whether a job may look: it does not wait here, or those before it have had their look.
func (r *Room) InTurn(jobID uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.waiters, func(w *Waiter) bool { return w.jobID == jobID })
	return i < 0 || r.waiters[i] == r.turn
}

// PassOn lets the next one look.
func (r *Room) PassOn(w *Waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.waiters, w) + 1; r.turn == w && i > 0 && i < len(r.waiters) {
		r.lets(r.waiters[i])
	}
}

// Open reads the line that an earlier gresd has left.
func Open(inForce *config.InForce, of *cards.Cards, here *node.Node, inUse func() place.InUse, log *slog.Logger) (*Room, error) {
	cfg := inForce.Get()
	line, err := backlog.Open(cfg.Paths.Waiting(), cfg.Placement.Patience, log)
	if err != nil {
		return nil, err
	}
	r := &Room{cards: of, node: here, inUse: inUse, log: log, line: line, waited: map[uint32]time.Duration{}}
	line.Save = func(path string, jobs []backlog.Job) error {
		jobs = slices.Clone(jobs)
		r.write = func() error { return backlog.Write(path, jobs) }
		return nil
	}
	return r, nil
}

// unlockLine unlocks the line, then writes it. A slow disk stops no placement: each needs the line.
func (r *Room) unlockLine() {
	changed := r.write != nil
	r.lineMu.Unlock()
	if !changed {
		return
	}
	r.saveMu.Lock()
	defer r.saveMu.Unlock()
	r.lineMu.Lock()
	write := r.write
	r.write = nil
	r.lineMu.Unlock()
	if write == nil {
		return
	}
	if err := write(); err != nil {
		r.log.Warn("line of waiting jobs", "error", err)
	}
}
