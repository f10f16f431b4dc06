// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// However many ask at once, in a minute no more is served than the rate and what was saved.
func TestAUserIsServedAtARate(t *testing.T) {
	const minute = 60
	perSecond := func(op Op) int { return int(time.Second / (costOf(op) * each)) }
	for _, op := range []Op{OpPing, OpEnded, OpTopo, OpStatus, OpJobs, OpExplain} {
		for _, users := range []uint32{1, together, 10 * together} {
			var r rates
			began := time.Unix(1000, 0)
			served := 0
			// Each user has as many connections as it may, and asks again as soon as it is answered.
			free := map[uint32][]time.Time{}
			for uid := range users {
				for range maxOneUser {
					free[uid] = append(free[uid], began)
				}
			}
			for now := began; now.Before(began.Add(minute * time.Second)); now = now.Add(10 * time.Millisecond) {
				for uid := range users {
					for i, at := range free[uid] {
						if at.After(now) {
							continue
						}
						free[uid][i] = now.Add(r.take(uid, costOf(op), now) + time.Millisecond)
						served++
					}
				}
			}
			most := int(min(users, together)) * perSecond(op) * (minute + int(burst/time.Second))
			if slack := int(users) * maxOneUser; served > most+slack || served < most/2 && op != OpPing {
				t.Errorf("%s by %d users: %d served, want at most %d", op, users, served, most)
			}
		}
	}
}

func TestWhoAsksLittleNeverWaits(t *testing.T) {
	var r rates
	now := time.Unix(1000, 0)
	busy := make([]time.Time, maxOneUser) // connections of another, which never pauses
	for i := range 6000 {
		now = now.Add(10 * time.Millisecond)
		for c, free := range busy {
			if !free.After(now) {
				busy[c] = now.Add(r.take(7, costOf(OpJobs), now))
			}
		}
		if i%100 == 0 {
			if d := r.take(8, costOf(OpStatus), now); d != 0 {
				t.Fatalf("another user waits %s", d)
			}
		}
	}
	for uid := range uint32(10 * manyUsers) {
		now = now.Add(time.Second)
		r.take(uid, 1, now)
	}
	if len(r.byUID) > manyUsers {
		t.Errorf("%d users are remembered", len(r.byUID))
	}
}

// Over the socket: the answers beyond what was saved come no faster than the rate, root's at once.
func TestTheSocketKeepsTheRate(t *testing.T) {
	n := start(t)
	saved := int(burst / (costOf(OpTopo) * each))
	askAll := func(conn net.Conn, times int, op Op) {
		t.Helper()
		answers := bufio.NewReader(conn)
		for range times {
			if err := WriteRequest(conn, Request{Op: op}); err != nil {
				t.Fatal(err)
			}
			if rep, err := ReadReply(answers); err != nil || !rep.OK {
				t.Fatalf("%s: %+v, %v", op, rep, err)
			}
		}
	}
	began := time.Now()
	askAll(dialAs(t, 65534, n.path), saved+10, OpTopo)
	if took, want := time.Since(began), 10*costOf(OpTopo)*each; took < want {
		t.Errorf("%d answers came in %s, want at least %s", saved+10, took, want)
	}
	askAll(dialAs(t, 0, n.path), 3*saved, OpStatus)
	if _, limited := n.rates.byUID[0]; limited {
		t.Error("root is served at a rate")
	}
}

// dialAs connects as another user.
func dialAs(t *testing.T, uid uint32, socket string) net.Conn {
	t.Helper()
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // the thread ends with this function: its user is another now
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			done <- result{nil, errno}
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
		}
		if err != nil {
			done <- result{nil, err}
			return
		}
		file := os.NewFile(uintptr(fd), socket)
		defer file.Close()
		conn, err := net.FileConn(file)
		done <- result{conn, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { r.conn.Close() })
	return r.conn
}
