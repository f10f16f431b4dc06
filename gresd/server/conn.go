// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

const (
	// clientTimeout is how long a client may take to send a line, and to take
	// its answer.
	clientTimeout = 10 * time.Second
	// workTimeout bounds the work for one request, slurmctld's answers included.
	workTimeout = 25 * time.Second
	// grantTimeout is workTimeout for a Prolog, which waits a little longer: Slurm
	// drains its node if it is not answered, and a slurmctld that hangs, or whose
	// backup takes over (SlurmctldTimeout, 2 min by default), is no fault of a node.
	grantTimeout = 140 * time.Second

	maxConns = 256
	// Users get only a part of the connections, and each user only a part of
	// that, so that no user can keep root's Prolog out.
	maxUserConns = 192
	maxOneUser   = 32
)

// limits counts open connections.
type limits struct {
	mu    sync.Mutex
	users int            // connections of users other than root
	byUID map[uint32]int // of all
	open  map[net.Conn]struct{}
	done  bool
}

func (l *limits) add(conn net.Conn, uid uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.byUID, l.open = map[uint32]int{}, map[net.Conn]struct{}{}
	}
	trusted := wire.IsRoot(uid)
	switch {
	case l.done:
		return errors.New("gresd is stopping")
	case len(l.open) >= maxConns:
		return fmt.Errorf("%d connections are open: want less than %d", len(l.open), maxConns)
	case !trusted && l.users >= maxUserConns:
		return fmt.Errorf("users have %d connections open: want less than %d", l.users, maxUserConns)
	case !trusted && l.byUID[uid] >= maxOneUser:
		return fmt.Errorf("user %d has %d connections open: want less than %d", uid, l.byUID[uid], maxOneUser)
	}
	l.open[conn] = struct{}{}
	l.byUID[uid]++
	if !trusted {
		l.users++
	}
	return nil
}

func (l *limits) remove(conn net.Conn, uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, conn)
	if l.byUID[uid]--; l.byUID[uid] == 0 {
		delete(l.byUID, uid)
	}
	if !wire.IsRoot(uid) {
		l.users--
	}
}

// closeAll ends idle connections; one whose request is being served still gets
// its answer.
func (l *limits) closeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = true
	for conn := range l.open {
		_ = conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// listen makes the socket. One that a killed gresd left is replaced; the lock
// on the ledger is what keeps two daemons apart.
// Listen makes gresd's socket. Who connects from then on waits for [Server.Run], so it comes
// before all that takes long, such as a driver that starts: a Prolog that finds no socket takes
// gresd for gone.
func Listen(path string) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("replace socket: %w", err)
		}
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	// Everybody may connect; what they may ask is decided by who they are.
	if err := os.Chmod(path, 0o666); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("listen: %w", err)
	}
	return listener, nil
}

func (s *Server) accept(ctx context.Context, listener *net.UnixListener, work *sync.WaitGroup) {
	for {
		conn, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of file descriptors, most likely
			s.Log.Error("accept", "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		cred, err := wire.PeerCred(conn)
		if err == nil {
			err = s.conns.add(conn, cred.UID)
		}
		if err != nil {
			// The socket's buffer takes these few bytes without waiting.
			_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			_ = wire.WriteReply(conn, wire.UserError("vgpu: gresd: connection: %v", err))
			_ = conn.Close()
			continue
		}
		work.Go(func() {
			defer s.conns.remove(conn, cred.UID)
			defer conn.Close()
			s.serve(ctx, conn, cred)
		})
	}
}

// serve answers the requests of one connection until it ends, is silent for
// too long or sends what is no request.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn, cred wire.Cred) {
	r := bufio.NewReader(conn)
	for ctx.Err() == nil {
		_ = conn.SetReadDeadline(time.Now().Add(clientTimeout))
		if ctx.Err() != nil {
			return // closeAll may have run before the line above
		}
		req, err := wire.ReadRequest(r)
		var netErr net.Error
		switch {
		case err == nil:
		case errors.As(err, &netErr), isEOF(err):
			return
		default:
			s.answer(conn, wire.UserError("vgpu: gresd: request: %v", err))
			return
		}
		if !s.rates.wait(ctx, cred.UID, req.Op) {
			return
		}
		rep := s.dispatch(ctx, req, cred)
		if ctx.Err() != nil && rep.Kind == wire.KindBusy {
			return // the next gresd knows better: who hears nothing asks it
		}
		if !s.answer(conn, rep) {
			return
		}
	}
}

func (s *Server) answer(conn *net.UnixConn, rep wire.Reply) bool {
	_ = conn.SetWriteDeadline(time.Now().Add(clientTimeout))
	if err := wire.WriteReply(conn, rep); err != nil {
		s.Log.Debug("answer", "error", err)
		return false
	}
	return true
}

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
	switch req.Op {
	case wire.OpCordon, wire.OpUncordon:
		if !wire.IsRoot(cred.UID) {
			return wire.UserError("vgpu: gresd: %s: user %d: only root may ask for this", req.Op, cred.UID)
		}
		return s.cordon(req)
	case wire.OpGrant, wire.OpRelease, wire.OpSet:
		if !wire.IsRoot(cred.UID) {
			return wire.UserError("vgpu: gresd: %s: user %d: only root may ask for this", req.Op, cred.UID)
		}
		select { // the ledger must have been compared with the world
		case <-s.ready:
		case <-ctx.Done():
			return wire.BusyError("vgpu: gresd: %s: job %d: gresd is still starting", req.Op, req.JobID)
		}
		rep := s.change(ctx, req)
		if rep.Kind == wire.KindNode { // Slurm drains the node for it, and says no more than that
			s.Log.Error("cannot answer a request of Slurm", "op", req.Op, "job_id", req.JobID, "error", rep.Message)
		}
		return rep
	case wire.OpStatus:
		st := s.Report.Status(ctx, wire.IsRoot(cred.UID))
		st.Ready = s.isReady()
		return wire.Reply{OK: true, Status: st}
	case wire.OpJobs:
		return wire.Reply{OK: true, Jobs: s.Report.Jobs(ctx, cred, req.Processes)}
	case wire.OpExplain:
		return s.explain(req, cred)
	case wire.OpReport:
		return s.Report.Job(req.JobID, cred)
	case wire.OpTopo:
		return s.Report.Topology()
	case wire.OpEnded:
		return s.ended(req.JobID, cred)
	default: // ping; the decoder lets no other through
		return wire.Reply{OK: true, PID: cred.PID}
	}
}

// change serves a request that changes the ledger.
func (s *Server) change(ctx context.Context, req wire.Request) wire.Reply {
	start := time.Now()
	switch req.Op {
	case wire.OpRelease:
		rep := s.release(req)
		s.Observer.ReleaseTook(time.Since(start))
		return rep
	case wire.OpSet:
		return s.set(req)
	}
	rep := s.grant(ctx, req)
	s.Observer.GrantTook(time.Since(start) - s.room.answered(req.JobID)) // a wait for room is no fault of ours
	s.Observer.Placed(resultName(rep))
	return rep
}

func resultName(rep wire.Reply) string {
	if !rep.OK {
		return "error"
	}
	return string(rep.Result)
}
