// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// allocateAlone calls allocate, unless this run of the job has a grant already. All tasks of a job
// without a Prolog ask at once. The first task has bound its grant by then.
func (s *Server) allocateAlone(ctx context.Context, facts slurm.JobFacts, req request.Request, restart uint32) error {
	defer s.lockJob(facts.JobID)()
	if isOver(ctx) {
		return errLeft
	}
	rec, known := s.ledger.Get(facts.JobID)
	if known && rec.State == ledger.Granted && s.sameRun(rec, wire.Request{JobID: rec.JobID, UID: facts.UID, Restart: restart}) {
		return whileFull("run_dir", func() error { return s.ensure(rec) })
	}
	return s.allocate(facts, req, restart)
}

// allocate finds the cards, and makes the decision durable and then visible. The caller has the
// job's lock.
func (s *Server) allocate(facts slurm.JobFacts, req request.Request, restart uint32) error {
	var rec ledger.Record
	err := whileFull("state_dir", func() error {
		if err := s.drop(facts.JobID); err != nil { // an earlier run of the same job
			return err
		}
		taken, onDisk, err := s.take(facts, req, restart)
		if err != nil {
			return err
		}
		rec = taken
		return onDisk.Wait()
	})
	if err != nil {
		return err
	}
	placement := rec.Placement
	err = whileFull("run_dir", func() error { return s.grants.Create(rec, s.contextCost) })
	if isFull(err) { // the job comes again
		return errors.Join(err, s.drop(rec.JobID))
	}
	if err != nil {
		return err
	}
	s.room.LeaveLine(rec.JobID)
	s.keepMPS(rec)
	log := s.log
	if rec.EngineWhy != "" {
		log = log.With("engine_why", rec.EngineWhy)
	}
	log.Info("granted", "job_id", rec.JobID, "uid", rec.UID, "user", rec.User, "cards", len(placement.Cards),
		"gpu_uuid", placement.Cards[0].UUID, "share", placement.Cards[0].Share, "cores", placement.Cards[0].Cores,
		"memory", placement.Cards[0].Memory, "mode", gpu.FormatMode(rec.Mode, rec.Ceiling),
		"engine", engineOfRecord(&rec))
	return nil
}

// roomWait is how long a job waits for room in a full run_dir or state_dir. gresd shrinks a cache
// file that fills run_dir within milliseconds.
const roomWait = 2 * time.Second

// whileFull repeats do for up to roomWait while the file system of dir is full. dir is the name of
// the key in vgpu.toml.
func whileFull(dir string, do func() error) error {
	for end := time.Now().Add(roomWait); ; time.Sleep(roomWait / 500) {
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

// take finds the cards and reserves the share on them for this job. The record is on its way to
// the disk.
func (s *Server) take(facts slurm.JobFacts, req request.Request, restart uint32) (rec ledger.Record, onDisk ledger.Pending, err error) {
	s.placing.Lock()
	defer s.placing.Unlock()
	if !s.room.InTurn(facts.JobID) {
		return rec, onDisk, errNotItsTurn
	}
	placement, engine, err := s.place(facts, req)
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

// place checks slurmctld's choice, or makes our own, with the shares that are in use.
func (s *Server) place(facts slurm.JobFacts, req request.Request) (place.Placement, choice, error) {
	now, inUse := s.Cards.Now(), s.inUse()
	var d place.Decision
	var engine choice
	var err error
	if s.cfg().Placement.By == config.PlacementGresd {
		cards, why := s.companions(facts, req, now.Cards)
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
	err = s.Cards.WithSick(d, err)
	s.decisions.put(decided{
		jobID: facts.JobID, uid: facts.UID, at: time.Now(), request: req, decision: d, engine: engine, err: err,
	})
	return d.Placement, engine, err
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
	limits := s.cfg().RequestLimits()
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

// repeated answers a Prolog that comes again for the same run of a job.
func (s *Server) repeated(w wire.Request) (wire.Reply, bool) {
	defer s.lockJob(w.JobID)()
	return s.known(w)
}

// known returns the decision about this run of a job. The caller has the job's lock.
func (s *Server) known(w wire.Request) (wire.Reply, bool) {
	rec, known := s.ledger.Get(w.JobID)
	if !known || !s.sameRun(rec, w) {
		return wire.Reply{}, false
	}
	err := whileFull("run_dir", func() error { return s.ensure(rec) })
	if err == nil && rec.Restarts == ledger.UnknownRun {
		rec.Restarts = int64(w.Restart)
		err = whileFull("state_dir", func() error { return s.ledger.Commit(rec) })
	}
	if err != nil {
		return faultOr(err, "vgpu: grant: job %d: %v", w.JobID, err), true
	}
	if rec.State == ledger.Refused {
		return wire.Reply{OK: true, Result: wire.Refused, Message: rec.Reason}, true
	}
	return wire.Reply{OK: true, Result: wire.Granted}, true
}

// sameRun reports whether a record is of this run of the job. If the Epilog before a requeue was lost,
// the record is of an earlier run.
func (s *Server) sameRun(rec ledger.Record, w wire.Request) bool {
	switch {
	case rec.UID != w.UID:
		return false
	case rec.Restarts != ledger.UnknownRun:
		return rec.Restarts == int64(w.Restart)
	case w.Restart == 0:
		return true
	}
	// A grant that a process uses is of this run. A grant without processes can be made again.
	view, err := s.grants.Cache(w.JobID, 0)
	return err == nil && slices.ContainsFunc(view.Slots, isAlive)
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
	defer s.lockJob(jobID)()
	if !s.deciding.end(jobID, w.Order) {
		s.log.Info("not released: the job has started again", "job_id", jobID)
		return wire.Reply{OK: true, Result: wire.None}
	}
	_, known := s.ledger.Get(jobID)
	s.room.End(jobID, true)
	s.placing.Lock()
	if s.Whole.Forget(jobID) {
		s.room.Changed()
	}
	s.placing.Unlock()
	s.Report.Ended(jobID)
	if err := s.drop(jobID); err != nil {
		return faultOr(err, "vgpu: release: job %d: %v", jobID, err)
	}
	if !known {
		return wire.Reply{OK: true, Result: wire.None}
	}
	s.log.Info("released", "job_id", jobID)
	return wire.Reply{OK: true, Result: wire.Released}
}

// drop takes back all that a job has. The caller has the job's lock.
func (s *Server) drop(jobID uint32) error {
	s.mps.Release(jobID)
	s.grants.Revoke(jobID)
	s.placing.Lock()
	held, onDisk := s.ledger.BeginDelete(jobID)
	if held {
		s.room.Changed()
	}
	s.placing.Unlock()
	if err := onDisk.Wait(); err != nil {
		return fmt.Errorf("delete from ledger: %w", err)
	}
	_, err := s.grants.Remove(jobID)
	return err
}
