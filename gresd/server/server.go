// SPDX-License-Identifier: Apache-2.0

// Package server is the pipeline behind gresd's socket:
// request → place → ledger → grant (Server.decide, in grant.go).
//
// Order of durability. A record is on the disk before a job's files exist, and
// it is gone from the disk before they are removed. So a kill at any moment
// leaves one of three things, and Reconcile mends each: a record without
// files, whose files are made again; files without a record, which are removed
// unless the job lives; or both, which are adopted.
package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/mps"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/notify"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/status"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waitqueue"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
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

// Costs returns the memory that one context takes on each model of card.
type Costs interface {
	Of(model string) probe.Figure
	Await(ctx context.Context)
}

// Parts are the arguments of [New]. All but NoBeats must be set.
type Parts struct {
	Config   *config.InForce
	Steps    Steps
	Ledger   *ledger.Ledger
	Grants   *grant.Store
	Costs    Costs
	Observer Observer
	Node     *node.Node
	Cards    *cards.Cards
	Queue    *waitqueue.Queue
	Outbox   *notify.Notifier
	MPS      *mps.Manager
	Linger   *mps.ClientGuard
	Report   *status.Reporter
	Log      *slog.Logger
	NoBeats  bool // [Server.Run] leaves [Server.RunPeriodic] to its caller: tests count the questions
}

// Server serves the socket. Make it with [New], then call [Server.Run].
type Server struct {
	config   *config.InForce
	steps    Steps
	ledger   *ledger.Ledger
	grants   *grant.Store
	costs    Costs
	observer Observer
	node     *node.Node
	cards    *cards.Cards
	queue    *waitqueue.Queue
	outbox   *notify.Notifier
	mps      *mps.Manager
	linger   *mps.ClientGuard
	report   *status.Reporter
	log      *slog.Logger
	noBeats  bool

	ready chan struct{} // closed after the first reconciliation

	uncompared failures // to compare jobs with slurmctld
	unwritten  failures // of records and folders on this node

	jobLocks jobLocks
	deciding deciding
	// runningAtStart are the jobs that had a process when gresd started and found no ledger.
	runningAtStart []uint32
	recovering     sync.Mutex // locked during a rebuild of the ledger

	pace node.Pace // of questions about jobs here

	decisions        decisions
	neverDropsShards atomic.Bool // this Slurm never starts a job without its shards
	lostShards       lostShards

	compared  atomic.Pointer[time.Time] // with slurmctld's jobs, for the last time
	comparing chan struct{}             // holds one who has them compared, for all who want it

	compareLife time.Duration // compareLife; tests change it
	slowWrite   time.Duration // slowWrite; tests change it

	reload wakeup.Bell // the cards are to be read anew
}

// New returns a server. ledgerLost means that there was no usable ledger: the server rebuilds it from
// the jobs that live.
func New(parts Parts, ledgerLost bool) (*Server, error) {
	s := &Server{
		config: parts.Config, steps: parts.Steps, ledger: parts.Ledger, grants: parts.Grants, costs: parts.Costs,
		observer: parts.Observer, node: parts.Node, cards: parts.Cards, queue: parts.Queue, outbox: parts.Outbox,
		mps: parts.MPS, linger: parts.Linger, report: parts.Report, log: parts.Log, noBeats: parts.NoBeats,
		ready: make(chan struct{}), reload: wakeup.NewBell(), comparing: make(chan struct{}, 1),
		jobLocks:    jobLocks{byJob: map[uint32]*jobLock{}},
		deciding:    deciding{jobs: map[uint32][]*context.CancelCauseFunc{}, latest: map[uint32]uint64{}},
		compareLife: compareLife, slowWrite: slowWrite,
	}
	s.compared.Store(&time.Time{})
	if err := s.writeMarkers(); err != nil {
		return nil, err
	}
	s.findRunning(ledgerLost)
	return s, nil
}

// OpenMPS returns the MPS servers of the node, and the keeper of the memory of their killed clients.
// changed is called when the answer of [mps.Manager.Holds] may have changed. It must not block.
func OpenMPS(cfg *config.Config, grants *grant.Store, changed func(), log *slog.Logger) (manager *mps.Manager, keeper *mps.ClientGuard, err error) {
	keeper = mps.NewClientGuard(grants, func(jobID uint32) bool { return manager.Serves(jobID) }, log)
	manager, err = mps.New(mps.Config{Dir: cfg.Paths.MPS(), Control: mps.Program, Log: log, Changed: func() {
		keeper.Wake()
		changed()
	}})
	return manager, keeper, err
}

// ConfigChanged is called when another configuration is in force: for requests from now on and for
// the state of cards; what was granted stays as it is.
func (s *Server) ConfigChanged() {
	s.reload.Ring()
	s.outbox.Wake()
}

// refreshCards asks the driver again.
func (s *Server) refreshCards() {
	s.cards.Refresh()
	s.queue.WakeAll()
	s.nameCards()
}

// Run serves at a socket of [wire.Listen] until ctx is done, and closes it. It calls ready once, when
// requests are served from a ledger that was compared with the world.
func (s *Server) Run(ctx context.Context, listener *net.UnixListener, ready func()) error {
	var work sync.WaitGroup
	work.Go(func() { wire.Serve(ctx, listener, s.dispatch, s.log) })
	work.Go(func() { s.outbox.Run(ctx) })

	s.reconcile(ctx, unrecorded)
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
		if s.cards.Unread() != nil {
			again = time.After(cards.RefreshAfter)
		}
		select {
		case <-ctx.Done():
		case <-again:
			s.refreshCards()
		case <-s.reload:
			s.refreshCards()
			s.cards.WarnOfAbsent()
		case <-timer.C:
			s.RunPeriodic(ctx)
			timer.Reset(node.Around(node.Often))
		}
	}
	work.Wait()
	s.mps.Close()
	return nil
}

// RunPeriodic does the work that Run repeats about once a minute.
func (s *Server) RunPeriodic(ctx context.Context) {
	s.refreshCards()
	s.reconcile(ctx, due)
	if err := s.node.ForgetNames(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("cannot check the node's names with slurmctld", "error", err)
	}
	s.queue.DropEndedJobs(ctx, time.Now())
}

// CheckLiveness returns unless the server is deadlocked. A watchdog calls it. It takes only locks that are
// free while a disk, slurmctld or the driver does not answer: a restart would not help there.
func (s *Server) CheckLiveness() {
	s.jobLocks.wasAsked(0)
	s.ledger.Len()
}

// writeMarkers writes what the tasks of jobs read in run_dir. It makes config.Paths.Ask if gresd places.
// It writes config.Paths.Loses, unless this release drops no shards.
func (s *Server) writeMarkers() error {
	paths := s.config.Get().Paths
	var err error
	if s.config.Get().Placement.By == config.PlacementGresd {
		err = os.WriteFile(paths.Ask(), nil, 0o644) // an earlier one stays: without it, a Prolog starts the job
	} else {
		err = atomicfile.Remove(paths.Ask())
	}
	if err == nil {
		err = os.WriteFile(paths.Loses(), nil, 0o644)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseWait)
	defer cancel()
	s.mayDropShards(ctx, "")
	s.nameCards()
	return nil
}

// mayDropShards reports whether this Slurm can start a job without its shards; true if its release is
// unknown. It removes config.Paths.Loses if not.
func (s *Server) mayDropShards(ctx context.Context, conf string) bool {
	if s.neverDropsShards.Load() {
		return false
	}
	loses, err := s.node.Slurm(conf).LosesShards(ctx)
	if err != nil || loses {
		return true
	}
	_ = os.Remove(s.config.Get().Paths.Loses()) // a marker that stays only makes tasks ask more
	s.neverDropsShards.Store(true)
	return false
}

// nameCards makes config.Paths.Cards if some cards are MIG instances, or removes it.
func (s *Server) nameCards() {
	path, cards := s.config.Get().Paths.Cards(), s.cards.Now().Cards
	var err error
	if slices.ContainsFunc(cards, gpu.Card.IsInstance) {
		var text []byte
		for _, c := range cards {
			text = fmt.Appendf(text, "%d %s\n", c.Index, c.UUID)
		}
		if old, missing := os.ReadFile(path); missing != nil || !bytes.Equal(old, text) {
			err = atomicfile.Replace(path, text, 0o644)
		}
	} else {
		err = atomicfile.Remove(path)
	}
	if err != nil {
		s.log.Warn("jobs of whole cards do not learn their instances", "error", err)
	}
}
