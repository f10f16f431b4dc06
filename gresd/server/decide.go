// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// grant serves the Prolog of one job. decide takes the job's share in the ledger and makes its
// files, or says why not; settle does what follows in Slurm, and answers.
func (s *Server) grant(ctx context.Context, w wire.Request) wire.Reply {
	ours, err := s.node.Enter(w.Node, w.Conf, w.Cluster, func() bool { return s.ledger.Len() > 0 })
	switch {
	case err != nil:
		return faultOr(err, "vgpu: grant: job %d: %v", w.JobID, err)
	case !ours:
		return s.settle(ctx, s.decideForeign(ctx, w))
	}
	defer s.node.Leave()
	return s.settle(ctx, s.decide(ctx, w))
}

// verdict says what is to be done about a job.
type verdict int

const (
	toReply    verdict = iota // nothing: it is told the reply
	placed                    // it has its cards, and is told the reply
	refused                   // its tasks fail with the reason
	sentBack                  // it goes back into the queue, or is refused where it cannot
	turnedAway                // it goes back into the queue of another cluster, and nothing is recorded
)

// outcome is what was decided for a job whose Prolog asks.
type outcome struct {
	verdict verdict
	job     wire.Request
	facts   slurm.JobFacts
	reply   wire.Reply    // of toReply and placed
	reason  string        // of all others, in words for the user
	why     error         // of sentBack
	again   bool          // of placed: it had its cards before
	waited  time.Duration // of placed: for room
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
	if reply, done := s.repeated(w); done {
		return outcome{verdict: placed, job: w, facts: factsOf(w), reply: reply, again: true}
	}
	byUs := s.cfg().Placement.By == config.PlacementGresd
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
	if why, err := s.splitUnasked(ctx, w, facts, req); err != nil {
		return answer(wire.BusyError("vgpu: grant: job %d: ask slurmctld: %v", w.JobID, err))
	} else if why != nil {
		return sendBack(w, facts, why)
	}

	if err := s.awaitCards(ctx); err != nil {
		return answer(wire.BusyError("vgpu: place: job %d: %v", w.JobID, err))
	}
	s.costs.Await(ctx) // a grant names what a context costs
	times := s.room.Times(w.JobID)
	want := wanted{facts: facts, req: req, try: func() error { return s.allocateAlone(ctx, facts, req, w.Restart) }}
	waited, err := s.findRoom(ctx, w, want)
	s.countCards(facts.JobID)
	if err != nil {
		if errors.Is(err, cards.ErrSick) {
			s.foundNoRoom(want)
		}
		return s.notPlaced(w, facts, err)
	}
	reply := wire.Reply{OK: true, Result: wire.Granted}
	return outcome{verdict: placed, job: w, facts: facts, reply: reply, waited: waited, times: times}
}

// unknown is for a job about which slurmctld was asked in vain.
func unknown(w wire.Request, err error) outcome {
	switch {
	case errors.Is(err, slurm.ErrNoJob):
		return answer(wire.UserError("vgpu: grant: job %d: slurmctld does not know this job", w.JobID))
	case errors.Is(err, slurm.ErrUnavailable):
		return answer(wire.BusyError("vgpu: grant: job %d: ask slurmctld: %v", w.JobID, err))
	}
	// What scontrol prints holds the user's own words, and no user may drain a node with them.
	return refuse(w, factsOf(w), "vgpu: request: job %d: %v", w.JobID, err)
}

// notPlaced is for a job that got no card, and why.
func (s *Server) notPlaced(w wire.Request, facts slurm.JobFacts, why error) outcome {
	switch {
	case errors.Is(why, errNoTurn), errors.Is(why, cards.ErrUnread):
		return answer(wire.BusyError("vgpu: place: job %d: %v", w.JobID, why))
	case errors.Is(why, errLeft):
		if !s.room.Has(w.JobID) { // a second Prolog of the job waits
			s.room.LeaveLine(w.JobID)
		}
		return answer(wire.UserError("vgpu: place: job %d: %v", w.JobID, why))
	case errors.Is(why, place.ErrNoRoom), errors.Is(why, cards.ErrSick), isFull(why):
		return sendBack(w, facts, why)
	case isMistake(why):
		return refuse(w, facts, "vgpu: place: job %d: %v", w.JobID, why)
	}
	return answer(wire.NodeError("vgpu: grant: job %d: %v", w.JobID, why))
}

// isMistake says whether an error is about the request, and not about the node.
func isMistake(err error) bool {
	var mistake *request.Error
	return errors.As(err, &mistake) || errors.Is(err, place.ErrNoCard) && !errors.Is(err, cards.ErrSick)
}

// facts asks slurmctld until it answers or the time is up: it may be starting.
func (s *Server) facts(ctx context.Context, w wire.Request) (slurm.JobFacts, error) {
	ask := func() (slurm.JobFacts, error) { return s.node.Slurm(w.Conf).Job(ctx, w.JobID, w.Node) }
	if w.Node == "" { // a task asks: Slurm does not tell it the name of its node
		ask = func() (slurm.JobFacts, error) { return s.node.Facts(ctx, w.JobID) }
	}
	var facts slurm.JobFacts
	err := node.UntilAnswered(ctx, func() (err error) {
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
		// slurmd hands every component the options of the first one; what Lua
		// wrote into the comment is the component's own.
		words = comment.Merge(nil)
	} else if !facts.Batch || facts.Several() {
		// The options may be those of a step; Lua wrote the job's own into the comment.
		words = comment.Merge(words)
	}
	if _, known := words["share"]; !known && s.cfg().Placement.By == config.PlacementGresd {
		words["share"] = fmt.Sprint(facts.Counted)
	}
	req, err = s.read(words, facts.Het())
	return req, true, err
}

// read reads a request, with what the site says of all. clamp: see [request.Request].
func (s *Server) read(words request.Options, clamp bool) (request.Request, error) {
	defaults := s.cfg().RequestDefaults()
	if s.cfg().Placement.By == config.PlacementGresd {
		words = words.SplitByDefault(defaults)
	}
	req, err := request.Parse(words)
	if err != nil {
		return req, err
	}
	req.Clamp = clamp
	req = req.WithDefaults(defaults)
	return req, req.Check(s.cfg().RequestLimits())
}

// holdsShare says whether slurmctld gave the job shards of this node (or, where
// gresd chooses the card, a count of gres/vgpu). Whole cards are ours only when
// they were asked for as vgpu:100·k: Lua then leaves its word in the comment.
func (s *Server) holdsShare(facts slurm.JobFacts, word bool) bool {
	if s.cfg().Placement.By == config.PlacementGresd {
		return facts.Counted > 0
	}
	return len(facts.Units) > 0 || (word && len(facts.WholeCards) > 0)
}
