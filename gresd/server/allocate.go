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

// grant serves the Prolog of one job: request → place → ledger → grant.
func (s *Server) grant(ctx context.Context, w wire.Request) wire.Reply {
	ours, err := s.nodes.enter(w.Node, w.Conf, w.Cluster, func() bool { return s.Ledger.Len() > 0 })
	switch {
	case err != nil:
		return nodeError("vgpu: grant: job %d: %v", w.JobID, err)
	case !ours:
		return s.foreign(ctx, w)
	}
	defer s.nodes.leave()
	if rep, done := s.repeated(w); done {
		if err := s.awaitMPS(ctx, w.JobID); err != nil {
			return s.refuse(w, factsOf(w), fmt.Sprintf("vgpu: mps: job %d: %v", w.JobID, err))
		}
		return rep
	}

	if s.cfg().Placement.Mode == config.PlacementSlurm && len(w.GPUs) == 0 {
		return s.withoutCard(ctx, w)
	}
	facts, err := s.facts(ctx, w)
	switch {
	case err == nil:
	case errors.Is(err, slurm.ErrNoJob):
		return userError("vgpu: grant: job %d: slurmctld does not know this job", w.JobID)
	case errors.Is(err, slurm.ErrUnavailable):
		return busyError("vgpu: grant: job %d: ask slurmctld: %v", w.JobID, err)
	default:
		// What scontrol prints holds the user's own words, and no user may
		// drain a node with them.
		return s.refuse(w, factsOf(w), fmt.Sprintf("vgpu: request: job %d: %v", w.JobID, err))
	}
	if w.Node == "" {
		// A task of a job that was sent back can still be started, while slurmd
		// learns of it. The job holds nothing then, and looks like one without a share.
		if facts.State != "RUNNING" && facts.State != "SUSPENDED" {
			return userError("vgpu: grant: job %d: it is %s: want a running job", w.JobID, facts.State)
		}
		w.Restart = facts.Restarts // a task cannot know it yet
	}
	req, wants, err := s.request(facts, w.Options)
	if err != nil {
		return s.refuse(w, facts, fmt.Sprintf("vgpu: request: job %d: %v", w.JobID, err))
	}
	if !wants {
		if s.cfg().Placement.Mode == config.PlacementGresd {
			return s.grantWhole(ctx, w, facts)
		}
		return wire.Reply{OK: true, Result: wire.None}
	}

	if why, err := s.splitUnasked(ctx, w, facts, req); err != nil {
		return busyError("vgpu: grant: job %d: ask slurmctld: %v", w.JobID, err)
	} else if why != nil {
		return s.noRoom(ctx, w, facts, why)
	}

	s.Costs.Await(ctx) // a grant names what a context costs
	waited := s.waited(w.JobID)
	placed, err := s.findRoom(ctx, w, wanted{facts: facts, req: req, try: func() (string, error) { return s.allocateAlone(facts, req, w.Restart) }})
	s.countCards(facts.JobID)
	if err != nil {
		if errors.Is(err, errSick) {
			s.foundNoRoom(wanted{facts: facts, req: req})
		}
		return s.notPlaced(ctx, w, facts, err)
	}
	s.unqueue(ctx, w, facts)
	if err := s.awaitMPS(ctx, w.JobID); err != nil {
		return s.refuse(w, facts, fmt.Sprintf("vgpu: mps: job %d: %v", w.JobID, err))
	}
	if waited > 0 {
		s.tell(ctx, w, fmt.Sprintf("vgpu: place: found a card after it was sent back %s", count(waited)))
	}
	return wire.Reply{OK: true, Result: wire.Granted, JobDir: placed}
}

// notPlaced answers for a job that got no card, and why.
func (s *Server) notPlaced(ctx context.Context, w wire.Request, facts slurm.JobFacts, why error) wire.Reply {
	switch {
	case errors.Is(why, errNoTurn):
		return busyError("vgpu: place: job %d: %v", w.JobID, why)
	case errors.Is(why, errLeft):
		s.leaveLine(w.JobID)
		return userError("vgpu: place: job %d: %v", w.JobID, why)
	case errors.Is(why, place.ErrNoRoom), errors.Is(why, errSick):
		return s.noRoom(ctx, w, facts, why)
	case isMistake(why):
		return s.refuse(w, facts, fmt.Sprintf("vgpu: place: job %d: %v", w.JobID, why))
	}
	return nodeError("vgpu: grant: job %d: %v", w.JobID, why)
}

func (s *Server) allocateAlone(facts slurm.JobFacts, req request.Request, restart uint32) (dir string, err error) {
	defer s.lockJob(facts.JobID)()
	return s.allocate(facts, req, restart)
}

// allocate finds the cards, makes the decision durable and then visible. The
// place of the files is returned. The job's lock is held.
func (s *Server) allocate(facts slurm.JobFacts, req request.Request, restart uint32) (dir string, err error) {
	if err := s.drop(facts.JobID); err != nil { // an earlier run of the same job
		return "", err
	}
	rec, onDisk, err := s.take(facts, req, restart)
	if err != nil {
		return "", err
	}
	if err := onDisk.Wait(); err != nil {
		return "", fmt.Errorf("commit to ledger: %w", err)
	}
	placement := rec.Placement
	if err := whileFull(func() error { return s.Grants.Create(rec, s.contextCost) }); err != nil {
		return "", err
	}
	s.leaveLine(rec.JobID)
	s.keepMPS(rec)
	s.Log.Info("granted", "job_id", rec.JobID, "uid", rec.UID, "user", rec.User, "cards", len(placement.Cards),
		"gpu_uuid", placement.Cards[0].UUID, "share", placement.Cards[0].Share, "cores", placement.Cards[0].Cores,
		"memory", placement.Cards[0].Memory, "mode", gpu.FormatMode(rec.Mode, rec.Ceiling),
		"engine", s.engineOf(req, len(placement.Cards), placement.Cards[0].UUID))
	return s.Grants.Dir(rec.JobID), nil
}

// roomWait is how long a full run_dir may stay full. A user who fills it through a
// cache file must not drain the node: gresd takes that back within milliseconds.
const roomWait = 2 * time.Second

// whileFull does something again while run_dir has no room for it.
func whileFull(do func() error) error {
	for end := time.Now().Add(roomWait); ; time.Sleep(roomWait / 500) {
		err := do()
		if !errors.Is(err, unix.ENOSPC) || time.Now().After(end) {
			return err
		}
	}
}

// take finds the cards and takes the share of them, so that nobody else gets it.
// The record is on its way to the disk.
func (s *Server) take(facts slurm.JobFacts, req request.Request, restart uint32) (rec ledger.Record, onDisk ledger.Pending, err error) {
	s.placing.Lock()
	defer s.placing.Unlock()
	placement, err := s.place(facts, req)
	if err != nil {
		return rec, onDisk, err
	}
	if s.engineOf(req, len(placement.Cards), placement.Cards[0].UUID) == gpu.MPS {
		req.Engine = gpu.MPS // also where it is the site's choice, which may change
	}
	rec = recordOf(facts, req, restart)
	rec.State, rec.Placement = ledger.Granted, placement
	return rec, s.Ledger.Begin(rec), nil
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
		// slurmd hands every component the options of the first one; what Lua
		// wrote into the comment is the component's own.
		words = comment.Merge(nil)
	}
	if _, known := words["share"]; !known && s.cfg().Placement.Mode == config.PlacementGresd {
		words["share"] = fmt.Sprint(facts.Counted)
	}
	if s.cfg().Placement.Mode == config.PlacementGresd {
		words = words.SplitByDefault(s.cfg().RequestDefaults())
	}
	if req, err = request.Parse(words); err != nil {
		return req, true, err
	}
	req.Clamp = facts.Het()
	req = req.WithDefaults(s.cfg().RequestDefaults())
	return req, true, req.Check(s.cfg().RequestLimits())
}

// holdsShare says whether slurmctld gave the job shards of this node (or, where
// gresd chooses the card, a count of gres/vgpu). Whole cards are ours only when
// they were asked for as vgpu:100·k: Lua then leaves its word in the comment.
func (s *Server) holdsShare(facts slurm.JobFacts, word bool) bool {
	if s.cfg().Placement.Mode == config.PlacementGresd {
		return facts.Counted > 0
	}
	return len(facts.Units) > 0 || (word && len(facts.WholeCards) > 0)
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

// place runs slurmctld's choice, or our own, against what is in use.
func (s *Server) place(facts slurm.JobFacts, req request.Request) (place.Placement, error) {
	hw, inUse := s.cards.Load(), s.inUse()
	var d place.Decision
	var err error
	if s.cfg().Placement.Mode == config.PlacementGresd {
		cards, why := s.companions(facts, req, hw.cards)
		if d, err = s.chooseOf(facts.JobID, facts.CountedTypes, cards, inUse, req, hw.distances); why != nil {
			err = why
		}
		if err == nil {
			if err = withinCount(d.Placement, facts.Counted); err != nil {
				d.Refuse(place.BadRequest)
			}
		}
	} else {
		d, err = place.Check(hw.cards, inUse, req, chosen(facts))
	}
	if err == nil {
		if err = s.withinLimits(d.Placement, hw.cards); err != nil {
			d.Refuse(place.SiteLimit)
		}
	}
	if err == nil {
		if err = s.checkEngine(facts, req, d.Placement); err != nil {
			d.Refuse(place.BadRequest)
		}
	}
	err = s.withSick(d, err)
	s.decisions.put(decided{
		jobID: facts.JobID, uid: facts.UID, at: time.Now(), request: req, decision: d, err: err,
	})
	return d.Placement, err
}

// withinCount holds a placement of ours against what slurmctld counts: memory
// or cores above the share would make it count too little.
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

// facts asks slurmctld until it answers or the time is up: it may be starting.
func (s *Server) facts(ctx context.Context, w wire.Request) (slurm.JobFacts, error) {
	ask := func() (slurm.JobFacts, error) { return s.Slurm(w.Conf).Job(ctx, w.JobID, w.Node) }
	if w.Node == "" { // a task asks, which Slurm does not tell the name of its node
		ask = func() (slurm.JobFacts, error) {
			facts, _, err := s.factsOfLive(ctx, w.JobID)
			return facts, err
		}
	}
	var facts slurm.JobFacts
	err := untilAnswered(ctx, func() (err error) {
		facts, err = ask()
		return err
	})
	return facts, err
}

// requeue tries until slurmctld has taken it or the time is up: a batch job that
// stays where it has no card would fail.
func (s *Server) requeue(ctx context.Context, w wire.Request) error {
	client := s.Slurm(w.Conf)
	return untilAnswered(ctx, func() error {
		err := client.Requeue(ctx, w.JobID)
		if !errors.Is(err, slurm.ErrUnavailable) {
			return err
		}
		// Taken, and then the answer was lost.
		if facts, unknown := client.Job(ctx, w.JobID, w.Node); unknown == nil && facts.State == "PENDING" {
			return nil
		}
		return err
	})
}

// untilAnswered asks slurmctld, which may be starting, until it answers or the
// time is up: less and less often, for many nodes may wait for it. Commands that are not
// there do not come by waiting.
func untilAnswered(ctx context.Context, ask func() error) error {
	for wait := 500 * time.Millisecond; ; wait = min(2*wait, 8*time.Second) {
		err := ask()
		if !errors.Is(err, slurm.ErrUnavailable) || errors.Is(err, slurm.ErrNoCommand) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(around(wait)):
		}
	}
}

// repeated answers a Prolog that comes again for the same run of a job.
func (s *Server) repeated(w wire.Request) (wire.Reply, bool) {
	defer s.lockJob(w.JobID)()
	rec, known := s.Ledger.Get(w.JobID)
	if !known || !s.sameRun(rec, w) {
		return wire.Reply{}, false
	}
	err := whileFull(func() error { return s.ensure(rec) })
	if err == nil && rec.Restarts == ledger.UnknownRun {
		rec.Restarts = int64(w.Restart)
		err = s.Ledger.Commit(rec)
	}
	if err != nil {
		return nodeError("vgpu: grant: job %d: %v", w.JobID, err), true
	}
	if rec.State == ledger.Refused {
		return wire.Reply{OK: true, Result: wire.Refused, Message: rec.Reason, JobDir: s.Grants.Dir(w.JobID)}, true
	}
	return wire.Reply{OK: true, Result: wire.Granted, JobDir: s.Grants.Dir(w.JobID)}, true
}

// sameRun says whether a record is of this run of the job, and not of one
// before a requeue whose Epilog was lost.
func (s *Server) sameRun(rec ledger.Record, w wire.Request) bool {
	switch {
	case rec.UID != w.UID:
		return false
	case rec.Restarts != ledger.UnknownRun:
		return rec.Restarts == int64(w.Restart)
	case w.Restart == 0:
		return true
	}
	// A grant that some process uses is of this run; one that nobody uses can be
	// made again.
	view, err := s.Grants.Cache(w.JobID, 0)
	return err == nil && slices.ContainsFunc(view.Slots, isAlive)
}

// noRoom requeues a batch job, whose turn comes again. Others cannot be
// requeued: their task fails with the message.
func (s *Server) noRoom(ctx context.Context, w wire.Request, facts slurm.JobFacts, why error) wire.Reply {
	message := fmt.Sprintf("vgpu: place: job %d: %v", w.JobID, why)
	if facts.Batch {
		// Before the requeue: Slurm changes no job that is on its way out.
		times := s.sentBack(w.JobID)
		if times != "" {
			s.tell(ctx, w, fmt.Sprintf("%s (%s)", message, times))
		}
		err := s.requeue(ctx, w)
		if err == nil {
			s.Log.Warn("requeued", "job_id", w.JobID, "restarts", w.Restart, "error", why)
			if times == "" {
				s.tell(ctx, w, message)
			}
			if errors.Is(why, errSick) {
				s.putOffJob(ctx, w)
			}
			return wire.Reply{OK: true, Result: wire.Requeued, Message: message}
		}
		s.leaveLine(w.JobID) // it is refused, and will not come again
		s.Log.Warn("requeue", "job_id", w.JobID, "error", err)
	}
	return s.refuse(w, facts, message)
}

// refuse records why, for the plugin to say when the job's task starts.
func (s *Server) refuse(w wire.Request, facts slurm.JobFacts, reason string) wire.Reply {
	defer s.lockJob(w.JobID)()
	rec := recordOf(facts, request.Request{}, w.Restart)
	rec.State, rec.Reason = ledger.Refused, reason
	err := s.drop(rec.JobID)
	if err == nil {
		err = s.Ledger.Commit(rec)
	}
	if err == nil {
		err = whileFull(func() error { return s.Grants.Refuse(rec.JobID, rec.UID, reason) })
	}
	if err != nil {
		return nodeError("vgpu: grant: job %d: %v", w.JobID, err)
	}
	s.Log.Info("refused", "job_id", rec.JobID, "uid", rec.UID, "user", rec.User, "reason", reason)
	return wire.Reply{OK: true, Result: wire.Refused, Message: reason, JobDir: s.Grants.Dir(rec.JobID)}
}

// release serves the Epilog. A job that is not known is no error, nor is one of another cluster,
// which may have the number of one of ours.
func (s *Server) release(w wire.Request) wire.Reply {
	jobID := w.JobID
	if s.nodes.isForeign(w.Cluster) {
		return wire.Reply{OK: true, Result: wire.None}
	}
	defer s.lockJob(jobID)()
	_, known := s.Ledger.Get(jobID)
	s.room.end(jobID, true)
	if s.whole.forget(jobID) {
		s.room.changed()
	}
	s.noteUsage(jobID)
	if err := s.drop(jobID); err != nil {
		return nodeError("vgpu: release: job %d: %v", jobID, err)
	}
	if !known {
		return wire.Reply{OK: true, Result: wire.None}
	}
	s.Log.Info("released", "job_id", jobID)
	return wire.Reply{OK: true, Result: wire.Released}
}

// drop takes back everything of a job, whose lock is held.
func (s *Server) drop(jobID uint32) error {
	s.mps.Release(jobID)
	s.Grants.Revoke(jobID)
	held, err := s.Ledger.Delete(jobID)
	if err != nil {
		return fmt.Errorf("delete from ledger: %w", err)
	}
	if held {
		s.room.changed()
	}
	_, err = s.Grants.Remove(jobID)
	return err
}

// isMistake says whether an error is about the request, and not about the node.
func isMistake(err error) bool {
	var mistake *request.Error
	return errors.As(err, &mistake) || errors.Is(err, place.ErrNoCard)
}
