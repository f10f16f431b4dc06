// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
)

// Who holds the job while its daemon is down sleeps until it is told.
func TestWhetherAJobIsHeldIsToldWhenItChanges(t *testing.T) {
	n := newNode(t)
	n.Close()
	n.cfg.Times.Answer, n.cfg.Times.Health = 5*time.Second, time.Hour // nothing changes by itself
	var mu sync.Mutex
	heard, calls := false, 0
	n.cfg.Changed = func() {
		mu.Lock()
		defer mu.Unlock()
		heard, calls = n.Holds(1), calls+1
	}
	n.open()
	key := Key{Card: card, UID: nobody}
	told := func(held bool) bool {
		mu.Lock()
		defer mu.Unlock()
		return heard == held && n.Holds(1) == held
	}
	n.up(1, key, 30)
	n.eventually("it is told that the job is held", func() bool { return told(true) })
	n.Behave(fake.Fail)
	if err := unix.Kill(n.only(fake.Control), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.eventually("it is told that the daemon has died", func() bool { return told(false) })
	n.Behave()
	n.eventually("it is told that another one holds the job", func() bool { return told(true) })
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return calls
	}
	before := count()
	n.Keep(1, key, nobody, 30)
	time.Sleep(3 * quick.Health)
	if now := count(); now != before {
		t.Errorf("told %d times without a change", now-before)
	}
	n.Keep(2, key, nobody, 20)
	if count() == before {
		t.Error("another job of the daemon was not told of")
	}
	if n.Release(1); !told(false) {
		t.Error("the end of the job was not told")
	}
}
