// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/health"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

const (
	// workTimeout bounds the work for one request, slurmctld's answers included.
	workTimeout = 25 * time.Second
	// grantTimeout is workTimeout for a Prolog, which waits a little longer: Slurm
	// drains its node if it is not answered, and a slurmctld that hangs, or whose
	// backup takes over (SlurmctldTimeout, 2 min by default), is no fault of a node.
	grantTimeout = 140 * time.Second
	// releaseWait is how long an Epilog waits for a gresd that starts: after that, the job may have come
	// back, and its next run must not lose its share. Reconciliation releases what is left.
	releaseWait = 2 * time.Second
)

// dispatch decides who may ask what.
func (s *Server) dispatch(ctx context.Context, req wire.Request, cred wire.Cred) wire.Reply {
	timeout := workTimeout
	if req.Op == wire.OpGrant {
		timeout = grantTimeout
		if req.Within > 0 {
			timeout = min(timeout, time.Duration(req.Within)*time.Second)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	changes := slices.Contains([]wire.Op{wire.OpCordon, wire.OpUncordon, wire.OpGrant, wire.OpRelease, wire.OpSet}, req.Op)
	if changes && !wire.IsRoot(cred.UID) {
		return wire.UserError("vgpu: gresd: %s: user %d: only root may ask for this", req.Op, cred.UID)
	}
	switch req.Op {
	case wire.OpCordon, wire.OpUncordon:
		return s.cordon(req)
	case wire.OpGrant, wire.OpRelease, wire.OpSet:
		starting := ctx
		if req.Op == wire.OpRelease {
			var cancel context.CancelFunc
			starting, cancel = context.WithTimeout(ctx, releaseWait)
			defer cancel()
		}
		select { // the ledger must have been compared with the world
		case <-s.ready:
		case <-starting.Done():
			return wire.BusyError("vgpu: gresd: %s: job %d: gresd is still starting", req.Op, req.JobID)
		}
		var rep wire.Reply
		switch req.Op {
		case wire.OpGrant:
			rep = s.grant(ctx, req)
		case wire.OpRelease:
			s.linger.Wait(ctx, req.JobID) // when the Epilog ends, the card's memory is free for the next job
			start := time.Now()
			rep = s.release(req)
			s.observer.ReleaseTook(time.Since(start))
		default:
			rep = s.set(req)
		}
		if rep.Kind == wire.KindNode { // Slurm drains the node for it, and says no more than that
			s.log.Error("cannot answer a request of Slurm", "op", req.Op, "job_id", req.JobID, "error", rep.Message)
		}
		return rep
	case wire.OpStatus:
		st := s.report.Status(ctx, wire.IsRoot(cred.UID))
		select {
		case <-s.ready:
			st.Ready = true
		default:
		}
		st.Problems = append(st.Problems, s.problems()...)
		return wire.Reply{OK: true, Status: st}
	case wire.OpJobs:
		return wire.Reply{OK: true, Jobs: s.report.Jobs(ctx, cred, req.Processes)}
	case wire.OpExplain:
		return s.explain(req, cred)
	case wire.OpReport:
		return s.report.Job(req.JobID, cred)
	case wire.OpTopo:
		return s.report.Topology()
	case wire.OpEnded:
		return s.ended(req.JobID, cred)
	default: // ping; the decoder lets no other through
		return wire.Reply{OK: true, PID: cred.PID}
	}
}

// ended tells a process, before an allocation is refused, which of its job's processes in
// other PID namespaces have ended: it cannot see that. It then clears their slots itself.
func (s *Server) ended(jobID uint32, cred wire.Cred) wire.Reply {
	spec, ok := s.grants.Spec(jobID)
	if !ok || spec.UID != cred.UID && !wire.IsRoot(cred.UID) {
		return wire.UserError("vgpu: gresd: ended: user %d has no job %d with a share here", cred.UID, jobID)
	}
	owners, err := s.grants.Ended(jobID)
	if err != nil {
		return wire.UserError("vgpu: gresd: ended: job %d: %v", jobID, err)
	}
	return wire.Reply{OK: true, Ended: owners}
}

// set changes the compute share of a running job on each of its cards. It is
// durable before it is in force, and in force at once: the arbiter is woken.
func (s *Server) set(w wire.Request) wire.Reply {
	defer s.jobLocks.lockAsked(w.JobID)()
	rec, known := s.ledger.Get(w.JobID)
	if !known || rec.State != ledger.Granted {
		return wire.UserError("vgpu: set: job %d: it has no share of a card of this node; vgpuctl jobs lists those that have", w.JobID)
	}
	cores := gpu.Share(w.Cores)
	if most, of := mostCores(rec); cores > most {
		return wire.UserError("vgpu: set: job %d: --cores: %d: want 1 to %d, %s, for example --cores %d", w.JobID, cores, most, of, most)
	}
	if rec.Request.Engine == gpu.MPS {
		return wire.UserError("vgpu: set: job %d: its engine is MPS, where the share of a program is fixed when it starts; "+
			"want a job with --vgpu-engine=time", w.JobID)
	}
	before := rec.Placement.Cards[0].Cores
	for i := range rec.Placement.Cards {
		rec.Placement.Cards[i].Cores = cores
	}
	if err := s.ledger.Commit(rec); err != nil {
		return wire.NodeError("vgpu: set: job %d: %v", w.JobID, err)
	}
	s.grants.SetCores(w.JobID, cores)
	s.log.Info("compute share set", "job_id", w.JobID, "cores", cores, "before", before)
	return wire.Reply{OK: true, Result: wire.Changed, Message: fmt.Sprintf(
		"job %d: compute share %d %% of each of its cards, it was %d %%", w.JobID, cores, before)}
}

// mostCores is the most that a job may compute on any of its cards, and why.
func mostCores(rec ledger.Record) (most gpu.Share, of string) {
	most = gpu.FullCard
	for _, c := range rec.Placement.Cards {
		if c.Share <= most {
			most, of = c.Share, fmt.Sprintf("the share that it holds of card %d", c.Index)
		}
	}
	if rec.Ceiling != 0 && rec.Ceiling < most {
		most, of = rec.Ceiling, "the ceiling of its mode "+gpu.FormatMode(rec.Mode, rec.Ceiling)
	}
	return most, of
}

// CardChanged is called when a card became sick or well. Jobs on the card get a message.
func (s *Server) CardChanged(c health.Change) {
	readable := s.cards.Judge(c.UUID)
	s.queue.WakeAll()
	if c.Why == "" && !readable {
		s.reload.Ring() // it can be read again
	}
	var jobs []uint32
	for _, rec := range s.ledger.List() {
		on := func(held place.CardShare) bool { return held.UUID == c.UUID }
		if rec.State == ledger.Granted && slices.ContainsFunc(rec.Placement.Cards, on) {
			jobs = append(jobs, rec.JobID)
		}
	}
	s.outbox.CardChanged(c, jobs)
}

// cordon takes a card out of use, or back into it.
func (s *Server) cordon(w wire.Request) wire.Reply {
	uuid, found := s.cards.Find(w.Card)
	if !found {
		return wire.UserError("vgpu: %s: card %q: want one of this node, by index or UUID, for example %s", w.Op, w.Card, s.cards.Example())
	}
	name := s.cards.Name(uuid)
	if w.Op == wire.OpCordon {
		if err := s.cards.Cordon(uuid, w.Reason); err != nil {
			return wire.NodeError("vgpu: cordon: card %s: it is out of use until gresd restarts: %v", name, err)
		}
		jobs := s.queue.CurrentUse()[uuid].Jobs
		return wire.Reply{OK: true, Result: wire.Changed, Message: fmt.Sprintf(
			"card %s: cordoned: no new jobs; jobs that stay on it: %d", name, jobs)}
	}
	was, err := s.cards.Uncordon(uuid)
	if err != nil {
		return wire.NodeError("vgpu: uncordon: card %s: %v", name, err)
	}
	if !was {
		return wire.Reply{OK: true, Result: wire.None, Message: fmt.Sprintf("card %s: was not cordoned", name)}
	}
	return wire.Reply{OK: true, Result: wire.Changed, Message: fmt.Sprintf("card %s: takes jobs again", name)}
}
