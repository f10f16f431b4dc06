// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waitqueue"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// settle does what follows from a decision, and answers the Prolog.
func (s *Server) settle(ctx context.Context, o outcome) wire.Reply {
	switch o.verdict {
	case placed:
		return s.start(ctx, o)
	case sentBack:
		return s.sendBack(ctx, o)
	case turnedAway:
		return s.turnAway(ctx, o)
	case refused:
		return s.refuse(ctx, o, o.reason)
	}
	return o.reply
}

// start lets a job begin that has its cards.
func (s *Server) start(ctx context.Context, o outcome) wire.Reply {
	w := o.job
	if !o.again {
		s.giveTimeBack(ctx, o)
		s.outbox.Started(ctx, w.Conf, w.JobID, o.facts.Explained)
	}
	if err := s.awaitMPS(ctx, w.JobID); isStopped(ctx) && err != nil {
		return wire.BusyError("vgpu: mps: job %d: %v", w.JobID, err)
	} else if isFull(err) {
		return s.sendBackPlaced(ctx, o, err)
	} else if err != nil {
		return s.refuse(ctx, o, fmt.Sprintf("vgpu: mps: job %d: %v", w.JobID, err))
	}
	if o.times > 0 {
		s.outbox.Explain(ctx, w.Conf, w.JobID, fmt.Sprintf("vgpu: place: found a card after it was sent back %s", waitqueue.Count(o.times)))
	}
	return o.reply
}

// shortWait is what a job may wait for without a word to slurmctld.
const shortWait = 10 * time.Second

// giveTimeBack makes up for the wait of a job, which Slurm counts as a part of its time limit. A limit
// that somebody has set meanwhile stays.
func (s *Server) giveTimeBack(ctx context.Context, o outcome) {
	if o.waited < shortWait || o.facts.TimeLimit == 0 {
		return
	}
	client := s.node.Slurm(o.job.Conf)
	now, err := client.Brief(ctx, o.job.JobID, o.job.Node)
	if err == nil && now.TimeLimit == o.facts.TimeLimit {
		err = client.Extend(ctx, o.job.JobID, o.facts.TimeLimit+o.waited)
	}
	if err != nil {
		s.log.Warn("cannot extend the job's time limit", "job_id", o.job.JobID, "error", err)
	}
}

// sendBack requeues a batch job, whose turn comes again. Others cannot be
// requeued: their task fails with the message.
func (s *Server) sendBack(ctx context.Context, o outcome) wire.Reply {
	w := o.job
	if o.facts.Batch {
		// Before the requeue: Slurm changes no job that is on its way out.
		times := s.queue.RequeueMessage(w.JobID)
		if times != "" {
			s.outbox.Explain(ctx, w.Conf, w.JobID, fmt.Sprintf("%s (%s)", o.reason, times))
		}
		err := s.requeue(ctx, w)
		if err == nil {
			s.log.Info("requeued the job", "job_id", w.JobID, "restarts", w.Restart, "error", o.why)
			if times == "" {
				s.outbox.Explain(ctx, w.Conf, w.JobID, o.reason)
			}
			if errors.Is(o.why, cards.ErrSick) {
				s.outbox.PutOff(ctx, w.Conf, w.JobID, w.Restart)
			}
			return wire.Reply{OK: true, Result: wire.Requeued, Message: o.reason}
		}
		if isStopped(ctx) {
			return wire.BusyError("vgpu: place: job %d: %v", w.JobID, waitqueue.ErrStopping)
		}
		s.queue.Remove(w.JobID) // it is refused, and will not come again
		s.log.Warn("cannot requeue the job", "job_id", w.JobID, "error", err)
	}
	return s.refuse(ctx, o, o.reason)
}

// sendBackPlaced is sendBack for a job that has its cards, and gives them back first.
func (s *Server) sendBackPlaced(ctx context.Context, o outcome, why error) wire.Reply {
	unlock := s.jobLocks.lockAsked(o.job.JobID)
	err := s.drop(o.job.JobID)
	unlock()
	if err != nil {
		return faultOr(err, "vgpu: grant: job %d: %v", o.job.JobID, err)
	}
	return s.sendBack(ctx, sendBack(o.job, o.facts, why))
}

// isStopped says that gresd is being stopped: whoever is not served then asks the next one.
func isStopped(ctx context.Context) bool {
	return errors.Is(ctx.Err(), context.Canceled) && !waitqueue.HasEnded(ctx)
}

// turnAway sends a batch job back into the queue of its cluster, which is not ours. Nothing of it is
// recorded: a job of ours may have the same number.
func (s *Server) turnAway(ctx context.Context, o outcome) wire.Reply {
	if o.facts.Batch {
		err := s.requeue(ctx, o.job)
		s.log.Warn("a second cluster wants shares of this node's cards", "job_id", o.job.JobID, "cluster", o.job.Cluster,
			"served", s.node.Cluster(), "requeued", err == nil)
		if err == nil {
			s.outbox.Explain(ctx, o.job.Conf, o.job.JobID, o.reason)
			return wire.Reply{OK: true, Result: wire.Requeued, Message: o.reason}
		}
	}
	return wire.UserError("%s", o.reason)
}

// requeue tries until slurmctld has taken it or the time is up: a batch job that
// stays where it has no card would fail.
func (s *Server) requeue(ctx context.Context, w wire.Request) error {
	client := s.node.Slurm(w.Conf)
	return node.UntilAnswered(ctx, func() error {
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

// refuse records why, for the plugin to say when the job's task starts. Where somebody else has asked
// for the same job meanwhile, it has the answer that this one got.
func (s *Server) refuse(ctx context.Context, o outcome, reason string) wire.Reply {
	w := o.job
	defer s.jobLocks.lockAsked(w.JobID)()
	if waitqueue.HasEnded(ctx) {
		return wire.UserError("vgpu: place: job %d: %v", w.JobID, waitqueue.ErrJobEnded)
	}
	if reply, known := s.recordedReply(w); known && o.verdict != placed {
		return reply
	}
	rec := recordOf(o.facts, request.Request{}, w.Restart)
	rec.State, rec.Reason = ledger.Refused, reason
	err := whileFull("state_dir", func() error {
		if err := s.drop(rec.JobID); err != nil {
			return err
		}
		return s.ledger.Commit(rec)
	})
	if err == nil {
		err = whileFull("run_dir", func() error { return s.grants.Refuse(rec.JobID, rec.UID, reason) })
		if isFull(err) { // without the folder, the job's tasks are refused, too
			err = errors.Join(err, s.drop(rec.JobID))
		}
	}
	if err != nil {
		return faultOr(err, "vgpu: grant: job %d: %v", w.JobID, err)
	}
	s.log.Info("refused the request", "job_id", rec.JobID, "uid", rec.UID, "user", rec.User, "reason", reason)
	return wire.Reply{OK: true, Result: wire.Refused, Message: reason}
}
