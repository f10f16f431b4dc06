// SPDX-License-Identifier: Apache-2.0

package storm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// small is a file system of few pages for gresd's ledger.
func small(t *testing.T, pages int) (state string) {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "small-")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", pages*os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// refusedAsNode says whether gresd answered that the node is at fault, with a word.
func refusedAsNode(err error, word string) bool { return refusedAs(wire.KindNode, err, word) }

func refusedAs(kind wire.Kind, err error, word string) bool {
	var said *wire.Error
	return errors.As(err, &said) && said.Kind == kind && strings.Contains(said.Message, word)
}

// one asks for a hundredth of a card.
func (c *crash) one() (*known, error) {
	r := c.record
	r.last++
	job := &known{Job: Job{ID: r.last, UID: 1000, Share: 1}, cores: 1}
	r.jobs[job.ID] = job
	c.must("submit", c.node.Submit(job.Job))
	return job, r.prolog(job)
}

func TestFullDisk(t *testing.T) {
	for of, pages := range map[string]int{"ledger": 10, "grants": 320} {
		t.Run(of, func(t *testing.T) {
			dir, state := small(t, pages), ""
			if of == "ledger" {
				state = dir
			}
			c := newCrash(t, state)
			if of == "grants" {
				if err := os.Mkdir(c.node.run(), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := unix.Mount(dir, c.node.run(), "", unix.MS_BIND, ""); err != nil {
					t.Fatal(err)
				}
				defer unix.Unmount(c.node.run(), unix.MNT_DETACH)
			}
			c.must("start", c.node.Start())
			var err error
			last := &known{belief: granted}
			for n := 0; err == nil && last.belief == granted && n < 100; n++ {
				last, err = c.one()
			}
			said := logFrom(t, c.node, 0)
			// A user can fill both: that must not drain the node.
			if err != nil && !refusedAs(wire.KindBusy, err, "no space left on device") || err == nil && last.belief != refused {
				t.Fatalf("on a full disk: job is %s, %v", last.belief, err)
			}
			if strings.Contains(said, "cannot answer a request of Slurm") {
				t.Errorf("Slurm drains the node: %s", said)
			}
			if len(c.record.jobs) < 5 {
				t.Fatalf("full with %d jobs: the disk is too small for this test", len(c.record.jobs))
			}
			// Nobody was told yes for nothing, and who was keeps it.
			c.node.Kill()
			c.must("dead gresd", c.record.CheckDead())
			c.must("start", c.node.Start())
			if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=16m"); err != nil {
				t.Fatal(err)
			}
			c.must("with room again", c.record.Settle())
			c.check()
		})
	}
}

func TestReadOnlyDisk(t *testing.T) {
	dir := small(t, 100)
	c := newCrash(t, dir)
	readOnly := false
	c.node.Watch.Decide = func(p Point) Verdict {
		c.killer.mu.Lock()
		defer c.killer.mu.Unlock()
		if readOnly && strings.HasPrefix(p.File, "ledger.") {
			return Verdict{Fail: syscall.EROFS}
		}
		return Verdict{}
	}
	c.must("start", c.node.Start())
	job, err := c.one()
	c.must("grant", err)
	// A tmpfs stays writable while a file in it is open for writing, as the journal
	// is; other file systems become read-only when their disk fails.
	c.killer.mu.Lock()
	readOnly = true
	c.killer.mu.Unlock()
	if _, err := c.one(); !refusedAsNode(err, "read-only file system") {
		t.Errorf("grant: %v", err)
	}
	if err := c.record.Release(job); !refusedAsNode(err, "read-only file system") {
		t.Errorf("release: %v", err)
	}
	c.node.Kill()
	c.node.Watch = nil
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	size := logSize(t, c.node)
	if err := c.node.Start(); !errors.Is(err, ErrEnded) {
		t.Fatalf("start: %v", err)
	}
	if said := logFrom(t, c.node, size); !strings.Contains(said, "read-only file system") || !strings.Contains(said, "ledger") {
		t.Errorf("gresd that cannot start says %q", said)
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	c.must("start", c.node.Start())
	c.check()
}

func logSize(t *testing.T, n *Node) int {
	t.Helper()
	log, err := os.ReadFile(n.Log())
	if err != nil {
		t.Fatal(err)
	}
	return len(log)
}

func logFrom(t *testing.T, n *Node, size int) string {
	t.Helper()
	log, err := os.ReadFile(n.Log())
	if err != nil {
		t.Fatal(err)
	}
	return string(log[size:])
}

// A disk that fails once, at any point: the answer may be that the node is at
// fault, and nothing else changes.
func TestEachPointFailsOnce(t *testing.T) {
	c := newCrash(t, "")
	every := 1
	if !long {
		every = 13
	}
	failed, at, seen := 0, 0, 0
	var last Point
	c.node.Watch.Decide = func(p Point) Verdict {
		c.killer.mu.Lock()
		defer c.killer.mu.Unlock()
		if p.File == "reply" {
			return Verdict{}
		}
		if seen++; seen != at {
			return Verdict{}
		}
		failed, last = failed+1, p
		return Verdict{Fail: syscall.EIO}
	}
	c.must("start", c.node.Start())
	for point := 1; ; point += every {
		c.killer.mu.Lock()
		at, seen = point, 0
		before := failed
		c.killer.mu.Unlock()
		for range 12 { // jobs
			job, err := c.one()
			if err != nil && !refusedAsNode(err, "input/output error") {
				t.Fatalf("%s fails: grant: %v", last.Kind(), err)
			}
			if job.ID%3 != 0 {
				continue
			}
			if err := c.record.Release(job); err != nil && !refusedAsNode(err, "input/output error") {
				t.Fatalf("%s fails: release: %v", last.Kind(), err)
			}
		}
		c.killer.mu.Lock()
		at = 0
		c.killer.last, c.killer.at = last, point
		done := failed == before
		c.killer.mu.Unlock()
		if !c.node.Alive() {
			t.Fatalf("%s fails: gresd ended", last.Kind())
		}
		c.node.Kill()
		c.recover()
		if done {
			break
		}
	}
	t.Logf("%d points failed", failed)
	if failed < 15 {
		t.Errorf("%d points failed: want 15", failed)
	}
}
