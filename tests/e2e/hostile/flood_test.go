// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// mostDescriptors is what gresd may have open under a flood: 256 connections of
// its socket, those for metrics, and its own.
const mostDescriptors = 400

var floodAttacks = []attack{
	{"10,000 connections to gresd's socket", rights, "32 connections for each user, 192 for all: others than root may have to try again", func(s *siege) tally {
		return s.flood(func() tally { return s.attack(carol, "connect", "10000", "") })
	}},
	{"the same as ten users, as somebody with subordinate ids can be", rights, "all users but root are kept out", func(s *siege) tally {
		return s.flood(func() (sum tally) {
			var all []*pending
			for uid := range uint32(10) {
				all = append(all, s.startAs(300_000+uid, "connect", "400", "300ms"))
			}
			for _, p := range all {
				sum.add(p.wait(s.t))
			}
			return sum
		})
	}},
	{"10,000 connections to the metrics, with half a question each", rights, "nobody reads metrics meanwhile", func(s *siege) tally {
		return s.flood(func() tally { return s.attack(carol, "scrape", "10000") })
	}},
	{"all files, inotify instances, pipes and processes that a user may have", kernel, "", func(s *siege) tally {
		var got tally
		s.nuisance(func() {
			hog := s.start(carol, "exhaust", "500ms")
			began := time.Now()
			s.honestJob()
			s.t.Logf("an honest job took %.1f s", time.Since(began).Seconds())
			got = hog.wait(s.t)
		})
		return got
	}},
	{"slow clients: a byte a second, half-open, never reading", rights, "each of their connections lasts 10 s, or until the socket's buffer is full", func(s *siege) tally {
		got := s.slow.wait(s.t)
		return got
	}},
}

func init() {
	agents["connect"] = func(args []string) tally {
		hold, _ := time.ParseDuration(args[1])
		return connect(number(args[0]), hold)
	}
	agents["scrape"] = func(args []string) tally { return scrape(number(args[0])) }
	agents["exhaust"] = func(args []string) tally {
		hold, _ := time.ParseDuration(args[0])
		return exhaust(hold)
	}
	agents["slow"] = func([]string) tally { return slow() }
}

// startAs runs an agent as a user that no name belongs to.
func (s *siege) startAs(uid uint32, args ...string) *pending {
	s.t.Helper()
	return s.startWith(carol, func(credential *syscall.Credential) { credential.Uid, credential.Gid = uid, uid }, args...)
}

// flood watches gresd's descriptors while something goes on.
func (s *siege) flood(attack func() tally) tally {
	s.t.Helper()
	var got tally
	most := 0
	worst := s.nuisance(func() {
		done := make(chan struct{})
		go func() { defer close(done); got = attack() }()
		for {
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
				most = max(most, descriptors(s.gresd))
			}
		}
	})
	got.note(most <= mostDescriptors, "gresd had %d files open, want at most %d", most, mostDescriptors)
	got.Said = fmt.Sprintf("gresd had %d files open at most, root waited %s at most", most, worst.Round(time.Millisecond))
	return got
}

// connect opens connections and keeps those that are answered; no more may be than
// gresd gives one user.
func connect(n int, hold time.Duration) tally {
	var t tally
	const most = 32
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for range n {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.note(true, "")
			continue
		}
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		_, err = io.WriteString(conn, `{"op":"ping"}`+"\n")
		rep, readErr := wire.ReadReply(bufio.NewReader(conn))
		if err == nil && readErr == nil && rep.OK {
			open = append(open, conn)
			t.note(len(open) <= most, "%d connections are open", len(open))
			continue
		}
		var netErr net.Error
		t.note(!(errors.As(readErr, &netErr) && netErr.Timeout()), "no answer: %v", readErr)
		conn.Close()
	}
	time.Sleep(hold)
	return t
}

// scrape opens connections to the metrics and says little.
func scrape(n int) tally {
	var t tally
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for i := range n {
		conn, err := net.DialTimeout("tcp", "127.0.0.1:9464", time.Second)
		if err == nil {
			_, err = io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\nX")
			open = append(open, conn)
		}
		_ = err
		t.note(true, "%d", i)
	}
	return t
}

// exhaust takes what a user can have of the kernel.
func exhaust(hold time.Duration) tally {
	var t tally
	limit := unix.Rlimit{Cur: 1 << 16, Max: 1 << 16}
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	full := func(name string, take func() error) {
		for i := range 10000 {
			if err := take(); err != nil {
				t.note(true, "")
				t.Said += fmt.Sprintf("%s: %d; ", name, i)
				return
			}
		}
		t.note(true, "") // as many as it wants: they are its own
		t.Said += name + ": 10000; "
	}
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.note(false, "%v", err)
		return t
	}
	names := 0
	full("watches", func() error {
		names++
		path := fmt.Sprintf("watched.%d", names%2000)
		_ = os.WriteFile(path, nil, 0o600)
		_, err := unix.InotifyAddWatch(watch, path, unix.IN_OPEN)
		return err
	})
	full("inotify", func() error { _, err := unix.InotifyInit1(unix.IN_CLOEXEC); return err })
	full("pipes", func() error { var p [2]int; return unix.Pipe(p[:]) })
	time.Sleep(hold)
	return t
}

// slow holds connections in each way that a client can be slow. gresd must end
// each in its time.
func slow() tally {
	var t tally
	const most = 14 * time.Second // clientTimeout, and time to be late
	// Until what gresd answers, at the rate of a user, fills the socket's buffer.
	const filled = 60 * time.Second
	ways := []struct {
		name string
		do   func(net.Conn) error
	}{
		{"a byte a second", func(c net.Conn) error {
			for _, b := range []byte(`{"op":"ping","user":"aaaaaaaaaaaaaaaaaaaa"}` + "\n") {
				if _, err := c.Write([]byte{b}); err != nil {
					return err
				}
				time.Sleep(time.Second)
			}
			return nil
		}},
		{"nothing", func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err }},
		{"half a line", func(c net.Conn) error {
			_, _ = io.WriteString(c, `{"op":`)
			_, err := c.Read(make([]byte, 1))
			return err
		}},
		{"half-open", func(c net.Conn) error {
			_, _ = io.WriteString(c, `{"op":"ping"`)
			_ = c.(*net.UnixConn).CloseWrite()
			_, err := io.Copy(io.Discard, c)
			return errors.Join(err, io.EOF)
		}},
		{"closed for reading", func(c net.Conn) error {
			_ = c.(*net.UnixConn).CloseRead()
			line := []byte(strings.Repeat(`{"op":"status"}`+"\n", 1000))
			for {
				if _, err := c.Write(line); err != nil {
					return err
				}
			}
		}},
		{"never reading", func(c net.Conn) error {
			line := []byte(strings.Repeat(`{"op":"status"}`+"\n", 1000))
			for {
				if _, err := c.Write(line); err != nil {
					return err
				}
			}
		}},
	}
	type end struct {
		name string
		took time.Duration
		err  error
	}
	ends := make(chan end)
	n := 0
	for _, way := range ways {
		for range 3 {
			n++
			go func() {
				conn, err := net.Dial("unix", socket)
				if err != nil {
					ends <- end{way.name, 0, err}
					return
				}
				defer conn.Close()
				began := time.Now()
				_ = conn.SetDeadline(began.Add(2 * (most + filled)))
				err = way.do(conn)
				ends <- end{way.name, time.Since(began), err}
			}()
		}
	}
	longest := time.Duration(0)
	for range n {
		e := <-ends
		longest = max(longest, e.took)
		limit := most
		if e.name == "never reading" {
			limit += filled
		}
		t.note(e.err != nil && e.took < limit, "%s: ended after %s: %v", e.name, e.took, e.err)
	}
	t.Said = fmt.Sprintf("the longest lasted %.1f s", longest.Seconds())
	return t
}
