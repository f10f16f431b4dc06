// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// The decision about a job. A sign is an environment, a comment or an option that names a share.
// If gresd places, every job has a sign. gresd has no reply while it is busy.
//
//	gresd                      slurmctld      sign   decision
//	granted, refused, requeued any            any    exit 0
//	none                       any            any    exit 0, state no-share
//	user error                 any            any    exit 0, report
//	node error                 any            any    exit 1: Slurm drains the node
//	no reply                   not asked (1)  no     start
//	no reply                   no share (2)   any    start, state no-share
//	no reply                   lost shards    any    state lost, wait, requeue or refuse
//	no reply                   has a share    any    wait, requeue or refuse
//	no reply                   no reply       yes    requeue or refuse
//	no reply                   no reply       no     start without a card, state undecided
//
// (1) The job has no sign, and this Slurm drops no shards.
// (2) If gresd places and replies to pings, a job of whole cards waits for gresd first: other jobs
// can have shares of its cards.

// askSlurmctldAfter is the time that gresd has before the Prolog asks slurmctld, too.
const askSlurmctldAfter = 3 * time.Second

// decide asks gresd, and slurmctld if necessary, and returns the exit code of the Prolog.
func (h *Hook) decide(ctx context.Context, req wire.Request) int {
	began := time.Now()
	askCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	gresd := sync.OnceValue(func() answer { return h.ask(askCtx, req, h.namesShare()) })
	replied := make(chan struct{})
	go func() { gresd(); close(replied) }()
	select {
	case <-replied:
		if gresd().isFinal() {
			return h.conclude(req.JobID, gresd())
		}
		if !h.mayHaveShare() {
			return ExitOK
		}
	case <-time.After(h.askSlurmctldAfter):
	}

	facts, err := h.client().Job(ctx, req.JobID, h.text("SLURMD_NODENAME"))
	lost := facts.LostShares()
	switch {
	case err != nil:
		if a := gresd(); a.isFinal() {
			return h.conclude(req.JobID, a)
		} else if h.mustNotRunUnlimited() {
			return h.requeueOrRefuse(ctx, req.JobID, a.err, tasksRefused)
		} else if stateErr := h.setState(req.JobID, undecided); stateErr != nil {
			return h.requeueOrRefuse(ctx, req.JobID, stateErr, "its tasks see no card")
		} else {
			h.say("prolog: job %d: %s: %v; %v", req.JobID, startsWithoutCard, a.err, err)
		}
		return ExitOK

	case !lost && len(facts.Units) == 0 && facts.Counted == 0:
		if len(facts.WholeCards) > 0 && h.placedByGresd() && h.ping(ctx, h.askSlurmctldAfter) == nil && gresd().isFinal() {
			return h.conclude(req.JobID, gresd())
		}
		if h.namesShare() { // SLURM_JOB_GPUS also names whole cards
			h.say("prolog: job %d: gresd does not answer: the job has no share of a card, and starts", req.JobID)
		}
		if err := h.noteNoShare(req.JobID); err != nil && h.placedByGresd() { // its tasks would wait for gresd
			return h.requeueOrRefuse(ctx, req.JobID, err, tasksRefused)
		}
		return ExitOK
	}

	if lost {
		if err := h.setState(req.JobID, lostShards); err != nil {
			return h.requeueOrRefuse(ctx, req.JobID, err, tasksRefused)
		}
	}
	a := gresd()
	// The first question did not wait: gresd can have restarted while the job waited for room.
	if left := h.AnswerWait - time.Since(began); !a.isAnswer() && !h.namesShare() && left > 0 {
		h.AnswerWait = left
		h.setWithin(&req)
		a = h.ask(ctx, req, true)
	}
	if a.isFinal() {
		return h.conclude(req.JobID, a)
	}
	return h.requeueOrRefuse(ctx, req.JobID, a.err, tasksRefused)
}

// conclude returns the exit code for a decision of gresd.
func (h *Hook) conclude(job uint32, a answer) int {
	switch {
	case a.err != nil:
		h.say("prolog: job %d: %v", job, a.err)
		if a.kind() != wire.KindUser {
			return ExitFault
		}
	case a.reply.Result == wire.Refused, a.reply.Result == wire.Requeued:
		h.say("prolog: job %d: %s: %s", job, a.reply.Result, a.reply.Message)
	case a.reply.Result == wire.None && h.mayHaveShare():
		_ = h.noteNoShare(job)
	}
	return ExitOK
}

// noteNoShare writes the state of a job without a share, and logs an error. Without the state, the tasks
// of the job ask gresd.
func (h *Hook) noteNoShare(job uint32) error {
	err := h.setState(job, noShare)
	if err != nil {
		h.say("prolog: job %d: %v", job, err)
	}
	return err
}

// mayHaveShare reports whether the job must not start before gresd or slurmctld has answered.
func (h *Hook) mayHaveShare() bool { return h.mustNotRunUnlimited() || h.mayDropShards() }

// mustNotRunUnlimited reports whether the job has a sign.
func (h *Hook) mustNotRunUnlimited() bool { return h.namesShare() || h.placedByGresd() }

// startsWithoutCard is the log message for the state undecided.
const startsWithoutCard = "it is unknown whether the job has a share: it starts without a card"

// tasksRefused is the fate of the tasks of a job that cannot be requeued.
const tasksRefused = "its tasks are refused"

// requeueOrRefuse ends the Prolog of a job that must not run now. It returns 0, because Slurm drains
// the node of a Prolog that fails. A batch job goes back into the queue. The SPANK plugin or
// TaskProlog refuses the tasks of other jobs. For these, the log has the text otherwise.
func (h *Hook) requeueOrRefuse(ctx context.Context, job uint32, why error, otherwise string) int {
	if err := h.client().Requeue(ctx, job); err != nil {
		h.say("prolog: job %d: %v; %s: %v", job, why, otherwise, err)
	} else {
		h.say("prolog: job %d: %v; it is back in the queue", job, why)
	}
	return ExitOK
}

// slurmClient is the part of [slurm.Client] that a Prolog needs.
type slurmClient interface {
	Job(ctx context.Context, job uint32, node string) (slurm.JobFacts, error)
	Requeue(ctx context.Context, job uint32) error
}
