// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// playClient opens a file for good, prints that, and waits to be killed.
func playClient(path string) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: 1})
	}
	if err != nil {
		os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	os.Stdout.WriteString("open\n")
	time.Sleep(time.Hour)
}

type fakeGrants struct {
	uid   uint32
	view  libvgpu.CacheView
	ended bool
}

func (g *fakeGrants) Open() []uint32 {
	if g.ended {
		return nil
	}
	return []uint32{7}
}

func (g *fakeGrants) Spec(uint32) (libvgpu.GrantSpec, bool) {
	return libvgpu.GrantSpec{JobID: 7, UID: g.uid}, !g.ended
}

func (g *fakeGrants) Cache(uint32, time.Duration) (libvgpu.CacheView, error) { return g.view, nil }

// newGuard returns a guard that closes its descriptors at the end of the test.
func newGuard(t *testing.T, grants openGrants) *ClientGuard {
	guard := NewClientGuard(grants, func(uint32) bool { return true }, slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		for _, c := range guard.clients {
			c.ended = true
		}
		guard.close(time.Now())
		guard.close(time.Now().Add(2 * maxKeep))
	})
	return guard
}

// served is a guard with a client that has its device open.
type served struct {
	t      *testing.T
	grants *fakeGrants
	guard  *ClientGuard
	client *exec.Cmd
	device string
}

func serve(t *testing.T, uid uint32, card libvgpu.SlotCard) *served {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root makes devices")
	}
	file := filepath.Join(t.TempDir(), uvmDevice)
	if err := unix.Mknod(file, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil { // as /dev/null
		t.Fatal(err)
	}
	return serveFile(t, uid, card, file)
}

// serveFile is serve with another file in the device's place.
func serveFile(t *testing.T, uid uint32, card libvgpu.SlotCard, file string) *served {
	t.Helper()
	s := &served{t: t, device: file}
	s.client = exec.Command(os.Args[0], "client", s.device)
	out, err := s.client.StdoutPipe()
	if err == nil {
		err = s.client.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatalf("%q, %v", line, err)
	}
	pid := uint32(s.client.Process.Pid)
	s.grants = &fakeGrants{uid: uid, view: libvgpu.CacheView{Slots: []libvgpu.SlotView{{
		SlotOwner: libvgpu.SlotOwner{Owner: uint64(pid) << 32}, HostPID: pid, Alive: true, Cards: []libvgpu.SlotCard{card},
	}}}}
	s.guard = newGuard(t, s.grants)
	return s
}

func (s *served) kill() {
	_ = s.client.Process.Kill()
	_ = s.client.Wait() // it was killed
	if s.grants != nil && s.grants.view.Slots != nil {
		s.grants.view.Slots[0].Alive = false
	}
}

// isThere says whether the client's open file has a descriptor anywhere.
func (s *served) isThere() bool {
	s.t.Helper()
	file, err := os.OpenFile(s.device, os.O_RDWR, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer file.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Len: 1}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		s.t.Fatal(err)
	}
	return lock.Type != unix.F_UNLCK
}

func TestWhatAKilledClientHadLaunchedKeepsItsMemory(t *testing.T) {
	measured := libvgpu.SlotCard{Launches: 9, GPUNS: 9e6}
	for name, c := range map[string]struct {
		card    libvgpu.SlotCard
		waits   bool          // then its host waits for all work
		idle    bool          // then it does nothing for a while
		cleared bool          // its slot is, before gresd looks
		want    time.Duration // from its end on
	}{
		"work in flight":              {card: libvgpu.SlotCard{Launches: 9, InflightNS: 20e6}, want: minKeep + 200*time.Millisecond},
		"the same, slot cleared":      {card: libvgpu.SlotCard{Launches: 9, InflightNS: 20e6}, cleared: true, want: minKeep + 200*time.Millisecond},
		"a long kernel":               {card: libvgpu.SlotCard{Launches: 1, InflightNS: 60e9}, want: maxKeep},
		"a number that cannot be":     {card: libvgpu.SlotCard{Launches: 1, InflightNS: 1 << 63}, want: maxKeep},
		"measured":                    {card: measured, want: minKeep},
		"measured, waited for":        {card: measured, waits: true},
		"measured, long ago":          {card: measured, idle: true},
		"measured, slot cleared":      {card: measured, waits: true, cleared: true, want: minKeep},
		"nobody measured":             {card: libvgpu.SlotCard{Launches: 9}, want: keepUnmeasured},
		"nobody measured, waited for": {card: libvgpu.SlotCard{Launches: 9}, waits: true, want: minKeep},
		"nobody measured, long ago":   {card: libvgpu.SlotCard{Launches: 9}, idle: true, want: keepUnmeasured},
		"it has launched nothing":     {},
	} {
		t.Run(name, func(t *testing.T) {
			c.card.Mem = 1 << 30
			s := serve(t, uint32(os.Getuid()), c.card)
			now := time.Now()
			s.guard.look(now)
			if c.waits {
				now = now.Add(guardEvery)
				s.grants.view.Slots[0].Cards[0].Syncs++
				s.guard.look(now)
			}
			if c.idle {
				now = now.Add(recentLaunch + time.Millisecond)
			}
			s.kill()
			if c.cleared {
				s.grants.view.Slots = nil
			}
			if !s.isThere() {
				t.Fatal("it is gone with the client")
			}
			if s.guard.look(now); s.isThere() != (c.want > 0) {
				t.Fatalf("right after its death: kept %v, want it for %s", s.isThere(), c.want)
			}
			if c.want == 0 {
				return
			}
			if now = now.Add(c.want - time.Millisecond); !s.guard.keeps(7, now) || !s.isThere() {
				t.Errorf("gone before %s", c.want)
			}
			if got := s.guard.Memory(7, 0); got != 1<<30 {
				t.Errorf("%d bytes count for the job", got)
			}
			if s.guard.keeps(8, now) {
				t.Error("another job has to wait")
			}
			if now = now.Add(time.Millisecond); s.guard.keeps(7, now) || s.isThere() {
				t.Errorf("there after %s", c.want)
			}
			if got := s.guard.Memory(7, 0); got != 0 {
				t.Errorf("%d bytes count for the job afterwards", got)
			}
		})
	}
}

func TestALivingClientHoldsUpNobody(t *testing.T) {
	s := serve(t, uint32(os.Getuid()), libvgpu.SlotCard{Launches: 9, InflightNS: 20e6})
	now := time.Now()
	s.guard.look(now)
	if s.guard.keeps(7, now.Add(time.Hour)) {
		t.Error("it is waited for")
	}
}

func TestAnotherProgramHasNoPartInTheOldOnes(t *testing.T) {
	s := serve(t, uint32(os.Getuid()), libvgpu.SlotCard{Launches: 9, InflightNS: 20e6})
	now := time.Now()
	s.guard.look(now)
	s.grants.view.Slots[0].Cards[0] = libvgpu.SlotCard{Launches: 1} // its process has called exec
	now = now.Add(guardEvery)
	s.guard.look(now)
	if !s.guard.keeps(7, now) {
		t.Error("what it had launched is not kept")
	}
	if s.guard.keeps(7, now.Add(maxKeep)) {
		t.Error("it is kept while the process lives")
	}
	if s.kill(); !s.isThere() {
		t.Error("what the process has open now is not kept")
	}
}

// Users can call any file so, and one of a file system of theirs would hold up who closes it.
func TestOnlyADeviceIsKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), uvmDevice)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := serveFile(t, uint32(os.Getuid()), libvgpu.SlotCard{Launches: 9, InflightNS: 20e6}, file)
	s.guard.look(time.Now())
	if s.kill(); s.isThere() {
		t.Error("a file is kept")
	}
}

func TestAUserWhoseFilesDoNotAnswerDelaysNobodyElseForLong(t *testing.T) {
	s := serve(t, uint32(os.Getuid()), libvgpu.SlotCard{Launches: 9, InflightNS: 20e6})
	file, err := os.Open(s.device) // the test itself is the other user's client
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const other = 65534
	end, is := make(chan struct{}), isDevice
	isDevice = func(dir int, name string) bool {
		if strings.HasPrefix(name, string(process.Of(os.Getpid()))+"/") {
			<-end
		}
		return is(dir, name)
	}
	defer func() {
		for close(end); s.guard.stuck.Blocked(other) > 0; {
			time.Sleep(time.Millisecond)
		}
		isDevice = is
	}()
	began := time.Now()
	for job := range uint32(40) {
		s.guard.list(&client{job: 100 + job, pid: os.Getpid()}, other, began)
	}
	if took := time.Since(began); took < listTimeout || took > 4*listTimeout {
		t.Errorf("all have waited %s for one user, want %s", took, listTimeout)
	}
	s.guard.look(time.Now())
	if s.kill(); !s.isThere() {
		t.Error("what another user's client has open is not kept")
	}
}

// usersGrants are jobs of several users.
type usersGrants struct{ fakeGrants }

func (g *usersGrants) Open() []uint32 { return []uint32{7, 8, 9} }

func (g *usersGrants) Spec(job uint32) (libvgpu.GrantSpec, bool) {
	return libvgpu.GrantSpec{JobID: job, UID: 60000 + job}, true
}

// Files of several users do not answer. A look waits for one of them only, and an Epilog for none.
func TestALookHasOneDeadline(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root's process can be the client of all users")
	}
	file, err := os.Create(filepath.Join(t.TempDir(), uvmDevice))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	pid := uint32(os.Getpid())
	grants := &usersGrants{fakeGrants{view: libvgpu.CacheView{Slots: []libvgpu.SlotView{{
		SlotOwner: libvgpu.SlotOwner{Owner: uint64(pid) << 32}, HostPID: pid, Alive: true, Cards: []libvgpu.SlotCard{{Launches: 9}},
	}}}}}
	guard := newGuard(t, grants)
	end, is := make(chan struct{}), isDevice
	isDevice = func(int, string) bool { <-end; return false }
	defer func() {
		for close(end); len(guard.stuck.List()) > 0; {
			time.Sleep(time.Millisecond)
		}
		isDevice = is
	}()
	if guard.keeps(8, time.Now()); len(guard.stuck.List()) != 0 {
		t.Errorf("an Epilog has waited for users %v", guard.stuck.List())
	}
	for look := range 3 {
		if guard.look(time.Now()); len(guard.stuck.List()) != look+1 {
			t.Errorf("look %d: waited for users %v, want one more in each look", look, guard.stuck.List())
		}
	}
}

func TestAJobHasABoundedNumberOfDescriptors(t *testing.T) {
	s := serve(t, uint32(os.Getuid()), libvgpu.SlotCard{Launches: 1 << 20, InflightNS: 20e6})
	now := time.Now()
	for range 2 * maxKept { // each look another program, by what its slot says
		s.guard.look(now)
		s.grants.view.Slots[0].Cards[0].Launches--
	}
	if n := s.guard.descriptors(7); n < maxKept/2 || n > maxKept+1 {
		t.Errorf("%d descriptors", n)
	}
}

func TestAProcessThatOutlivesItsJobIsNotKept(t *testing.T) {
	s := serve(t, uint32(os.Getuid()), libvgpu.SlotCard{Launches: 9, InflightNS: 20e6})
	now := time.Now()
	s.guard.look(now)
	s.grants.ended = true
	s.guard.look(now)
	if s.guard.look(now.Add(maxKeep)); s.guard.descriptors(7) != 0 {
		t.Error("it is kept while it lives")
	}
}

func TestProcessesOfOtherUsersAreNotKept(t *testing.T) {
	cmd, uid := exec.Command("sleep", "60"), uint32(os.Getuid())
	if uid == 0 {
		uid = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	k := newGuard(t, &fakeGrants{})
	if k.openClient(7, cmd.Process.Pid, uid) == nil {
		t.Error("a process of the job's user is not kept")
	}
	if k.openClient(7, cmd.Process.Pid, uid+1) != nil {
		t.Error("a process of another user is kept")
	}
}
