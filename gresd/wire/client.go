// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net"
	"syscall"
	"time"
)

// DefaultTimeout bounds one exchange of a Client: a grant may wait for
// slurmctld, which gresd asks with a time-out of its own below this one.
const DefaultTimeout = 30 * time.Second

// Client talks to gresd. The zero value is not usable: Socket must be set. A
// Client holds no connection between calls and may be used by many goroutines.
type Client struct {
	Socket  string        // path, e.g. /run/vgpu/gresd.sock
	Timeout time.Duration // of one exchange; 0 means DefaultTimeout
}

// Error is an answer with "ok": false.
type Error struct {
	Kind    Kind
	Message string
}

func (e *Error) Error() string { return e.Message }

// Do sends one request and returns the reply. An answer with "ok": false is
// returned as *Error; every other error means that gresd could not be reached
// or did not answer in time.
func (c *Client) Do(ctx context.Context, req Request) (Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Timeout, DefaultTimeout))
	defer cancel()

	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.Socket)
	if err != nil {
		return Reply{}, fmt.Errorf("connect to gresd: %w", err)
	}
	defer conn.Close()
	// A cancelled context ends a read or write that is under way.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	if err := WriteRequest(conn, req); err != nil {
		return Reply{}, fmt.Errorf("ask gresd: %w", orCause(ctx, err))
	}
	rep, err := ReadReply(bufio.NewReader(conn))
	if err != nil {
		return Reply{}, fmt.Errorf("read answer of gresd: %w", orCause(ctx, err))
	}
	if !rep.OK {
		return rep, &Error{Kind: rep.Kind, Message: rep.Message}
	}
	return rep, nil
}

// orCause prefers "deadline exceeded" to the i/o error that it led to.
func orCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// Cred is who is at the other end of a Unix socket, as the kernel says.
type Cred struct {
	PID      int32
	UID, GID uint32
}

// PeerCred returns the credentials that the peer had when it connected.
func PeerCred(conn *net.UnixConn) (Cred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Cred{}, fmt.Errorf("peer credentials: %w", err)
	}
	var ucred *syscall.Ucred
	var sockErr error
	err = raw.Control(func(fd uintptr) {
		ucred, sockErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err == nil {
		err = sockErr
	}
	if err != nil {
		return Cred{}, fmt.Errorf("peer credentials: %w", err)
	}
	return Cred{PID: ucred.Pid, UID: ucred.Uid, GID: ucred.Gid}, nil
}
