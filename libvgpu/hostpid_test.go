// SPDX-License-Identifier: Apache-2.0

package libvgpu

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// inNamespace is a process in a PID namespace of its own, where it has pid 1.
type inNamespace struct {
	*exec.Cmd
	host uint32
	slot SlotView
}

func startInNamespace(t *testing.T) inNamespace {
	t.Helper()
	cmd := exec.Command("sleep", "300")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Skipf("PID namespaces are not allowed here: %v", err)
	}
	p := inNamespace{Cmd: cmd, host: uint32(cmd.Process.Pid)}
	start, life := startTime(p.host)
	ns := nsInode(strconv.Itoa(int(p.host)), "pid")
	if life != lives || ns == 0 || ns == ownPIDNS() {
		t.Fatalf("start time %d, namespace %d, ours %d", start, ns, ownPIDNS())
	}
	p.slot = SlotView{SlotOwner: SlotOwner{Owner: ns%nsUnknown<<54 | 1<<32 | start&0xffffffff}, PID: 1, StartTime: start, PIDNS: ns}
	return p
}

func (p inNamespace) end() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

// soon is patience for a scan.
func soon() *patience { return &patience{time.Now().Add(10 * time.Second)} }

// mustSeeAll skips where gresd would not be able to prove anything.
func mustSeeAll(t *testing.T) {
	t.Helper()
	if ownPIDNS() != firstPIDNS || !hasPtrace() {
		t.Skip("not root in the first PID namespace")
	}
}

func TestFindsAProcessOfAnotherPIDNamespace(t *testing.T) {
	p := startInNamespace(t)
	defer p.end()
	var h hostPIDs
	if got, v := h.find(&p.slot, time.Now(), soon()); v != found || got != p.host {
		t.Errorf("%d, verdict %d; want %d, found", got, v, p.host)
	}
	change := func(f func(s *SlotView)) SlotView {
		s := p.slot
		f(&s)
		return s
	}
	for name, c := range map[string]struct {
		slot SlotView
		want verdict
	}{
		"another start time":                       {change(func(s *SlotView) { s.StartTime++ }), absent},
		"another pid":                              {change(func(s *SlotView) { s.PID = 4000001 }), absent},
		"another namespace":                        {change(func(s *SlotView) { s.Owner ^= 1 << 54; s.PIDNS++ }), absent},
		"a namespace with the same bits":           {change(func(s *SlotView) { s.PIDNS += nsUnknown }), unknown},
		"no namespace yet, while it is claimed":    {change(func(s *SlotView) { s.PIDNS = 0 }), unknown},
		"that of the last owner, while it is":      {change(func(s *SlotView) { s.PIDNS += 7 }), unknown},
		"bits not known":                           {change(func(s *SlotView) { s.Owner |= nsUnknown << 54 }), found},
		"neither known":                            {change(func(s *SlotView) { s.Owner |= nsUnknown << 54; s.PIDNS = 0 }), unknown},
		"neither known, and another start time":    {change(func(s *SlotView) { s.Owner |= nsUnknown << 54; s.PIDNS = 0; s.StartTime += 1 << 20 }), absent},
		"neither known, nor when it was started":   {change(func(s *SlotView) { s.Owner |= nsUnknown << 54; s.PIDNS, s.StartTime = 0, 0 }), unknown},
		"not known when it started":                {change(func(s *SlotView) { s.StartTime = 0 }), unknown},
		"of a pid that only others have, no start": {change(func(s *SlotView) { s.PID, s.StartTime = 4000001, 0 }), absent},
	} {
		if _, got := h.match(&c.slot); got != c.want {
			t.Errorf("%s: verdict %d, want %d", name, got, c.want)
		}
	}
	// Where start times read differently, another one is no proof.
	h.known[1] = append([]nsProcess{}, h.known[1]...)
	for i := range h.known[1] {
		h.known[1][i].otherTime = true
	}
	if s := change(func(s *SlotView) { s.StartTime += 1000 }); true {
		if _, got := h.match(&s); got != unknown {
			t.Errorf("in another time namespace: verdict %d, want unknown", got)
		}
	}
}

func TestWhatAScanProves(t *testing.T) {
	mustSeeAll(t)
	p := startInNamespace(t)
	var l liveness
	l.first = time.Now()
	look := func(s SlotView) liveness {
		l.look(&s, time.Now(), soon(), nil)
		return l
	}
	if got := look(p.slot); !got.alive || !got.onHost || got.gone || got.hostPID != p.host {
		t.Errorf("alive: %+v, want pid %d", got, p.host)
	}
	// It may say that it is somebody else: that one has another start time.
	liar := p.slot
	liar.HostPID = uint32(os.Getpid())
	if got := look(liar); got.hostPID != p.host {
		t.Errorf("a slot that names another process passed for %d", got.hostPID)
	}
	p.end()
	if got := look(p.slot); got.alive || got.onHost || !got.gone {
		t.Errorf("after its end: %+v", got)
	}
	l = liveness{first: time.Now()} // never seen alive
	if got := look(p.slot); got.alive || got.onHost || !got.gone {
		t.Errorf("after its end, never seen: %+v", got)
	}

	// A scan that is older than the slot proves nothing, nor one that did not see all.
	old := hostPIDs{began: time.Now(), ended: time.Now(), took: time.Hour, complete: true}
	if _, v := old.find(&p.slot, old.began.Add(time.Second), nil); v == absent {
		t.Error("proved by a scan that began before")
	}
	if _, v := old.find(&p.slot, old.began, nil); v != absent {
		t.Errorf("by a scan that began in time: verdict %d, want absent", v)
	}
	old.complete = false
	if _, v := old.find(&p.slot, old.began, nil); v != unknown {
		t.Errorf("by a scan that did not see all: verdict %d, want unknown", v)
	}
}

// A storm of processes in and out of namespaces: those that live are never taken for
// ended, and those that are killed are found so. VGPU_LONG: 40 s.
func TestTheLivingAreNeverTakenForEnded(t *testing.T) {
	mustSeeAll(t)
	path := createCache(t)
	r, err := OpenCache(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	length := 2500 * time.Millisecond
	if os.Getenv("VGPU_LONG") != "" {
		length = 40 * time.Second
	}
	stop := time.Now().Add(length)
	var wg sync.WaitGroup
	var born atomic.Int64
	for i := range 4 {
		wg.Go(func() {
			for time.Now().Before(stop) {
				// With threads that exec: the first thread is another one then.
				cmd := exec.Command("sh", "-c", "true & true & exec true")
				cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
				if i%2 == 0 {
					cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
				}
				if cmd.Run() == nil {
					born.Add(1)
				}
			}
		})
	}
	const slots = 24
	living := make([]inNamespace, slots)
	claim := func(i int) {
		living[i] = startInNamespace(t)
		s := living[i].slot
		putSlot(t, path, i, 1, 0, s.StartTime, 1<<20)
		putNamespace(t, path, i, s.Owner, s.PIDNS)
		if _, err := openRW(t, path).WriteAt([]byte{slots}, cacheAt+32); err != nil { // all in use
			t.Fatal(err)
		}
	}
	for i := range living {
		claim(i)
	}
	rounds, proved := 0, 0
	killed := map[uint64]int{}
	// At the end, those that are still to be found.
	for ; time.Now().Before(stop) || len(killed) > 0 && time.Now().Before(stop.Add(10*time.Second)); rounds++ {
		for range rand.IntN(4) {
			i := rand.IntN(slots)
			if _, twice := killed[living[i].slot.Owner]; !twice && time.Now().Before(stop) {
				killed[living[i].slot.Owner] = i
				living[i].end()
			}
		}
		owners, _, err := r.Ended(slots, time.Now().Add(200*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		for _, owner := range owners {
			i, dead := killed[owner]
			if !dead {
				t.Fatalf("round %d: a living process was taken for ended: %#x", rounds, owner)
			}
			delete(killed, owner)
			proved++
			claim(i)
		}
	}
	if len(killed) > 0 {
		t.Errorf("%d of the killed were not found", len(killed))
	}
	wg.Wait()
	for _, p := range living {
		p.end()
	}
	if proved == 0 || rounds < 3 {
		t.Errorf("%d rounds, %d ends: nothing was tried", rounds, proved)
	}
	t.Logf("%d rounds, %d ends found, %d processes beside", rounds, proved, born.Load())
}

// A first thread that has ended while others run is no zombie.
func TestAProcessLivesWithoutItsFirstThread(t *testing.T) {
	const program = `import ctypes, threading, time
threading.Thread(target=lambda: time.sleep(60)).start()
ctypes.CDLL(None).pthread_exit(None)`
	cmd := exec.Command("python3", "-c", program)
	if err := cmd.Start(); err != nil {
		t.Skip("no python3 on this system")
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	stat := fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(stat)
		if err != nil || time.Now().After(end) {
			t.Fatalf("no such process: %s, %v", text, err)
		}
		if i := len(fmt.Sprintf("%d (python3) ", cmd.Process.Pid)); len(text) > i && text[i] == 'Z' {
			break
		}
	}
	if _, life := startTime(uint32(cmd.Process.Pid)); life != lives {
		t.Error("taken for ended")
	}
}

// The stat of a process that has ended since its file was opened is an error to read.
func TestWhatCannotBeReadIsNotTold(t *testing.T) {
	var buf [64]byte
	for _, path := range []string{"/proc/self", "/proc/self/mem", "/proc/no such file", "\x00", "/proc/self/status"} {
		if text, ok := readSmall(path, buf[:]); ok {
			t.Errorf("%q: %d bytes, want it refused", path, len(text))
		}
	}
	if start, life := parseStat(nil); start != 0 || life != unseen {
		t.Errorf("an empty line: started at %d, %d, want 0, %d", start, life, unseen)
	}
}
