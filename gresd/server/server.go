// SPDX-License-Identifier: Apache-2.0

// Package server is gresd's Unix socket and the pipeline behind it:
// request → place → ledger → grant ([Server.grant], in allocate.go).
//
// Order of durability. A record is on the disk before a job's files exist, and
// it is gone from the disk before they are removed. So a kill at any moment
// leaves one of three things, and Reconcile mends each: a record without
// files, whose files are made again; files without a record, which are removed
// unless the job lives; or both, which are adopted.
package server

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/health"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/inventory"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/mps"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/past"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/usage"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waiting"
)

// Slurm is what the server asks of slurmctld.
type Slurm interface {
	Job(ctx context.Context, jobID uint32, node string) (slurm.JobFacts, error)
	Brief(ctx context.Context, jobID uint32, node string) (slurm.JobFacts, error)
	Requeue(ctx context.Context, jobID uint32) error
	Settings(ctx context.Context) (slurm.Settings, error)
	Delay(ctx context.Context, jobID uint32, by time.Duration) error
	Extend(ctx context.Context, jobID uint32, limit time.Duration) error
	Notify(ctx context.Context, jobID uint32, message string) error
	Explain(ctx context.Context, jobID uint32, message string) error
	LosesShards(ctx context.Context) (bool, error)
	Asked(ctx context.Context, jobID uint32) (slurm.Asked, error)
	health.Nodes
}

// Health knows which cards must not be granted.
type Health interface {
	Out(gpu.UUID) string // why, "" for a card that may be granted
	Sick() map[gpu.UUID]string
	Cordon(uuid gpu.UUID, reason string) error
	Uncordon(uuid gpu.UUID) (was bool, err error)
}

// Inventory is what the server asks of the driver.
type Inventory interface {
	Cards() ([]gpu.Card, error)
	Topology() (topology.Facts, error)
}

// Observer counts what the server does.
type Observer interface {
	Placed(result string)
	// CardDecided counts one card in a decision, by place.Reason.
	CardDecided(reason string)
	GrantTook(time.Duration)
	ReleaseTook(time.Duration)
	// Corrected counts one thing that a reconciliation put right, by Correction.
	Corrected(kind string)
	// Reconciled tells of one reconciliation; ok is false where slurmctld could
	// not be asked.
	Reconciled(took time.Duration, ok bool)
}

// Commands are Slurm's, as gresd finds them.
type Commands interface {
	Scontrol() string // its path; "" where it is not found
	Problem() string  // why they do not work; "" if they do
}

// Parts are what a server is made of. All but Problems, Commands, Samples, Usage and Past must be set.
type Parts struct {
	Config    config.Config
	Inventory Inventory
	Slurm     func(conf string) Slurm // a client for that slurm.conf
	Steps     Steps
	Ledger    *ledger.Ledger
	Grants    *grant.Store
	Costs     *probe.Costs
	Observer  Observer
	Health    Health
	Samples   Samples
	Problems  []func() []string // what else an administrator should look at
	Commands  Commands          // nil: not known
	Private   []func() []string // and what names jobs or processes of users: for root alone
	Usage     *usage.Writer     // nil: what jobs have used is not written down
	Past      *past.Store       // nil: what jobs did is not kept
	Log       *slog.Logger
	Version   string
}

// Server serves the socket. Make it with [New], then call [Server.Run].
type Server struct {
	Parts
	started time.Time
	nodes   *nodes
	ready   chan struct{} // closed after the first reconciliation

	cards   atomic.Pointer[hardware]
	cardsMu sync.Mutex // orders changes of cards; never held while a driver is asked
	told    told

	unreconciled unreconciled

	// mu is held for reading, with the job's own lock, by work on the record and the
	// folder of one job (lockJob), and alone for a moment by what all jobs depend on.
	// Slurm and the driver are never asked while it is held.
	mu       sync.RWMutex
	jobLocks jobLocks
	// placing is held from the look at what is in use to the change of it.
	placing sync.Mutex
	// lost says that the ledger must be rebuilt from what is found, recovering that
	// somebody is at it; under mu.
	lost, recovering bool
	// survivors are the jobs that had a process when this gresd started and found no ledger.
	survivors []uint32

	conns limits
	rates rates
	whole wholeCards

	pace, linePace pace // of questions about jobs here, and in the line

	queued queued

	decisions decisions
	lineMu    sync.Mutex
	line      *waiting.Line // with lineMu
	room      room
	keeps     atomic.Bool // this Slurm never starts a job without its shards
	shardless shardless

	namesDue      time.Time // when slurmctld is asked again by which names it knows this node
	knownSettings settingsOf
	compared      atomic.Pointer[time.Time] // with slurmctld's jobs, for the last time

	mps *mps.Manager

	config atomic.Pointer[config.Config] // in force
	reload chan struct{}                 // the cards are to be read anew

	work func(arbiter.Key) (arbiter.Work, bool) // nil: not known

	lately lately
	spent  spent
}

// hardware is the last good answer of the driver.
type hardware struct {
	cards     []gpu.Card
	topology  *topology.Topology // nil: not known
	distances place.Distances    // of topology; nil: not known
	err       error              // what was wrong with the cards, nil for nothing
	// read are the cards that the driver could read, the sick ones included.
	read map[gpu.UUID]bool

	topologyRead time.Time
}

// New returns a server that has read the cards once. ledgerLost says that
// there was no usable ledger, so that it must be rebuilt from living jobs.
func New(parts Parts, ledgerLost bool) (*Server, error) {
	known, err := loadNodes(parts.Config.Paths.StateDir)
	if err != nil {
		return nil, err
	}
	s := &Server{
		Parts: parts, started: time.Now(), nodes: known, ready: make(chan struct{}), reload: make(chan struct{}, 1),
		lost: ledgerLost, told: told{wake: make(chan struct{}, 1)},
	}
	s.config.Store(&parts.Config)
	s.compared.Store(&time.Time{})
	if s.line, err = waiting.Open(parts.Config.Paths.Waiting(), parts.Config.Placement.Patience); err != nil {
		return nil, err
	}
	if err = s.queued.open(parts.Config.Paths.Queued()); err != nil {
		return nil, err
	}
	// A card that became well meanwhile is not told of any more.
	if s.queued.any() && len(s.Health.Sick()) == 0 {
		s.told.well.Store(true)
		s.wakeTeller()
	}
	s.mps, err = mps.New(mps.Config{Dir: parts.Config.Paths.MPS(), Control: parts.Config.MPS.Control, Log: parts.Log})
	if err != nil {
		return nil, err
	}
	if err := s.markPlacement(); err != nil {
		return nil, err
	}
	if s.lost {
		s.survivors = slices.Sorted(slices.Values(s.Steps.Jobs()))
	}
	s.Grants.SetEnvironment(s.environment)
	s.refreshCards()
	s.warnOfAbsentCards()
	return s, nil
}

// cfg is the configuration in force. Parts.Config is what gresd was started with.
func (s *Server) cfg() *config.Config { return s.config.Load() }

// SetConfig puts another configuration in force, for requests from now on and
// for the state of cards; what was granted stays as it is. It must be one of
// [config.Reload].
func (s *Server) SetConfig(c config.Config) {
	s.config.Store(&c)
	select {
	case s.reload <- struct{}{}:
	default:
	}
	s.wakeTeller()
}

// markPlacement makes or removes config.Paths.Ask.
func (s *Server) markPlacement() error {
	path := s.Config.Paths.Ask()
	if s.Config.Placement.Mode == config.PlacementGresd {
		return os.WriteFile(path, nil, 0o644)
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// warnOfAbsentCards names settings of cards that are not here: a card that was
// replaced has another UUID.
func (s *Server) warnOfAbsentCards() {
	for uuid := range s.cfg().Cards {
		here := slices.ContainsFunc(s.cards.Load().cards, func(c gpu.Card) bool { return string(c.UUID) == uuid })
		if uuid != config.AllCards && !here {
			s.Log.Warn("the configuration names a card that this node does not have", "gpu_uuid", uuid)
		}
	}
}

// refreshCards asks the driver again. An answer without any card does not
// replace one with cards: the driver may be reloading.
func (s *Server) refreshCards() {
	cards, err := s.Inventory.Cards()
	for i, card := range cards {
		cards[i] = s.cfg().Card(card.UUID).Apply(card)
	}
	old := s.cards.Load()
	var unread *inventory.CardError
	if old != nil && errors.As(err, &unread) {
		cards = withLost(cards, old.cards)
	}
	next := &hardware{cards: cards, err: err}
	if len(cards) == 0 && old != nil {
		next.cards, next.read = old.cards, old.read
		next.topology, next.distances, next.topologyRead = old.topology, old.distances, old.topologyRead
	} else {
		s.refreshTopology(next, old)
	}
	if err != nil && (old == nil || old.err == nil || old.err.Error() != err.Error()) {
		s.Log.Warn("some cards cannot be read", "error", err)
	}
	s.cardsMu.Lock()
	defer s.cardsMu.Unlock()
	s.cards.Store(s.judged(next))
	s.room.changed()
	if err := s.nameCards(next.cards); err != nil {
		s.Log.Warn("jobs of whole cards do not learn their instances", "error", err)
	}
}

// Run serves at a socket of [Listen] until ctx is done, and closes it. It calls ready once, when
// requests are served from a ledger that was compared with the world.
func (s *Server) Run(ctx context.Context, listener *net.UnixListener, ready func()) error {
	var work sync.WaitGroup
	work.Go(func() { s.accept(ctx, listener, &work) })
	work.Go(func() { s.tellSlurm(ctx) })
	work.Go(func() { s.Usage.Run(ctx) })

	first := askStrays
	if s.isLost() {
		first = askAll
	}
	s.reconcile(ctx, first)
	s.mps.Settle()
	close(s.ready)
	ready()

	timer := time.NewTimer(rand.N(firstWithin))
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-s.reload:
			s.refreshCards()
			s.warnOfAbsentCards()
		case <-timer.C:
			s.Beat(ctx)
			timer.Reset(around(reconcileEvery))
		}
	}
	_ = listener.Close()
	s.conns.closeAll()
	work.Wait()
	s.mps.Close()
	return nil
}

// Beat is what Run does about each minute.
func (s *Server) Beat(ctx context.Context) {
	s.refreshCards()
	s.reconcile(ctx, askDue)
	if err := s.forgetNames(ctx); err != nil && ctx.Err() == nil {
		s.Log.Warn("names of this node", "error", err)
	}
	s.tidyLine(ctx)
}

func (s *Server) reconcile(ctx context.Context, whom asking) {
	start := time.Now()
	err := s.compare(ctx, whom)
	newNode := errors.Is(err, errNoNode) && s.Ledger.Len() == 0
	if ctx.Err() == nil {
		s.unreconciled.note(err, newNode)
	}
	s.Observer.Reconciled(time.Since(start), err == nil || newNode)
	switch {
	case err == nil, ctx.Err() != nil:
	case newNode:
		s.Log.Debug("nothing to compare with slurmctld yet", "error", err) // a new node
	default:
		s.Log.Warn("jobs could not be compared with slurmctld: all grants are kept", "error", err)
	}
}

// Alive returns once the server can do work. A watchdog calls it: it does not
// return while the server hangs.
func (s *Server) Alive() {
	s.mu.Lock()
	defer s.mu.Unlock()
}
