// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"slices"
	"time"

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
		st.Ready = s.isReady()
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
