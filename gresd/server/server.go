// SPDX-License-Identifier: Apache-2.0

// Package server is the pipeline behind gresd's socket:
// request → place → ledger → grant (Server.decide, in decide.go).
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
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/acct"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/linger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/mps"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/outbox"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/past"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/room"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/socket"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/status"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/whole"
)

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

// Parts are what a server is made of. All but Problems, Commands, Samples, Usage, Past and Served must be set.
type Parts struct {
	Config    *config.InForce
	Inventory cards.Driver
	Slurm     func(conf string) node.Slurm // a client for that slurm.conf
	Steps     Steps
	Ledger    *ledger.Ledger
	Grants    *grant.Store
	Costs     *probe.Costs
	Observer  Observer
	Health    cards.Health
	Samples   status.Samples    // nil: not known
	Problems  []func() []string // what else an administrator should look at
	Commands  status.Commands   // nil: not known
	Private   []func() []string // and what names jobs or processes of users: for root alone
	Usage     *acct.Writer      // nil: what jobs have used is not written down
	Past      *past.Store       // nil: what jobs did is not kept
	Served    func()            // called when [Server.HeldByMPS] may say something else, from [New] on; it must not block
	Log       *slog.Logger
	Version   string
	NoBeats   bool // [Server.Run] leaves [Server.Beat] to its caller: tests count what it asks
}

// Server serves the socket. Make it with [New], then call [Server.Run].
type Server struct {
	config   *config.InForce
	steps    Steps
	ledger   *ledger.Ledger
	grants   *grant.Store
	costs    *probe.Costs
	observer Observer
	usage    *acct.Writer
	log      *slog.Logger
	noBeats  bool

	node   *node.Node
	Cards  *cards.Cards     // of this node
	Outbox *outbox.Outbox   // what slurmctld is still to be told
	Report *status.Reporter // what is told of cards and jobs
	ready  chan struct{}    // closed after the first reconciliation

	unreconciled unreconciled // with slurmctld
	unwritten    unreconciled // on this node

	jobLocks jobLocks // of work on the record and the folder of one job (lockJob)
	deciding deciding
	// placing is held from the look at what is in use to the change of it.
	placing sync.Mutex
	// mu guards lost and recovering. gresd never waits for a disk, Slurm or the driver while it is locked.
	mu sync.Mutex
	// lost says that the ledger must be rebuilt from what is found, recovering that this is being
	// done now.
	lost, recovering bool
	// survivors are the jobs that had a process when gresd started and found no ledger.
	survivors []uint32

	Whole *whole.Jobs // without a share

	pace node.Pace // of questions about jobs here

	decisions decisions
	room      *room.Room
	keeps     atomic.Bool // this Slurm never starts a job without its shards
	shardless shardless

	compared  atomic.Pointer[time.Time] // with slurmctld's jobs, for the last time
	comparing chan struct{}             // holds one who has them compared, for all who want it

	compareLife time.Duration // compareLife; tests change it

	mps *mps.Manager
	// Linger keeps what killed clients of its servers had launched from ending the others.
	Linger *linger.Keeper

	reload wakeup.Bell // the cards are to be read anew
}

// New returns a server that has read the cards once. ledgerLost says that
// there was no usable ledger, so that it must be rebuilt from living jobs.
func New(parts Parts, ledgerLost bool) (*Server, error) {
	cfg := parts.Config.Get()
	here, err := node.Open(cfg.Paths.StateDir, parts.Slurm, parts.Log)
	if err != nil {
		return nil, err
	}
	s := &Server{
		config: parts.Config, steps: parts.Steps, ledger: parts.Ledger, grants: parts.Grants, costs: parts.Costs,
		observer: parts.Observer, usage: parts.Usage, log: parts.Log, noBeats: parts.NoBeats,
		node: here, Cards: cards.Read(parts.Inventory, parts.Health, parts.Config, parts.Log),
		ready: make(chan struct{}), reload: wakeup.NewBell(), comparing: make(chan struct{}, 1),
		lost: ledgerLost, compareLife: compareLife,
		unreconciled: unreconciled{text: noAnswer}, unwritten: unreconciled{text: notWritten},
	}
	s.Whole = whole.New(here, s.Cards, parts.Log)
	s.compared.Store(&time.Time{})
	if s.room, err = room.Open(parts.Config, s.Cards, here, s.inUse, parts.Log); err != nil {
		return nil, err
	}
	if s.Outbox, err = outbox.Open(parts.Config, s.Cards, here, parts.Grants, parts.Log); err != nil {
		return nil, err
	}
	s.Linger = linger.New(parts.Grants, func(jobID uint32) bool { return s.mps.Serves(jobID) }, parts.Log)
	s.mps, err = mps.New(mps.Config{Dir: cfg.Paths.MPS(), Control: mps.Program, Log: parts.Log, Changed: func() {
		s.Linger.Wake()
		if parts.Served != nil {
			parts.Served()
		}
	}})
	if err != nil {
		return nil, err
	}
	if err := s.markPlacement(); err != nil {
		return nil, err
	}
	if err := s.markLoss(); err != nil {
		return nil, err
	}
	s.findSurvivors()
	s.nameCards()
	s.Report = status.New(status.Parts{
		Config: parts.Config, Cards: s.Cards, Node: here, Ledger: parts.Ledger, Grants: parts.Grants, InUse: s.inUse, ByMPS: s.mps.Serves,
		Samples: parts.Samples, Commands: parts.Commands, Usage: parts.Usage, Past: parts.Past, Version: parts.Version, Log: parts.Log,
		Problems: slices.Concat([]func() []string{s.unreconciled.problems, s.unwritten.problems, s.Cards.Problems}, parts.Problems),
		Private:  slices.Concat(parts.Private, []func() []string{s.mps.Problems}),
	})
	s.grants.SetEnvironment(s.environment)
	return s, nil
}

// cfg is the configuration in force.
func (s *Server) cfg() *config.Config { return s.config.Get() }

// ConfigChanged is called when another configuration is in force: for requests from now on and for
// the state of cards; what was granted stays as it is.
func (s *Server) ConfigChanged() {
	s.reload.Ring()
	s.Outbox.Wake()
}

// markPlacement makes or removes config.Paths.Ask.
func (s *Server) markPlacement() error {
	path := s.cfg().Paths.Ask()
	if s.cfg().Placement.By == config.PlacementGresd {
		return os.WriteFile(path, nil, 0o644)
	}
	return atomicfile.Remove(path)
}

// refreshCards asks the driver again.
func (s *Server) refreshCards() {
	before := s.Cards.Now()
	s.Cards.Refresh()
	if now := s.Cards.Now(); before.Err != nil && (now.Err == nil || len(now.Cards) > len(before.Cards)) {
		s.Outbox.CardIsWell()
	}
	s.room.Changed()
	s.nameCards()
}

// cardsAgain is the pause before gresd reads the cards again, while the driver has named none.
const cardsAgain = time.Second

// awaitCards waits until the driver has named the cards. Without persistence mode, the first
// question can take more than a minute.
func (s *Server) awaitCards(ctx context.Context) error {
	for {
		err := s.Cards.Unread()
		if err == nil || !wakeup.Wait(ctx, cardsAgain) {
			return err
		}
	}
}

// Run serves at a socket of [socket.Listen] until ctx is done, and closes it. It calls ready once, when
// requests are served from a ledger that was compared with the world.
func (s *Server) Run(ctx context.Context, listener *net.UnixListener, ready func()) error {
	var work sync.WaitGroup
	work.Go(func() { socket.Serve(ctx, listener, s.dispatch, s.log) })
	work.Go(func() { s.Outbox.Run(ctx) })
	work.Go(func() { s.usage.Run(ctx) })

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
	if s.noBeats {
		timer.Stop()
	}
	for ctx.Err() == nil {
		var again <-chan time.Time
		if s.Cards.Unread() != nil {
			again = time.After(cardsAgain)
		}
		select {
		case <-ctx.Done():
		case <-again:
			s.refreshCards()
		case <-s.reload:
			s.refreshCards()
			s.Cards.WarnOfAbsent()
		case <-timer.C:
			s.Beat(ctx)
			timer.Reset(node.Around(node.Often))
		}
	}
	work.Wait()
	s.mps.Close()
	return nil
}

// Beat is what Run does about each minute.
func (s *Server) Beat(ctx context.Context) {
	s.refreshCards()
	s.reconcile(ctx, askDue)
	if err := s.node.ForgetNames(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("names of this node", "error", err)
	}
	s.room.Tidy(ctx, time.Now())
}

func (s *Server) reconcile(ctx context.Context, whom asking) {
	start := time.Now()
	asked, written := s.mend(ctx, whom)
	newNode := errors.Is(asked, node.ErrNoName) && s.ledger.Len() == 0
	s.observer.Reconciled(time.Since(start), asked == nil || newNode)
	if ctx.Err() != nil {
		return
	}
	s.unreconciled.note(asked, newNode)
	s.unwritten.note(written, false)
	if newNode {
		s.log.Debug("nothing to compare with slurmctld yet", "error", asked) // a new node
	} else if asked != nil {
		s.log.Warn("jobs could not be compared with slurmctld: all grants are kept", "error", asked)
	}
	if written != nil {
		s.log.Warn("cannot write records or folders of jobs", "error", written)
	}
}

// Alive returns unless the server is deadlocked. A watchdog calls it. It takes only locks that are
// free while a disk, slurmctld or the driver does not answer: a restart would not help there.
func (s *Server) Alive() {
	s.isLost()
	s.jobLocks.wasAsked(0)
	s.ledger.Len()
}

// isReady says whether the ledger was compared with the world.
func (s *Server) isReady() bool {
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}
