// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waitqueue"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// grant serves the Prolog of one job. decide records the job's share in the ledger and makes its
// files, or returns the reason against a share. settle then changes the job in Slurm and replies.
func (s *Server) grant(ctx context.Context, w wire.Request) wire.Reply {
	start := time.Now()
	ctx, done := s.deciding.begin(ctx, w.JobID, w.Order)
	defer done()
	var o outcome
	ours, err := s.node.Enter(w.Node, w.Conf, w.Cluster, func() bool { return s.ledger.Len() > 0 })
	switch {
	case err != nil:
		o = answer(faultOr(err, "vgpu: grant: job %d: %v", w.JobID, err))
	case ours:
		defer s.node.Leave()
		o = s.decide(ctx, w)
	default:
		o = s.decideForeign(ctx, w)
	}
	rep := s.settle(ctx, o)
	result := string(rep.Result)
	if !rep.OK {
		result = "error"
	}
	s.observer.GrantTook(time.Since(start) - o.waited) // a wait for room is no fault of gresd
	s.observer.Placed(result)
	return rep
}

// verdict is the next step for a job.
type verdict int

const (
	toReply    verdict = iota // only reply
	placed                    // the job has its cards: reply
	refused                   // its tasks fail with the reason
	sentBack                  // it goes back into the queue, or is refused where it cannot
	turnedAway                // it goes back into the queue of another cluster, and nothing is recorded
)

// outcome is the decision for a job and the reply to its Prolog.
type outcome struct {
	verdict verdict
	job     wire.Request
	facts   slurm.JobFacts
	reply   wire.Reply    // of toReply and placed
	reason  string        // of all others, in words for the user
	why     error         // of sentBack
	again   bool          // of placed: it had its cards before
	waited  time.Duration // for room
	times   uint32        // of placed: that it was sent back before
}

func answer(reply wire.Reply) outcome { return outcome{verdict: toReply, reply: reply} }

func none() outcome { return answer(wire.Reply{OK: true, Result: wire.None}) }

func refuse(w wire.Request, facts slurm.JobFacts, format string, args ...any) outcome {
	return outcome{verdict: refused, job: w, facts: facts, reason: fmt.Sprintf(format, args...)}
}

func sendBack(w wire.Request, facts slurm.JobFacts, why error) outcome {
	return outcome{
		verdict: sentBack, job: w, facts: facts, why: why,
		reason: fmt.Sprintf("vgpu: place: job %d: %v", w.JobID, why),
	}
}

// decide is request → place → ledger → grant. It asks Slurm, and changes nothing there.
func (s *Server) decide(ctx context.Context, w wire.Request) outcome {
	unlock := s.jobLocks.lockAsked(w.JobID)
	reply, done := s.recordedReply(w) // the Prolog comes again for the same run of the job
	unlock()
	if done {
		return outcome{verdict: placed, job: w, facts: factsOf(w), reply: reply, again: true}
	}
	byUs := s.config.Get().Placement.By == config.PlacementGresd
	if !byUs && len(w.GPUs) == 0 {
		return s.decideWithoutCard(ctx, w)
	}
	facts, err := s.facts(ctx, w)
	if err != nil {
		return unknown(w, err)
	}
	if w.Node == "" {
		// A task of a job that was sent back can still be started, while slurmd
		// learns of it. The job holds nothing then, and looks like one without a share.
		if facts.State != "RUNNING" && facts.State != "SUSPENDED" {
			return answer(wire.UserError("vgpu: grant: job %d: it is %s: want a running job", w.JobID, facts.State))
		}
		w.Restart = facts.Restarts // a task cannot know it yet
	}
	req, wants, err := s.request(facts, w.Options)
	switch {
	case err != nil:
		return refuse(w, facts, "vgpu: request: job %d: %v", w.JobID, err)
	case !wants && facts.LostShares():
		return s.decideLost(ctx, w, facts, nil)
	case !wants && byUs:
		return s.decideWhole(ctx, w, facts)
	case !wants:
		return none()
	}
	if len(facts.Units) > 1 {
		if why, err := s.splitUnasked(ctx, w, facts, req); err != nil {
			return answer(wire.BusyError("vgpu: grant: job %d: ask slurmctld: %v", w.JobID, err))
		} else if why != nil {
			return sendBack(w, facts, why)
		}
	}

	if err := s.cards.Await(ctx); err != nil {
		return answer(wire.BusyError("vgpu: place: job %d: %v", w.JobID, err))
	}
	s.costs.Await(ctx) // a grant names what a context costs
	want := waitqueue.Request{
		JobID: w.JobID, Share: req, Requeues: facts.Batch,
		Try: func() error { return s.allocateAlone(ctx, facts, req, w.Restart) },
	}
	times := s.queue.RequeueCount(w.JobID) // before this attempt, which may wait and so count as failed
	waited, err := s.findRoom(ctx, w, facts, want)
	s.countCards(facts.JobID)
	if err != nil {
		if errors.Is(err, cards.ErrSick) {
			s.queue.RecordNoRoom(want)
		}
		return s.notPlaced(w, facts, err, waited)
	}
	s.queue.Remove(w.JobID)
	reply = wire.Reply{OK: true, Result: wire.Granted}
	return outcome{verdict: placed, job: w, facts: facts, reply: reply, waited: waited, times: times}
}

// recordedReply returns the decision about this run of a job. The caller has the job's lock.
func (s *Server) recordedReply(w wire.Request) (wire.Reply, bool) {
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
	// A grant with a process is of this run, and another grant can be made again.
	view, err := s.grants.Cache(w.JobID, 0)
	return err == nil && slices.ContainsFunc(view.Slots, func(slot libvgpu.SlotView) bool { return slot.Alive })
}

// facts asks slurmctld until it answers or the time is up: it may be starting.
func (s *Server) facts(ctx context.Context, w wire.Request) (facts slurm.JobFacts, err error) {
	ask := func() (slurm.JobFacts, error) { return s.node.Slurm(w.Conf).Job(ctx, w.JobID, w.Node) }
	if w.Node == "" { // from a task, which does not know the name of its node
		ask = func() (slurm.JobFacts, error) { return s.node.Facts(ctx, w.JobID) }
	}
	err = node.UntilAnswered(ctx, func() (err error) {
		facts, err = ask()
		return err
	})
	return facts, err
}

// request puts the user's words together and reads them. wants is false for a
// job that has no share on this node.
func (s *Server) request(facts slurm.JobFacts, given wire.Options) (req request.Request, wants bool, err error) {
	comment, err := request.ParseComment(facts.Comment)
	if !s.holdsShare(facts, err != nil || len(comment) > 0) {
		return req, false, nil
	}
	if err != nil {
		return req, true, err
	}
	words := optionsOf(given).Merge(comment)
	if facts.Het() && len(comment) > 0 {
		// slurmd passes the options of the first component to all components. The comment has the
		// component's own options, because job_submit.lua wrote them.
		words = comment.Merge(nil)
	} else if !facts.Batch || facts.Several() {
		// The options can belong to a step. The comment has the options of the job.
		words = comment.Merge(words)
	}
	if _, known := words["share"]; !known && s.config.Get().Placement.By == config.PlacementGresd {
		words["share"] = fmt.Sprint(facts.Counted)
	}
	req, err = s.read(words, facts.Het())
	return req, true, err
}

// optionsOf drops the options that were not given.
func optionsOf(o wire.Options) request.Options {
	options := request.Options{}
	text, _ := json.Marshal(o)
	_ = json.Unmarshal(text, &options) // both have the names of options
	return options
}

// read parses a request and adds the defaults of the site. clamp: see [request.Request].
func (s *Server) read(words request.Options, clamp bool) (request.Request, error) {
	defaults := s.config.Get().RequestDefaults()
	if s.config.Get().Placement.By == config.PlacementGresd {
		words = words.SplitByDefault(defaults)
	}
	req, err := request.Parse(words)
	if err != nil {
		return req, err
	}
	req.Clamp = clamp
	req = req.WithDefaults(defaults)
	return req, req.Check(s.config.Get().RequestLimits())
}

// holdsShare reports whether slurmctld gave the job shards of this node. If gresd chooses the card, a
// count of gres/vgpu is a share, too. Whole cards are a share only if the user requested vgpu:100·k. In
// that case job_submit.lua has written the request into the comment.
func (s *Server) holdsShare(facts slurm.JobFacts, word bool) bool {
	if s.config.Get().Placement.By == config.PlacementGresd {
		return facts.Counted > 0
	}
	return len(facts.Units) > 0 || (word && len(facts.WholeCards) > 0)
}

// factsOf returns the facts from the Prolog's request, for a job whose record from slurmctld is
// unreadable. They are enough to refuse the job, but not to grant it a share.
func factsOf(w wire.Request) slurm.JobFacts {
	return slurm.JobFacts{
		JobID: w.JobID, UID: w.UID, GID: w.GID, User: w.User, Account: w.Account, Partition: w.Partition,
	}
}

// compareLife is how long a comparison with slurmctld's jobs is good for jobs that may not wait.
// Each comparison asks about all jobs. The Prologs of other jobs wait for it.
const compareLife = 5 * time.Second

// statesThatWait are the states of a job whose Prolog may still wait for room.
var statesThatWait = []string{"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"}

// findRoom takes the cards of a job. It returns how long the job has waited for them.
func (s *Server) findRoom(ctx context.Context, w wire.Request, facts slurm.JobFacts, want waitqueue.Request) (waited time.Duration, err error) {
	limit := s.maxQueueWait(ctx, w, facts)
	if limit <= 0 {
		if err = want.Try(); errors.Is(err, place.ErrNoRoom) {
			s.queue.RecordNoRoom(want)
			// A job may have ended without its Epilog.
			if s.comparedSince(ctx, time.Now().Add(-s.compareLife)) == nil {
				err = want.Try()
			}
		}
		return 0, err
	}
	began := time.Now()
	err = s.queue.Wait(ctx, want, limit, func() bool {
		now, err := s.node.Slurm(w.Conf).Job(ctx, w.JobID, w.Node)
		go func() { _ = s.comparedSince(ctx, time.Now().Add(-waitqueue.PollEvery)) }()
		return errors.Is(err, slurm.ErrNoJob) || err == nil && !slices.Contains(statesThatWait, now.State)
	})
	return time.Since(began), err
}

// interactiveWait is the longest wait of a job that cannot be requeued: srun gives up after 20 s.
const interactiveWait = 10 * time.Second

// maxQueueWait is how long a job may wait for room on this node; 0: not at all. Jobs do not wait if
// slurmctld chooses the cards, and tasks do not wait. The rest of the time is for the requeue.
func (s *Server) maxQueueWait(ctx context.Context, w wire.Request, facts slurm.JobFacts) time.Duration {
	limit := s.config.Get().Placement.Wait()
	if s.config.Get().Placement.By != config.PlacementGresd || limit == 0 || w.Node == "" {
		return 0
	}
	// If Prologs and Epilogs run one at a time, no job could end while one waits.
	if settings, err := s.node.Settings(ctx, w.Conf); err != nil || settings.SerialProlog {
		return 0
	}
	if !facts.Batch {
		limit = min(limit, interactiveWait)
	}
	if facts.TimeLimit > 0 {
		limit = min(limit, facts.TimeLimit/2) // which goes on meanwhile
	}
	if until, bounded := ctx.Deadline(); bounded {
		left := time.Until(until)
		limit = min(limit, left-max(3*time.Second, left/7))
	}
	return limit
}

// decideWhole decides about a job with whole cards on a node whose shares gresd places.
func (s *Server) decideWhole(ctx context.Context, w wire.Request, facts slurm.JobFacts) outcome {
	cards := s.cards.At(facts.WholeCards)
	if len(cards) == 0 {
		s.queue.SetWholeCards(w.JobID, facts.WholeCards)
		return none()
	}
	waited, err := s.findRoom(ctx, w, facts, waitqueue.Request{
		JobID: w.JobID, WholeCards: cards, Requeues: facts.Batch,
		Try: func() error { return s.queue.TakeWholeCards(ctx, w.JobID, facts.WholeCards) },
	})
	if err != nil {
		return s.notPlaced(w, facts, err, waited)
	}
	return outcome{verdict: placed, job: w, facts: facts, reply: wire.Reply{OK: true, Result: wire.None}, waited: waited}
}

// unknown is the outcome if slurmctld did not answer about a job.
func unknown(w wire.Request, err error) outcome {
	switch {
	case errors.Is(err, slurm.ErrNoJob):
		return answer(wire.UserError("vgpu: grant: job %d: slurmctld does not know this job", w.JobID))
	case errors.Is(err, slurm.ErrUnavailable):
		return answer(wire.BusyError("vgpu: grant: job %d: ask slurmctld: %v", w.JobID, err))
	}
	// The output of scontrol contains text of the user, and a user must not drain a node.
	return refuse(w, factsOf(w), "vgpu: request: job %d: %v", w.JobID, err)
}

// notPlaced is for a job that got no card, and why.
func (s *Server) notPlaced(w wire.Request, facts slurm.JobFacts, why error, waited time.Duration) (o outcome) {
	defer func() { o.waited = waited }()
	var mistake *request.Error
	switch {
	case errors.Is(why, waitqueue.ErrStopping), errors.Is(why, cards.ErrUnread):
		return answer(wire.BusyError("vgpu: place: job %d: %v", w.JobID, why))
	case errors.Is(why, waitqueue.ErrJobEnded):
		if !s.queue.IsWaiting(w.JobID) { // a second Prolog of the job waits
			s.queue.Remove(w.JobID)
		}
		return answer(wire.UserError("vgpu: place: job %d: %v", w.JobID, why))
	case errors.Is(why, place.ErrNoRoom), errors.Is(why, cards.ErrSick), isFull(why):
		return sendBack(w, facts, why)
	case errors.As(why, &mistake), errors.Is(why, place.ErrNoCard): // the request is at fault, and not the node
		return refuse(w, facts, "vgpu: place: job %d: %v", w.JobID, why)
	}
	return answer(wire.NodeError("vgpu: grant: job %d: %v", w.JobID, why))
}

// jobLocks order the work on the record and the folder of each job. Work on other jobs
// goes on meanwhile, and shares its writes to the disk.
type jobLocks struct {
	mu    sync.Mutex
	byJob map[uint32]*jobLock
	asked map[uint32]bool // jobs whose Prolog or Epilog came while the ledger was being rebuilt; nil: it is not
}

type jobLock struct {
	sync.Mutex
	users int // goroutines that have the lock or wait for it
}

func (l *jobLocks) lock(jobID uint32) (unlock func()) {
	l.mu.Lock()
	own := l.byJob[jobID]
	if own == nil {
		own = &jobLock{}
		l.byJob[jobID] = own
	}
	own.users++
	l.mu.Unlock()
	own.Lock()
	return func() {
		own.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(l.byJob, jobID)
		}
	}
}

// lockAsked is lock for a request about the job.
func (l *jobLocks) lockAsked(jobID uint32) (unlock func()) {
	l.mu.Lock()
	if l.asked != nil {
		l.asked[jobID] = true
	}
	l.mu.Unlock()
	return l.lock(jobID)
}

// wasAsked reports whether this gresd has had a request about a job. Call it with the job's lock.
func (l *jobLocks) wasAsked(jobID uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked[jobID]
}

// deciding holds the open requests for shares. If a job ends during its request, the request is
// canceled and leaves no record and no file.
type deciding struct {
	mu   sync.Mutex
	jobs map[uint32][]*context.CancelCauseFunc
	// latest is the order of each job's last grant ([wire.Request.Order]), until the job's release.
	latest map[uint32]uint64
}

// begin is for a request of the job; [waitqueue.HasEnded] says of ctx whether the job has ended.
func (d *deciding) begin(ctx context.Context, jobID uint32, order uint64) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	if order > d.latest[jobID] {
		d.latest[jobID] = order
	}
	d.jobs[jobID] = append(d.jobs[jobID], &cancel)
	return ctx, func() {
		cancel(nil)
		d.mu.Lock()
		defer d.mu.Unlock()
		left := slices.DeleteFunc(d.jobs[jobID], func(c *context.CancelCauseFunc) bool { return c == &cancel })
		if d.jobs[jobID] = left; len(left) == 0 {
			delete(d.jobs, jobID)
		}
	}
}

// end ends the requests of the job. It returns false if a later grant has come: that grant is of the
// job's next run, or of a second Prolog. Call end with the job's lock held.
func (d *deciding) end(jobID uint32, order uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if order > 0 && order < d.latest[jobID] {
		return false
	}
	delete(d.latest, jobID)
	for _, cancel := range d.jobs[jobID] {
		(*cancel)(waitqueue.ErrJobEnded)
	}
	return true
}
