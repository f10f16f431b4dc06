// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waitqueue"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// allocateAlone calls allocate, unless this run of the job has a grant already. All tasks of a job
// without a Prolog ask at once. The first task has bound its grant by then.
func (s *Server) allocateAlone(ctx context.Context, facts slurm.JobFacts, req request.Request, restart uint32) error {
	defer s.jobLocks.lockAsked(facts.JobID)()
	if waitqueue.HasEnded(ctx) {
		return waitqueue.ErrJobEnded
	}
	rec, known := s.ledger.Get(facts.JobID)
	if known && rec.State == ledger.Granted && s.sameRun(rec, wire.Request{JobID: rec.JobID, UID: facts.UID, Restart: restart}) {
		return whileFull("run_dir", func() error { return s.ensure(rec) })
	}
	return s.allocate(facts, req, restart, known)
}

// allocate finds the cards, and makes the decision durable and then visible. dropFirst: an earlier run of
// the job has a record. The caller has the job's lock.
func (s *Server) allocate(facts slurm.JobFacts, req request.Request, restart uint32, dropFirst bool) error {
	var rec ledger.Record
	err := whileFull("state_dir", func() error {
		if dropFirst {
			if err := s.drop(facts.JobID); err != nil {
				return err
			}
		}
		taken, onDisk, err := s.take(facts, req, restart)
		if err != nil {
			return err
		}
		rec = taken
		return s.awaitDisk(rec.JobID, onDisk)
	})
	if err != nil {
		return err
	}
	err = whileFull("run_dir", func() error { return s.create(rec) })
	if isFull(err) { // the job comes again
		return errors.Join(err, s.drop(rec.JobID))
	}
	if err != nil {
		return err
	}
	log, card := s.log, rec.Placement.Cards[0]
	if rec.EngineWhy != "" {
		log = log.With("engine_why", rec.EngineWhy)
	}
	log.Info("granted", "job_id", rec.JobID, "uid", rec.UID, "user", rec.User, "cards", len(rec.Placement.Cards),
		"gpu_uuid", card.UUID, "share", card.Share, "cores", card.Cores, "memory", card.Memory,
		"mode", gpu.FormatMode(rec.Mode, rec.Ceiling), "engine", engineOfRecord(&rec))
	return nil
}

// slowWrite is how long one write of the ledger takes before gresd logs it.
const slowWrite = 5 * time.Second

// awaitDisk waits until a change of a job's record is durable. The job's Prolog or Epilog waits, too.
func (s *Server) awaitDisk(jobID uint32, onDisk ledger.Pending) error {
	began := time.Now()
	err := onDisk.Wait()
	if took := time.Since(began); took > s.slowWrite {
		s.log.Warn("the disk of state_dir is slow: jobs wait for it", "job_id", jobID, "took", took)
	}
	return err
}

// take finds the cards and reserves the share on them for this job. The record is on its way to
// the disk.
func (s *Server) take(facts slurm.JobFacts, req request.Request, restart uint32) (rec ledger.Record, onDisk ledger.Pending, err error) {
	inUse, mayTry := s.queue.Lock(facts.JobID)
	defer s.queue.Unlock()
	if !mayTry {
		return rec, onDisk, waitqueue.ErrEarlierJobFirst
	}
	placement, engine, err := s.place(facts, req, inUse)
	if err != nil {
		return rec, onDisk, err
	}
	if engine.engine != gpu.Time || req.Engine == gpu.Auto {
		req.Engine = engine.engine // also if it is the site's choice, which may change
	}
	rec = recordOf(facts, req, restart)
	rec.State, rec.Placement, rec.EngineWhy = ledger.Granted, placement, engine.why
	return rec, s.ledger.Begin(rec), nil
}

// recordOf returns the first record of a job from the facts of slurmctld.
func recordOf(facts slurm.JobFacts, req request.Request, restart uint32) ledger.Record {
	return ledger.Record{
		JobID: facts.JobID, UID: facts.UID, GID: facts.GID, User: facts.User,
		Account: facts.Account, Partition: facts.Partition,
		Request: req, Mode: req.Mode, Ceiling: req.Ceiling, Priority: req.Priority,
		Created: time.Now().UTC().Truncate(time.Microsecond), Restarts: int64(restart),
	}
}

// chosen is slurmctld's choice: shares of cards, or whole cards.
func chosen(facts slurm.JobFacts) []place.CardChoice {
	var cards []place.CardChoice
	for _, index := range slices.Sorted(maps.Keys(facts.Units)) {
		cards = append(cards, place.CardChoice{Index: index, Units: facts.Units[index]})
	}
	if len(cards) == 0 {
		for _, index := range facts.WholeCards {
			cards = append(cards, place.CardChoice{Index: index, Units: gpu.FullCard})
		}
	}
	return cards
}

// place checks slurmctld's choice, or makes our own, with the shares that are in use. The queue is locked.
func (s *Server) place(facts slurm.JobFacts, req request.Request, inUse place.InUse) (place.Placement, choice, error) {
	now := s.cards.Now()
	var d place.Decision
	var engine choice
	var err error
	if s.config.Get().Placement.By == config.PlacementGresd {
		cards, why := s.compatibleCards(facts, req, now.Cards)
		if d, err = s.chooseOf(facts.JobID, facts.CountedTypes, cards, inUse, req, now.Distances); why != nil {
			err = why
		}
		if err == nil {
			if err = withinCount(d.Placement, facts.Counted); err != nil {
				d.Refuse(place.BadRequest)
			}
		}
	} else {
		d, err = place.Check(now.Cards, inUse, req, chosen(facts))
	}
	if err == nil {
		if err = s.withinLimits(d.Placement, now.Cards); err != nil {
			d.Refuse(place.SiteLimit)
		}
	}
	if err == nil {
		if engine, err = s.checkEngine(facts, req, d.Placement); err != nil {
			d.Refuse(place.BadRequest)
		}
	}
	if err != nil {
		err = s.cards.WithSick(d, err)
	}
	s.decisions.put(decided{
		jobID: facts.JobID, uid: facts.UID, at: time.Now(), request: req, decision: d, engine: engine, err: err,
	})
	return d.Placement, engine, err
}

// chooseOf is [place.Choose] among the cards of some types; among all where no
// type is named. A node without such a card is a mistake of the request, or of
// Slurm's configuration, and no lack of room. It may be a card that cannot be read.
func (s *Server) chooseOf(jobID uint32, only []string, all []gpu.Card, inUse place.InUse, req request.Request, distances place.Distances) (place.Decision, error) {
	cards, others := ofTypes(all, only)
	d, err := s.queue.Choose(jobID, cards, inUse, req, distances)
	if len(cards) == 0 && len(others) > 0 && s.cards.Now().Err == nil {
		types := map[string]bool{}
		for _, c := range others {
			types[c.Type] = true
		}
		err = &request.Error{Option: "--gres=vgpu", Given: strings.Join(only, ","), Want: fmt.Sprintf(
			"want a type of card that this node has: %[1]s, for example --gres=vgpu:%[2]s:30; where slurm.conf calls its cards "+
				"otherwise, the administrator names them in vgpu.toml: type in [card.\"%[3]s\"]",
			strings.Join(slices.Sorted(maps.Keys(types)), ", "), others[0].Type, others[0].UUID)}
	}
	for _, v := range place.Given(others, inUse, place.Placement{}).Verdicts {
		if v.Reason == place.Fits {
			v.Reason = place.OtherType
		}
		d.Verdicts = append(d.Verdicts, v)
	}
	slices.SortFunc(d.Verdicts, func(a, b place.Verdict) int { return a.Index - b.Index })
	return d, err
}

func ofTypes(cards []gpu.Card, only []string) (of, others []gpu.Card) {
	for _, c := range cards {
		if len(only) == 0 || slices.Contains(only, c.Type) {
			of = append(of, c)
		} else {
			others = append(others, c)
		}
	}
	return of, others
}

// withinCount checks that slurmctld counts enough for our placement. With memory or cores above the
// share, it would count too little.
func withinCount(p place.Placement, counted gpu.Share) error {
	var sum gpu.Share
	for _, c := range p.Cards {
		sum += c.Share
	}
	if sum > counted {
		return &request.Error{Option: "--gres=vgpu", Given: fmt.Sprint(counted), Want: fmt.Sprintf(
			"the memory, cores or policy asked for need a share of %d; want --gres=vgpu:%d", sum, sum)}
	}
	return nil
}

func (s *Server) withinLimits(p place.Placement, cards []gpu.Card) error {
	limits := s.config.Get().RequestLimits()
	if err := request.CheckCards(len(p.Cards), limits); err != nil {
		return err
	}
	for _, c := range p.Cards {
		i := slices.IndexFunc(cards, func(card gpu.Card) bool { return card.UUID == c.UUID })
		grant := request.Grant{Units: c.Share, Cores: c.Cores, Memory: c.Memory}
		if err := grant.Check(limits, cards[i]); err != nil {
			return err
		}
	}
	return nil
}

// maxDecisions is how many jobs are remembered: a few days of a busy node, in
// about 2 MiB on one with eight cards.
const maxDecisions = 1000

// decided is one placement, or why there was none.
type decided struct {
	jobID, uid uint32
	at         time.Time
	request    request.Request
	decision   place.Decision
	engine     choice
	err        error
}

// decisions remembers the last one of each job, also of jobs that ended or went
// back into the queue. It is not durable: a grant is, its reasons need not be.
type decisions struct {
	mu    sync.Mutex
	byJob map[uint32]decided
}

func (d *decisions) put(made decided) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byJob == nil {
		d.byJob = map[uint32]decided{}
	}
	d.byJob[made.jobID] = made
	if len(d.byJob) > maxDecisions {
		oldest := made
		for id, other := range d.byJob {
			if id != made.jobID && (oldest.jobID == made.jobID || other.at.Before(oldest.at)) {
				oldest = other
			}
		}
		delete(d.byJob, oldest.jobID)
	}
}

func (d *decisions) get(jobID uint32) (decided, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	made, known := d.byJob[jobID]
	return made, known
}

// countCards tells the observer what was decided about each card.
func (s *Server) countCards(jobID uint32) {
	made, _ := s.decisions.get(jobID)
	for _, v := range made.decision.Verdicts {
		s.observer.CardDecided(string(v.Reason))
	}
}

// fullDiskTimeout is how long a job waits for space in a full run_dir or state_dir. gresd shrinks a
// cache file that fills run_dir within milliseconds.
const fullDiskTimeout = 2 * time.Second

// whileFull repeats do for up to fullDiskTimeout while the file system of dir is full. dir is the name of
// the key in vgpu.toml.
func whileFull(dir string, do func() error) error {
	for end := time.Now().Add(fullDiskTimeout); ; time.Sleep(fullDiskTimeout / 500) {
		err := do()
		switch {
		case !isFull(err):
			return err
		case time.Now().After(end):
			return noRoomIn(dir, err)
		}
	}
}

func noRoomIn(dir string, err error) error { return fmt.Errorf("%s has no room: %w", dir, err) }

// isFull reports whether err means that a file system is full. A user can fill run_dir and
// state_dir, so this must not be an error of the node: Slurm drains a node for such an error.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// faultOr returns a busy reply if a file system is full, and otherwise an error of the node.
func faultOr(err error, format string, args ...any) wire.Reply {
	if isFull(err) {
		return wire.BusyError(format, args...)
	}
	return wire.NodeError(format, args...)
}

// release serves the Epilog. A job that is not known is no error, nor is one of another cluster,
// which may have the number of one of ours. A gresd that was suspended can serve an Epilog after the
// Prolog of the job's next run: w.Order shows it. Slurm's run number does not: after a requeue, the
// Epilog has the number of the next run.
func (s *Server) release(w wire.Request) wire.Reply {
	jobID := w.JobID
	if s.node.IsForeign(w.Cluster) {
		return wire.Reply{OK: true, Result: wire.None}
	}
	defer s.jobLocks.lockAsked(jobID)()
	if !s.deciding.end(jobID, w.Order) {
		s.log.Info("not released: the job has started again", "job_id", jobID)
		return wire.Reply{OK: true, Result: wire.None}
	}
	_, known := s.ledger.Get(jobID)
	s.report.Ended(jobID)
	if err := s.drop(jobID); err != nil {
		return faultOr(err, "vgpu: release: job %d: %v", jobID, err)
	}
	if !known {
		return wire.Reply{OK: true, Result: wire.None}
	}
	s.log.Info("released the share", "job_id", jobID)
	return wire.Reply{OK: true, Result: wire.Released}
}

// drop takes back all that a job has. The caller has the job's lock.
func (s *Server) drop(jobID uint32) error {
	s.mps.Release(jobID)
	s.grants.Revoke(jobID)
	if err := s.awaitDisk(jobID, s.queue.Release(jobID)); err != nil {
		return fmt.Errorf("delete from ledger: %w", err)
	}
	_, err := s.grants.Remove(jobID)
	return err
}
