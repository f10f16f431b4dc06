// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/status"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Reconcile makes ledger, job folders and living jobs agree: what lives is
// adopted, what has ended is released, what belongs to nobody is removed. If
// slurmctld cannot be asked, nothing counts as ended; the error says so.
func (s *Server) Reconcile(ctx context.Context) error { return s.compare(ctx, askAll) }

func (s *Server) compare(ctx context.Context, whom asking) error {
	return errors.Join(s.mend(ctx, whom))
}

// mend returns errors of slurmctld and errors of this node separately.
func (s *Server) mend(ctx context.Context, whom asking) (asked, written error) {
	began := time.Now()
	about := map[uint32]time.Time{} // the records that the answer is about
	for _, rec := range s.ledger.List() {
		about[rec.JobID] = rec.Created
	}
	jobs := s.jobsHere(about)
	live, err := s.living(ctx, slices.Clone(jobs), whom)
	answered := live != nil
	if answered && whom == askAll {
		s.compared.Store(&began)
	}
	strays := s.strays(ctx, live)

	// One job after the other, each under its own lock: others go on meanwhile.
	errs := []error{s.grants.Sweep(s.lockQuietly)}
	if answered {
		errs = append(errs, s.releaseEnded(live, about))
	}
	for _, st := range strays {
		errs = append(errs, s.mendStray(st))
	}
	for _, rec := range s.ledger.List() {
		errs = append(errs, s.ensureOne(rec.JobID))
	}
	if answered {
		errs = append(errs, s.sweepPlain(jobs, live, began))
		s.reconcileWhole(ctx, live, began)
	}
	s.mu.Lock()
	recovers := s.lost && !s.recovering && answered
	s.recovering = s.recovering || recovers
	s.mu.Unlock()

	if recovers {
		unrecovered := s.recover(ctx)
		if unrecovered == nil {
			_ = os.Remove(s.cfg().Paths.Survivors()) // one that stays has the same asked once more
		}
		s.mu.Lock()
		s.lost, s.recovering = unrecovered != nil, false
		s.mu.Unlock()
		if unrecovered == nil {
			s.jobLocks.forgetAsked()
		}
		err = errors.Join(err, unrecovered)
	}
	return err, errors.Join(errs...)
}

// releaseEnded takes back the shares of jobs that do not live. asked are the records
// that live is about, and when they were made.
func (s *Server) releaseEnded(live map[uint32]bool, asked map[uint32]time.Time) error {
	var errs []error
	for jobID, created := range asked {
		if !live[jobID] {
			errs = append(errs, s.releaseIfOf(jobID, created))
		}
	}
	return errors.Join(errs...)
}

// releaseIfOf leaves a record that is younger than the question: it may be missing
// from the answer. Not told by the clock, which may have been set meanwhile.
func (s *Server) releaseIfOf(jobID uint32, created time.Time) error {
	defer s.lockQuietly(jobID)()
	rec, known := s.ledger.Get(jobID)
	if !known || !rec.Created.Equal(created) {
		return nil
	}
	s.log.Info("released: the job has ended", "job_id", jobID)
	s.observer.Corrected(string(status.Released))
	s.Report.Ended(jobID)
	return s.drop(jobID)
}

// findSurvivors notes the jobs that run while the ledger is lost, or finds those that an earlier gresd
// has noted and could not ask slurmctld about. Where the file cannot be written or read, those without
// a folder ask when their next task starts.
func (s *Server) findSurvivors() {
	path := s.cfg().Paths.Survivors()
	if s.lost {
		if s.survivors = slices.Sorted(slices.Values(s.steps.Jobs())); len(s.survivors) > 0 {
			_ = atomicfile.WriteJSON(path, s.survivors)
		}
		return
	}
	noted, err := atomicfile.ReadJSON[[]uint32](path, s.log)
	if err != nil {
		s.log.Warn("cannot read a file of gresd: it counts as empty", "path", path, "error", err)
	}
	running := s.steps.Living(noted)
	s.survivors = slices.DeleteFunc(noted, func(job uint32) bool { return !running[job] })
	s.lost = noted != nil
}

func (s *Server) isLost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// sweepPlain removes marks of jobs whose Epilog was lost: of those of jobs that do not live, where they
// were there at that time. The clock of files is not fine, and may have been set: one of a job that was
// not asked about is left in any case.
func (s *Server) sweepPlain(jobs []uint32, live map[uint32]bool, asked time.Time) error {
	marks, err := s.plainMarks()
	errs := []error{err}
	for id, mark := range marks {
		info, gone := mark.Info()
		if _, was := slices.BinarySearch(jobs, id); !was || live[id] || gone != nil || !info.ModTime().Before(asked) {
			continue
		}
		errs = append(errs, atomicfile.Remove(filepath.Join(s.cfg().Paths.Plain(), mark.Name())))
	}
	return errors.Join(errs...)
}

// stray is a job folder without a record.
type stray struct {
	jobID uint32
	rec   ledger.Record
	keep  bool // the job lives, or may live
}

// strays finds them and asks slurmctld who they are, without the lock.
func (s *Server) strays(ctx context.Context, live map[uint32]bool) []stray {
	ids, err := s.grants.Listed()
	if err != nil {
		return nil // Sweep meets the same error
	}
	var found []stray
	for _, id := range ids {
		if _, known := s.ledger.Get(id); known {
			continue
		}
		st := stray{jobID: id}
		spec, err := s.grants.ReadFile(id)
		if err == nil && (live[id] || live == nil) && !spec.Revoked && spec.JobID == id {
			st.rec, st.keep = s.recordOfGrant(ctx, grant.RecordOf(spec), live != nil), true
		}
		found = append(found, st)
	}
	return found
}

// recordOfGrant fills in what a grant file does not say.
func (s *Server) recordOfGrant(ctx context.Context, rec ledger.Record, ask bool) ledger.Record {
	rec.Request.Engine = cmp.Or(rec.Request.Engine, engineOfEnvironment(s.grants.ReadEnvironment(rec.JobID)))
	if rec.Request.Engine == gpu.Concurrent {
		// It may have been gresd's choice: those who come must be trusted then.
		rec.EngineWhy = "the ledger that said why was lost"
	}
	for i, c := range rec.Placement.Cards {
		if card, here := s.Cards.Of(c.UUID); here {
			rec.Placement.Cards[i].Index = card.Index
		}
	}
	if !ask {
		return rec
	}
	if facts, err := s.node.Facts(ctx, rec.JobID); err == nil {
		rec.User, rec.Account, rec.Partition = facts.User, facts.Account, facts.Partition
		rec.Restarts = int64(facts.Restarts)
	}
	return rec
}

// mendStray gives a stray that lives a record again, and removes another.
func (s *Server) mendStray(st stray) error {
	defer s.lockQuietly(st.jobID)()
	if _, known := s.ledger.Get(st.jobID); known {
		return nil // it got a record while we asked
	}
	if st.keep {
		s.log.Warn("record rebuilt from the grant of a living job", "job_id", st.jobID)
		s.observer.Corrected(string(status.Rebuilt))
		s.placing.Lock()
		onDisk := s.ledger.Begin(st.rec)
		s.placing.Unlock()
		return onDisk.Wait()
	}
	had, err := s.grants.Remove(st.jobID)
	if had { // else its Epilog came meanwhile
		s.log.Info("removed a job folder without a job", "job_id", st.jobID)
		s.observer.Corrected(string(status.Removed))
	}
	return err
}

func (s *Server) ensureOne(jobID uint32) error {
	defer s.lockQuietly(jobID)()
	rec, known := s.ledger.Get(jobID)
	if !known {
		return nil
	}
	return s.ensure(rec)
}

// ensure makes the files of a record exist and the grant be open. The job's lock
// is held.
func (s *Server) ensure(rec ledger.Record) error {
	s.keepMPS(rec)
	if rec.State == ledger.Refused {
		if s.grants.Refused(rec.JobID) != "" {
			return nil
		}
		return s.grants.Refuse(rec.JobID, rec.UID, rec.Reason)
	}
	if s.grants.Has(rec.JobID) {
		return nil
	}
	err := s.grants.Adopt(rec)
	if err == nil {
		s.log.Info("adopted", "job_id", rec.JobID)
		return nil
	}
	s.log.Warn("files of a job are made again", "job_id", rec.JobID, "error", err)
	s.observer.Corrected(string(status.Remade))
	return s.grants.Create(rec, s.contextCost)
}

// recover grants living jobs that have neither a record nor a folder, after
// both were lost. Their running processes keep what they had; their next
// processes get the grant. Nothing is refused or requeued here. Jobs without a
// process when gresd started are left out: they ask when their next task starts,
// with the options of their submit line. It returns an error if slurmctld or the
// driver did not answer.
func (s *Server) recover(ctx context.Context) error {
	if s.cfg().Placement.By == config.PlacementGresd {
		return nil // only the lost ledger knew their cards
	}
	if err := s.Cards.Unread(); err != nil {
		return err
	}
	var unclear error
	for _, id := range s.survivors {
		if _, known := s.ledger.Get(id); known {
			continue
		}
		facts, err := s.node.Facts(ctx, id)
		if err == nil {
			err = s.recoverOne(facts)
		}
		switch {
		case errors.Is(err, slurm.ErrSilent), err != nil && ctx.Err() != nil:
			return err
		case errors.Is(err, slurm.ErrUnavailable): // the next reconciliation tries this job again
			unclear = err
		case err != nil:
			s.log.Warn("a living job could not be recovered", "job_id", id, "error", err)
		}
	}
	return unclear
}

func (s *Server) recoverOne(facts slurm.JobFacts) error {
	defer s.lockQuietly(facts.JobID)()
	if _, known := s.ledger.Get(facts.JobID); known || s.jobLocks.wasAsked(facts.JobID) {
		return nil // what it has got, or given back, is no loss
	}
	req, wants, err := s.request(facts, wire.Options{})
	if err != nil || !wants {
		return err
	}
	// What its Prolog was told is lost: hold it by its shards.
	req.Clamp = true
	if err := s.allocate(facts, req, facts.Restarts); err != nil {
		return err
	}
	s.observer.Corrected(string(status.Recovered))
	s.log.Warn("a living job was recovered; options of its submit line are lost", "job_id", facts.JobID,
		"mode", gpu.FormatMode(req.Mode, req.Ceiling))
	return nil
}
