// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/status"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waitqueue"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Reconcile makes ledger, job folders and living jobs agree: what lives is
// adopted, what has ended is released, what belongs to nobody is removed. If
// slurmctld cannot be asked, nothing counts as ended; the error says so.
func (s *Server) Reconcile(ctx context.Context) error { return errors.Join(s.mend(ctx, all)) }

// mend returns errors of slurmctld and errors of this node separately.
func (s *Server) mend(ctx context.Context, whom compareScope) (asked, written error) {
	began := time.Now()
	about := map[uint32]time.Time{} // the records that the answer is about
	for _, rec := range s.ledger.List() {
		about[rec.JobID] = rec.Created
	}
	jobs := s.jobsHere(about)
	live, err := s.livingJobs(ctx, slices.Clone(jobs), whom)
	answered := live != nil
	if answered && whom == all {
		s.compared.Store(&began)
	}
	strays := s.unrecordedFolders(ctx, live)

	// One job after the other, each under its own lock: others go on meanwhile.
	errs := []error{s.grants.Sweep(s.jobLocks.lock)}
	if answered {
		errs = append(errs, s.releaseEnded(live, about))
	}
	for _, st := range strays {
		errs = append(errs, s.repairUnrecorded(st))
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
			errs = append(errs, s.releaseIfSameRecord(jobID, created))
		}
	}
	return errors.Join(errs...)
}

// releaseIfSameRecord leaves a record that is younger than the question: it may be missing
// from the answer. Not told by the clock, which may have been set meanwhile.
func (s *Server) releaseIfSameRecord(jobID uint32, created time.Time) error {
	defer s.jobLocks.lock(jobID)()
	rec, known := s.ledger.Get(jobID)
	if !known || !rec.Created.Equal(created) {
		return nil
	}
	s.log.Info("released: the job has ended", "job_id", jobID)
	s.observer.Corrected(string(status.Released))
	s.report.Ended(jobID)
	return s.drop(jobID)
}

// findRunning notes the jobs that run while the ledger is lost, or finds those that an earlier gresd
// has noted and could not ask slurmctld about. Where the file cannot be written or read, those without
// a folder ask when their next task starts.
func (s *Server) findRunning() {
	path := s.cfg().Paths.Survivors()
	if s.lost {
		if s.runningAtStart = slices.Sorted(slices.Values(s.steps.Jobs())); len(s.runningAtStart) > 0 {
			_ = atomicfile.WriteJSON(path, s.runningAtStart)
		}
		return
	}
	noted, err := atomicfile.ReadJSON[[]uint32](path, s.log)
	if err != nil {
		s.log.Warn("cannot read a file of gresd: it counts as empty", "path", path, "error", err)
	}
	running := s.steps.Living(noted)
	s.runningAtStart = slices.DeleteFunc(noted, func(job uint32) bool { return !running[job] })
	s.lost = noted != nil
}

// comparedSince has jobs compared with slurmctld's, unless they have been since a time. Many may want
// it at once, and each comparison asks about each job.
func (s *Server) comparedSince(ctx context.Context, since time.Time) error {
	select {
	case s.comparing <- struct{}{}:
		defer func() { <-s.comparing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.compared.Load().After(since) {
		return nil
	}
	return s.Reconcile(ctx)
}

// reconcileWhole forgets jobs that have ended, and learns of those that were started while gresd
// was away: they have a process here. live are the jobs that live, as asked for at some time.
func (s *Server) reconcileWhole(ctx context.Context, live map[uint32]bool, at time.Time) {
	s.queue.RemoveEnded(live, at)
	if s.cfg().Placement.By != config.PlacementGresd {
		return
	}
	for _, id := range s.steps.Jobs() {
		if _, recorded := s.ledger.Get(id); !recorded && !s.queue.IsKnown(id) {
			s.learnWhole(ctx, id)
		}
	}
}

func (s *Server) learnWhole(ctx context.Context, id uint32) {
	ctx, done := s.deciding.begin(ctx, id, 0)
	defer done()
	facts, err := s.node.Facts(ctx, id)
	if err != nil || facts.Counted > 0 {
		return // its Prolog says it
	}
	if err := s.queue.TakeWholeCards(ctx, id, facts.WholeCards); err != nil && !errors.Is(err, waitqueue.ErrJobEnded) {
		s.log.Warn("found a whole-card job on a shared card", "job_id", id)
		s.queue.SetWholeCards(id, facts.WholeCards)
	}
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
		errs = append(errs, atomicfile.Remove(filepath.Join(s.cfg().Paths.JobStates(), mark.Name())))
	}
	return errors.Join(errs...)
}

// unrecordedFolder is a job folder without a record.
type unrecordedFolder struct {
	jobID uint32
	rec   ledger.Record
	keep  bool // the job lives, or may live
}

// strays finds them and asks slurmctld who they are, without the lock.
func (s *Server) unrecordedFolders(ctx context.Context, live map[uint32]bool) []unrecordedFolder {
	ids, err := s.grants.Listed()
	if err != nil {
		return nil // Sweep meets the same error
	}
	var found []unrecordedFolder
	for _, id := range ids {
		if _, known := s.ledger.Get(id); known {
			continue
		}
		st := unrecordedFolder{jobID: id}
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
		if card, here := s.cards.Of(c.UUID); here {
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

// repairUnrecorded gives the folder of a living job a record again, and removes another folder.
func (s *Server) repairUnrecorded(st unrecordedFolder) error {
	defer s.jobLocks.lock(st.jobID)()
	if _, known := s.ledger.Get(st.jobID); known {
		return nil // it got a record while we asked
	}
	if st.keep {
		s.log.Warn("record rebuilt from the grant of a living job", "job_id", st.jobID)
		s.observer.Corrected(string(status.Rebuilt))
		s.queue.Lock()
		onDisk := s.ledger.Begin(st.rec)
		s.queue.Unlock()
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
	defer s.jobLocks.lock(jobID)()
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
		s.log.Info("adopted the grant", "job_id", rec.JobID)
		return nil
	}
	s.log.Warn("recreating the grant files", "job_id", rec.JobID, "error", err)
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
	if err := s.cards.Unread(); err != nil {
		return err
	}
	var unclear error
	for _, id := range s.runningAtStart {
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
	defer s.jobLocks.lock(facts.JobID)()
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
	s.log.Warn("recovered a running job without a record", "job_id", facts.JobID,
		"mode", gpu.FormatMode(req.Mode, req.Ceiling), "lost", "options that are not in its comment")
	return nil
}

// unreconciled counts reconciliations in a row that failed for one reason. text is for an
// administrator. It takes their number and the error.
type unreconciled struct {
	text string

	mu     sync.Mutex
	failed int
	why    error
}

// manyFailed is from how many on it is a problem: slurmctld may restart.
const manyFailed = 3

// note takes the result of one. Nothing to compare is no failure.
func (u *unreconciled) note(err error, nothing bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil || nothing {
		u.failed, u.why = 0, nil
		return
	}
	u.failed++
	u.why = err
}

// problems returns the problems of comparisons, for an administrator.
func (s *Server) problems() []string {
	return slices.Concat(s.unreconciled.problems(), s.unwritten.problems())
}

func (u *unreconciled) problems() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failed < manyFailed {
		return nil
	}
	return []string{fmt.Sprintf(u.text, u.failed, u.why)}
}

const (
	noAnswer = "jobs could not be compared with slurmctld %d times: shares of jobs whose Epilog was lost stay taken: " +
		"scontrol ping on this node, journalctl -u gresd: %v"
	notWritten = "records or folders of jobs could not be written %d times: shares of jobs that have ended may stay taken: " +
		"df on run_dir and state_dir, journalctl -u gresd: %v"
)
