// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// clientTimeout is how long a client may take to send a line, and to take
	// its answer.
	clientTimeout = 10 * time.Second

	// Where gresd places, each job that waits for room has a connection of root's.
	maxConns = 4096
	// Users get only a part of the connections, and each user only a part of
	// that, so that no user can keep root's Prolog out.
	maxUserConns = 192
	maxOneUser   = 32
)

// Listen makes gresd's socket. Who connects from then on waits for [Serve], so it comes
// before all that takes long, such as a driver that starts: a Prolog that finds no socket takes
// gresd for gone.
func Listen(path string) (*net.UnixListener, error) {
	// Everybody may connect; what they may ask is decided by who they are.
	listener, err := MakeSocket(path, -1, 0o666)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return listener, nil
}

// MakeSocket makes a Unix socket for root and a group, -1 for gresd's own; one that a killed gresd left is
// replaced. Before its mode is set, the umask keeps others from connecting.
func MakeSocket(path string, gid int, mode os.FileMode) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	err = os.Chown(path, -1, gid)
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// Handler answers one request.
type Handler func(ctx context.Context, req Request, cred Cred) Reply

type socket struct {
	handle Handler
	log    *slog.Logger
	conns  limits
	rates  rates
}

// Serve answers requests at a socket of [Listen] until ctx is done, and closes it. What is being
// answered then is answered first.
func Serve(ctx context.Context, listener *net.UnixListener, handle Handler, log *slog.Logger) {
	s := &socket{handle: handle, log: log}
	s.run(ctx, listener)
}

func (s *socket) run(ctx context.Context, listener *net.UnixListener) {
	var work sync.WaitGroup
	context.AfterFunc(ctx, func() {
		_ = listener.Close()
		s.conns.closeAll()
	})
	s.accept(ctx, listener, &work)
	work.Wait()
}

func (s *socket) accept(ctx context.Context, listener *net.UnixListener, work *sync.WaitGroup) {
	for order := uint64(1); ; order++ {
		conn, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of file descriptors, most likely
			s.log.Error("accept", "error", err)
			if !wait(ctx, 100*time.Millisecond) {
				return
			}
			continue
		}
		cred, err := PeerCred(conn)
		if err == nil {
			err = s.conns.add(conn, cred.UID)
		}
		if errors.Is(err, errStopping) { // who hears nothing asks the next gresd
			_ = conn.Close()
			continue
		}
		if err != nil {
			// The socket's buffer takes these few bytes without waiting.
			_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			_ = WriteReply(conn, UserError("vgpu: gresd: connection: %v", err))
			_ = conn.Close()
			continue
		}
		work.Go(func() {
			defer s.conns.remove(conn, cred.UID)
			defer conn.Close()
			s.serve(ctx, conn, cred, order)
		})
	}
}

// serve answers the requests of one connection until it ends, is silent for
// too long or sends what is no request.
func (s *socket) serve(ctx context.Context, conn *net.UnixConn, cred Cred, order uint64) {
	r := bufio.NewReader(conn)
	for ctx.Err() == nil {
		_ = conn.SetReadDeadline(time.Now().Add(clientTimeout))
		if ctx.Err() != nil {
			return // closeAll may have run before the line above
		}
		req, err := ReadRequest(r)
		var netErr net.Error
		switch {
		case err == nil:
		case errors.As(err, &netErr), isEOF(err):
			return
		default:
			s.answer(conn, UserError("vgpu: gresd: request: %v", err))
			return
		}
		if !s.rates.wait(ctx, cred.UID, req.Op) {
			return
		}
		req.Order = order
		rep := s.handle(ctx, req, cred)
		if ctx.Err() != nil && rep.Kind == KindBusy {
			return // the next gresd knows better: who hears nothing asks it
		}
		if !s.answer(conn, rep) {
			return
		}
	}
}

func (s *socket) answer(conn *net.UnixConn, rep Reply) bool {
	_ = conn.SetWriteDeadline(time.Now().Add(clientTimeout))
	if err := WriteReply(conn, rep); err != nil {
		s.log.Debug("answer", "error", err)
		return false
	}
	return true
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// errStopping is the answer to a client that connects while gresd stops.
var errStopping = errors.New("gresd is stopping")

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
	trusted := IsRoot(uid)
	switch {
	case l.done:
		return errStopping
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
	if !IsRoot(uid) {
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

// Users' requests have a rate limit, because gresd's processors also divide the time of the cards.
// A request above the rate waits. Requests of root never wait.
const (
	// each is the part of its user's time that a request of cost 1 uses, and burst limits the saved
	// time. A second has time for 100 requests of a starting process or 20 of an administrator's
	// view. Four times as many can come at once.
	each  = 2 * time.Millisecond
	burst = 4 * time.Second
	// together is how many users at this rate are served at once. Subordinate ids make one
	// person many users.
	together = 4

	// manyUsers: above this number, gresd forgets users without recent requests.
	manyUsers = 256
)

// costOf returns the cost of a request. Programs send the first two when they start or have no
// room. The other requests read the state of all cards or jobs.
func costOf(op Op) time.Duration {
	switch op {
	case OpPing:
		return 1
	case OpEnded:
		return 5
	}
	return 25
}

// rates has the used time of all users. The zero value is ready.
type rates struct {
	mu    sync.Mutex
	all   time.Time            // the time that has been used of all users'
	byUID map[uint32]time.Time // and of each one's
}

// take uses time for a request, and returns how long the request must wait.
func (r *rates) take(uid uint32, cost time.Duration, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := now.Add(-burst)
	if r.byUID == nil {
		r.byUID = map[uint32]time.Time{}
	}
	if len(r.byUID) >= manyUsers {
		maps.DeleteFunc(r.byUID, func(_ uint32, used time.Time) bool { return used.Before(oldest) })
	}
	use := func(used time.Time, of time.Duration) time.Time {
		if used.Before(oldest) {
			used = oldest
		}
		return used.Add(of)
	}
	r.byUID[uid] = use(r.byUID[uid], cost*each)
	r.all = use(r.all, cost*each/together)
	return max(r.byUID[uid].Sub(now), r.all.Sub(now), 0)
}

// wait returns when a request of a user may be served; false when ctx is done before.
func (r *rates) wait(ctx context.Context, uid uint32, op Op) bool {
	if IsRoot(uid) {
		return true
	}
	delay := r.take(uid, costOf(op), time.Now())
	return delay == 0 || wait(ctx, delay)
}

// wait returns false if ctx is done before.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
