// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/status"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waitqueue"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// firstWithin is how soon after the start the first is that asks slurmctld: all nodes may have
// been started at once.
const firstWithin = 20 * time.Second

// compareScope selects the jobs without a slurmstepd that gresd asks slurmctld about.
type compareScope int

const (
	unrecorded compareScope = iota // those without a record
	due                            // those whose time has come
	all
)

// Steps knows jobs by their slurmstepd on this host ([stepd.Steps]).
type Steps interface {
	Living(jobs []uint32) map[uint32]bool
	Jobs() []uint32
}

// plainMarks returns the state files of the Prolog (config.Paths.JobStates).
func (s *Server) plainMarks() (map[uint32]os.DirEntry, error) {
	entries, err := os.ReadDir(s.config.Get().Paths.JobStates())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	marks := map[uint32]os.DirEntry{}
	for _, entry := range entries {
		if id, err := strconv.ParseUint(entry.Name(), 10, 32); err == nil {
			marks[uint32(id)] = entry
		}
	}
	return marks, err
}

// livingJobs returns the jobs that hold resources of this node: the job has a slurmstepd here, or
// slurmctld confirms it. A job that gresd does not ask about now counts as living. A job without a clear
// answer counts as living, too, and the error has the answer. If slurmctld is silent, the map is nil.
func (s *Server) livingJobs(ctx context.Context, jobs []uint32, whom compareScope) (map[uint32]bool, error) {
	live := s.steps.Living(jobs)
	silent := slices.DeleteFunc(jobs, func(job uint32) bool { return live[job] })
	s.pace.Keep(silent)
	if len(s.node.All()) == 0 && (len(silent) != 0 || s.isLost()) {
		return nil, node.ErrNoName
	}
	var skipped error // the first one
	for _, job := range silent {
		_, recorded := s.ledger.Get(job)
		if whom == unrecorded && recorded || whom == due && !s.pace.IsDue(job, time.Now()) {
			live[job] = true
			continue
		}
		facts, err := s.node.Lives(ctx, job)
		switch {
		case err == nil:
			live[job] = true
		case errors.Is(err, slurm.ErrSilent), ctx.Err() != nil:
			return nil, fmt.Errorf("ask about job %d: %w", job, err)
		case errors.Is(err, slurm.ErrUnavailable):
			live[job] = true
			if skipped == nil {
				skipped = fmt.Errorf("ask about job %d: %w", job, err)
			}
			continue
		case !errors.Is(err, slurm.ErrNoJob):
			live[job] = true // an unreadable record does not end a job
		}
		if facts.State != slurm.Completing { // a job that ends is soon gone: gresd asks about it each time
			s.pace.Answered(job, time.Now())
		}
		s.log.Debug("asked slurmctld about a job without a process here", "job_id", job, "state", facts.State, "error", err)
	}
	return live, skipped
}

// reconcile is Reconcile about some jobs, with the result for administrators. The first one is about all
// if the ledger is lost.
func (s *Server) reconcile(ctx context.Context, whom compareScope) {
	start := time.Now()
	if whom == unrecorded && s.isLost() {
		whom = all
	}
	asked, written := s.mend(ctx, whom)
	newNode := errors.Is(asked, node.ErrNoName) && s.ledger.Len() == 0
	s.observer.Reconciled(time.Since(start), asked == nil || newNode)
	if ctx.Err() != nil {
		return
	}
	if newNode {
		s.log.Debug("nothing to compare with slurmctld yet", "error", asked)
		asked = nil
	} else if asked != nil {
		s.log.Warn("jobs could not be compared with slurmctld: all grants are kept", "error", asked)
	}
	s.uncompared.note(asked)
	if s.unwritten.note(written); written != nil {
		s.log.Warn("cannot write records or folders of jobs", "error", written)
	}
}

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
	folders, err := s.grants.Sweep(s.jobLocks.lock)
	marks, err2 := s.plainMarks()
	errs := []error{err, err2}
	// The jobs that something on this host is kept for: records, folders, marks, whole cards.
	jobs := slices.Concat(slices.Collect(maps.Keys(about)), folders, slices.Collect(maps.Keys(marks)), s.queue.JobIDs())
	slices.Sort(jobs)
	jobs = slices.Compact(jobs)
	live, asked := s.livingJobs(ctx, slices.Clone(jobs), whom)
	answered := live != nil
	if answered && whom == all {
		s.compared.Store(&began)
	}
	// One job after the other, each under its own lock: others go on meanwhile.
	for _, id := range folders {
		if _, recorded := s.ledger.Get(id); !recorded {
			errs = append(errs, s.repairUnrecorded(ctx, id, live))
		}
	}
	for id, created := range about {
		if answered && !live[id] {
			errs = append(errs, s.releaseIfSameRecord(id, created))
		}
	}
	for _, rec := range s.ledger.List() {
		errs = append(errs, s.ensureOne(rec.JobID))
	}
	if answered {
		errs = append(errs, s.sweepPlain(marks, live, began))
		s.reconcileWhole(ctx, live, began)
	}
	if answered && s.recovering.TryLock() {
		defer s.recovering.Unlock()
		if s.isLost() {
			asked = errors.Join(asked, s.recover(ctx))
		}
	}
	return asked, errors.Join(errs...)
}

func (s *Server) isLost() bool {
	s.jobLocks.mu.Lock()
	defer s.jobLocks.mu.Unlock()
	return s.jobLocks.asked != nil
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
func (s *Server) findRunning(lost bool) {
	path := s.config.Get().Paths.Survivors()
	if lost {
		if s.runningAtStart = slices.Sorted(slices.Values(s.steps.Jobs())); len(s.runningAtStart) > 0 {
			_ = atomicfile.WriteJSON(path, s.runningAtStart)
		}
	} else {
		noted, err := atomicfile.ReadJSON[[]uint32](path, s.log)
		if err != nil {
			s.log.Warn("cannot read a file of gresd: it counts as empty", "path", path, "error", err)
		}
		running := s.steps.Living(noted)
		s.runningAtStart = slices.DeleteFunc(noted, func(job uint32) bool { return !running[job] })
		lost = noted != nil
	}
	if lost {
		s.jobLocks.asked = map[uint32]bool{}
	}
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
	if s.config.Get().Placement.By != config.PlacementGresd {
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
// were there at that time. The clock of files is not fine, and may have been set.
func (s *Server) sweepPlain(marks map[uint32]os.DirEntry, live map[uint32]bool, asked time.Time) error {
	var errs []error
	for id, mark := range marks {
		if info, err := mark.Info(); !live[id] && err == nil && info.ModTime().Before(asked) {
			errs = append(errs, atomicfile.Remove(filepath.Join(s.config.Get().Paths.JobStates(), mark.Name())))
		}
	}
	return errors.Join(errs...)
}

// repairUnrecorded gives the folder of a living job a record again, and removes another folder. live
// are the living jobs; nil: not known, and then all jobs count as living.
func (s *Server) repairUnrecorded(ctx context.Context, id uint32, live map[uint32]bool) error {
	var rec ledger.Record
	spec, err := s.grants.ReadFile(id)
	keep := err == nil && (live[id] || live == nil) && !spec.Revoked && spec.JobID == id
	if keep {
		rec = s.recordOfGrant(ctx, grant.RecordOf(spec), live != nil)
	}
	defer s.jobLocks.lock(id)()
	if _, known := s.ledger.Get(id); known {
		return nil // it got a record while we asked
	}
	if keep {
		s.log.Warn("record rebuilt from the grant of a living job", "job_id", id)
		s.observer.Corrected(string(status.Rebuilt))
		s.queue.Lock(id)
		onDisk := s.ledger.Begin(rec)
		s.queue.Unlock()
		return onDisk.Wait()
	}
	had, err := s.grants.Remove(id)
	if had { // else its Epilog came meanwhile
		s.log.Info("removed a job folder without a job", "job_id", id)
		s.observer.Corrected(string(status.Removed))
	}
	return err
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
	if rec.State == ledger.Refused {
		if s.grants.Refused(rec.JobID) != "" {
			return nil
		}
		return s.grants.Refuse(rec.JobID, rec.UID, rec.Reason)
	}
	s.startEngine(rec)
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
	return s.create(rec)
}

// recover grants living jobs that have neither a record nor a folder, after
// both were lost. Their running processes keep what they had; their next
// processes get the grant. Nothing is refused or requeued here. Jobs without a
// process when gresd started are left out: they ask when their next task starts,
// with the options of their submit line. It returns an error if slurmctld or the
// driver did not answer.
func (s *Server) recover(ctx context.Context) error {
	running := s.runningAtStart
	if s.config.Get().Placement.By == config.PlacementGresd {
		running = nil // only the lost ledger knew their cards
	} else if err := s.cards.Unread(); err != nil {
		return err
	}
	var unclear error
	for _, id := range running {
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
	if unclear == nil {
		_ = os.Remove(s.config.Get().Paths.Survivors()) // a file that stays only repeats the questions
		s.jobLocks.mu.Lock()
		s.jobLocks.asked = nil
		s.jobLocks.mu.Unlock()
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
	if err := s.allocate(facts, req, facts.Restarts, false); err != nil {
		return err
	}
	s.observer.Corrected(string(status.Recovered))
	s.log.Warn("recovered a running job without a record", "job_id", facts.JobID,
		"mode", gpu.FormatMode(req.Mode, req.Ceiling), "lost", "options that are not in its comment")
	return nil
}

// failures counts reconciliations in a row that failed for one reason.
type failures struct {
	mu  sync.Mutex
	n   int
	why error
}

// manyFailed is from how many on it is a problem: slurmctld may restart.
const manyFailed = 3

// note takes the result of one.
func (f *failures) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.why = err; err == nil {
		f.n = 0
	} else {
		f.n++
	}
}

// problem returns the text for an administrator, which has the number and the error, if there is one.
func (f *failures) problem(text string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n < manyFailed {
		return nil
	}
	return []string{fmt.Sprintf(text, f.n, f.why)}
}

// problems returns the problems of comparisons, for an administrator.
func (s *Server) problems() []string {
	return slices.Concat(
		s.uncompared.problem("jobs could not be compared with slurmctld %d times: shares of jobs whose Epilog was lost stay taken: "+
			"scontrol ping on this node, journalctl -u gresd: %v"),
		s.unwritten.problem("records or folders of jobs could not be written %d times: shares of jobs that have ended may stay taken: "+
			"df on run_dir and state_dir, journalctl -u gresd: %v"))
}
