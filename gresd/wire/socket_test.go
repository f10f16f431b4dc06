// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// testSocket answers each request with OK.
type testSocket struct {
	*socket
	path string
	stop func()
}

func start(t *testing.T) *testSocket {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { // other users must reach the socket
			t.Fatal(err)
		}
	}
	return startAt(t, filepath.Join(dir, "gresd.sock"))
}

func startAt(t *testing.T, path string) *testSocket {
	t.Helper()
	listener, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ok := func(context.Context, Request, Cred) Reply { return Reply{OK: true} }
	s := &socket{handle: ok, log: slog.New(slog.DiscardHandler)}
	done := make(chan struct{})
	go func() { s.run(ctx, listener); close(done) }()
	stop := func() { cancel(); <-done }
	t.Cleanup(stop)
	return &testSocket{s, path, stop}
}

func TestSocketMode(t *testing.T) {
	n := start(t)
	info, err := os.Stat(n.path)
	if err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("got %v, %v; want mode 0666", info, err)
	}
}

func TestBadRequestEndsTheConnection(t *testing.T) {
	n := start(t)
	for _, line := range []string{"hello\n", "{}\n", `{"op":"ping","x":1}` + "\n", strings.Repeat("x", MaxRequest+1)} {
		conn, err := net.Dial("unix", n.path)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(conn, line)
		r := bufio.NewReader(conn)
		rep, err := ReadReply(r)
		if err != nil || rep.OK || rep.Kind != KindUser {
			t.Errorf("%.20q: got %+v, %v", line, rep, err)
		}
		if _, err := r.ReadByte(); err == nil {
			t.Errorf("%.20q: the connection stays open", line)
		}
		conn.Close()
	}
}

func TestSeveralRequestsOnOneConnection(t *testing.T) {
	n := start(t)
	conn, err := net.Dial("unix", n.path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	for range 3 {
		if err := WriteRequest(conn, Request{Op: OpPing}); err != nil {
			t.Fatal(err)
		}
		if rep, err := ReadReply(r); err != nil || !rep.OK {
			t.Fatalf("got %+v, %v", rep, err)
		}
	}
}

func TestConnectionLimits(t *testing.T) {
	var l limits
	conns := make([]net.Conn, 0, maxConns+1)
	open := func(uid uint32) error {
		a, b := net.Pipe()
		t.Cleanup(func() { a.Close(); b.Close() })
		err := l.add(a, uid)
		if err == nil {
			conns = append(conns, a)
		}
		return err
	}
	for range maxOneUser {
		if err := open(1000); err != nil {
			t.Fatal(err)
		}
	}
	if err := open(1000); err == nil {
		t.Error("one user got more than its part")
	}
	for uid := uint32(2000); len(conns) < maxUserConns; uid++ {
		if err := open(uid); err != nil {
			t.Fatal(err)
		}
	}
	if err := open(3000); err == nil {
		t.Error("users got more than their part")
	}
	for len(conns) < maxConns {
		if err := open(0); err != nil {
			t.Fatalf("root was kept out: %v", err)
		}
	}
	if err := open(0); err == nil {
		t.Error("more connections than the limit")
	}
	l.remove(conns[0], 1000)
	if err := open(1000); err != nil {
		t.Errorf("a closed connection still counts: %v", err)
	}
	l.closeAll()
	l.remove(conns[1], 1000)
	if err := open(1000); err == nil {
		t.Error("a connection was taken while stopping")
	}
}

func TestAStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gresd.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close() // as a killed daemon leaves it
	n := startAt(t, path)
	if _, err := (&Client{Socket: path, Timeout: 20 * time.Second}).Do(t.Context(), Request{Op: OpPing}); err != nil {
		t.Error(err)
	}
	n.stop()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil {
		t.Error("a plain file was replaced")
	}
}

// A Prolog that connects while gresd stops hears nothing, and asks the next one.
func TestWhoConnectsWhileItStopsHearsNothing(t *testing.T) {
	listener, err := Listen(filepath.Join(t.TempDir(), "gresd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	s := &socket{log: slog.New(slog.DiscardHandler)}
	s.conns.closeAll()
	go func() { s.run(ctx, listener); close(done) }()
	client := Client{Socket: listener.Addr().String(), Timeout: 20 * time.Second}
	var answer *Error
	if _, err := client.Do(t.Context(), Request{Op: OpPing}); err == nil || errors.As(err, &answer) {
		t.Errorf("got %v, want no answer", err)
	}
	stop()
	<-done
}

// gresd counts the connections that wait for it in their order.
func TestConnectionsHaveAnOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	orders := make([]uint64, 9)
	var conns []net.Conn
	for i := range orders {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := WriteRequest(conn, Request{Op: OpRelease, JobID: uint32(i + 1)}); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		Serve(ctx, listener, func(_ context.Context, req Request, _ Cred) Reply {
			orders[req.JobID-1] = req.Order
			return Reply{OK: true}
		}, slog.New(slog.DiscardHandler))
	}()
	for _, conn := range conns {
		if _, err := ReadReply(bufio.NewReader(conn)); err != nil {
			t.Error(err)
		}
	}
	stop()
	<-over
	if orders[0] == 0 || !slices.IsSorted(orders) || len(slices.Compact(orders)) != len(conns) {
		t.Errorf("orders %v", orders)
	}
}
