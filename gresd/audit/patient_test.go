// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hang makes a file of which a reader waits until it is let go.
func (p fakeProc) hang(pid, name string) (letGo func()) {
	p.t.Helper()
	path := filepath.Join(p.dir, pid, name)
	if err := os.Remove(path); err != nil {
		p.t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return func() {
		if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			_ = unix.Close(fd)
		}
	}
}

// withJobNine has process 5, gresd, and 100, the slurmstepd of job 9.
func withJobNine(t *testing.T) (fakeProc, *table) {
	p := fakeProc{t, t.TempDir()}
	p.put(1, 0, 0, nil)
	p.put(5, 1, 0, map[string]string{"ns/pid": "-> pid:[1]"})
	p.put(100, 1, 0, map[string]string{"cmdline": "slurmstepd: [9.batch]\x00", "exe": "-> /usr/sbin/slurmstepd"})
	return p, newTable(p.dir, 5)
}

// A process whose user lets readers wait, for its memory map, its environment or its parent's command
// line, holds up nothing but what concerns it.
func TestAProcessThatDoesNotAnswerIsLeftBehind(t *testing.T) {
	p, table := withJobNine(t)
	p.put(200, 100, 1000, nil)
	p.put(201, 100, 1000, map[string]string{"fd/3": "-> /dev/nvidia0"})
	p.put(202, 1, 1000, map[string]string{"cgroup": "0::/\n"})
	p.put(203, 100, 1000, nil)
	table.stuck.Timeout = 50 * time.Millisecond

	maps, named, environ := p.hang("200", "maps"), p.hang("201", "maps"), p.hang("202", "environ")
	defer named()
	if _, ok := table.look(200); ok {
		t.Error("a process whose map does not come was looked at")
	}
	if f, ok := table.look(201); !ok || f.Job != 9 {
		t.Errorf("the name of its file says what it is: %+v, %t", f, ok)
	}
	if f, ok := table.look(202); !ok || f.Job != 0 {
		t.Errorf("a process without an environment: %+v, %t", f, ok)
	}
	if f, ok := table.look(203); !ok || f.Job != 9 {
		t.Errorf("another of the same job: %+v, %t", f, ok)
	}
	if got := table.stuck.List(); !slices.Equal(got, []uint32{200, 202}) {
		t.Errorf("told to be stuck: %v", got)
	}
	// Once it answers it is looked at as others are.
	maps()
	environ()
	for range 1000 {
		if len(table.stuck.List()) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	p.put(204, 100, 1000, nil)
	if err := os.Rename(filepath.Join(p.dir, "204", "maps"), filepath.Join(p.dir, "200", "maps")); err != nil {
		t.Fatal(err)
	}
	if f, ok := table.look(200); !ok || f.Job != 9 {
		t.Errorf("after it has answered: %+v, %t", f, ok)
	}
}

// A card that a process has open stays visible if the maps of this and many other processes block.
func TestBlockedMapsHideNoCard(t *testing.T) {
	p, table := withJobNine(t)
	card := filepath.Join(t.TempDir(), "card")
	if err := unix.Mknod(card, unix.S_IFCHR|0o600, int(unix.Mkdev(nvidiaMajor, 0))); err != nil {
		t.Skip("only root makes devices")
	}
	table.stuck.Timeout = time.Millisecond
	for pid := 200; pid < 240; pid++ {
		p.put(pid, 100, 1000, nil)
		defer p.hang(fmt.Sprint(pid), "maps")()
		if _, ok := table.look(uint32(pid)); ok {
			t.Fatalf("process %d has no file of a card", pid)
		}
	}
	if err := os.Symlink(card, filepath.Join(p.dir, "200", "fd", "3")); err != nil {
		t.Fatal(err)
	}
	p.put(250, 100, 1000, map[string]string{"fd/3": "-> " + card})
	for _, pid := range []uint32{200, 250} {
		if f, ok := table.look(pid); !ok || f.Job != 9 {
			t.Errorf("process %d: %+v, %t, want one of job 9", pid, f, ok)
		}
	}
}

// However many of a user's processes do not answer, the audit sees what others' do.
func TestOneUsersProcessesHideNobodyElses(t *testing.T) {
	p, table := withJobNine(t)
	p.put(150, 100, 1001, nil)
	table.stuck.Timeout = time.Millisecond
	for pid := 200; pid < 240; pid++ {
		p.put(pid, 1, 1000, nil)
		defer p.hang(fmt.Sprint(pid), "maps")()
		table.look(uint32(pid))
	}
	table.stuck.Timeout = 0
	if f, ok := table.look(150); !ok || f.Job != 9 {
		t.Errorf("another user's: %+v, %t", f, ok)
	}
}
