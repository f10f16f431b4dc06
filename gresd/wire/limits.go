// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// errStopping is for who connects while gresd stops.
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
