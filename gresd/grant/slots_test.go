// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

func become() {
	if err := Become(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestMain plays the children.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case "clear":
		n, err := ClearInherited(os.Args[2:])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(n)
	case "who":
		become()
		files, _ := filepath.Glob("/proc/self/fd/*")
		fmt.Fprintf(os.Stderr, "user %d group %d", os.Getuid(), os.Getgid())
		for _, f := range files {
			name, _ := os.Readlink(f)
			fmt.Fprintf(os.Stderr, " %s", filepath.Base(name))
		}
		os.Exit(1)
	case "cut": // the job's user cuts the file while the child has it mapped
		mem, err := unix.Mmap(cacheFD, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == nil {
			err = unix.Ftruncate(cacheFD, 0)
		}
		if err == nil {
			mem[0] = 1
		}
		os.Exit(0) // not reached
	case "flood":
		for range 50 {
			fmt.Println(strings.Repeat("1", 100_000))
		}
	case "hang":
		become()
		time.Sleep(time.Minute)
	default:
		os.Exit(m.Run())
	}
}

type fakeGrants struct {
	view  libvgpu.CacheView
	cache string
}

func (f *fakeGrants) Open() []uint32 { return []uint32{7} }
func (f *fakeGrants) Spec(uint32) (libvgpu.GrantSpec, bool) {
	return libvgpu.GrantSpec{JobID: 7, UID: nobody, GID: 33}, true
}
func (f *fakeGrants) Cache(uint32, time.Duration) (libvgpu.CacheView, error) { return f.view, nil }
func (f *fakeGrants) OpenCache(uint32) (*os.File, error) {
	return os.OpenFile(f.cache, os.O_RDWR, 0)
}

func slot(index uint32, alive, onHost, gone bool) libvgpu.SlotView {
	return libvgpu.SlotView{SlotOwner: libvgpu.SlotOwner{Index: index, Owner: 99 + uint64(index)}, Alive: alive, OnHost: onHost, Gone: gone}
}

func TestOnlySlotsThatWereDeadTwiceAreCleared(t *testing.T) {
	f := &fakeGrants{cache: "/dev/null"}
	var cleared []libvgpu.SlotOwner
	var failure error
	r := NewSlotReclaimer(f, func(_ context.Context, _ *os.File, uid, gid uint32, dead []libvgpu.SlotOwner) (int, error) {
		if uid != nobody || gid != 33 {
			t.Errorf("as user %d, group %d", uid, gid)
		}
		cleared = append(cleared, dead...)
		return len(dead), failure
	}, slog.New(slog.DiscardHandler))
	now := time.Now()
	at := func(after time.Duration, want int, slots ...libvgpu.SlotView) {
		t.Helper()
		f.view.Slots, cleared = slots, nil
		if r.step(t.Context(), now.Add(after)); len(cleared) != want {
			t.Errorf("after %v: cleared %v, want %d", after, cleared, want)
		}
	}
	alive, gone, other := slot(0, true, true, false), slot(1, false, false, true), slot(2, false, false, true)
	at(0, 0, alive, gone)
	at(900*time.Millisecond, 0, alive, gone, other) // woken early
	at(1000*time.Millisecond, 1, alive, gone, other)
	at(1900*time.Millisecond, 1, alive, other)
	at(2000*time.Millisecond, 0, alive, slot(3, false, false, false)) // never seen here
	again := gone
	again.Owner++ // the same place, another process
	at(3000*time.Millisecond, 0, alive, again)
	at(3500*time.Millisecond, 0, alive)
	at(4000*time.Millisecond, 0, alive, again) // its first look was forgotten
	foreign := slot(4, true, false, false)
	at(4900*time.Millisecond, 0, alive, again, foreign)
	at(6000*time.Millisecond, 1, alive, again, foreign) // of which nothing is known
	at(7000*time.Millisecond, 0, alive, foreign)
	at(7100*time.Millisecond, 0, alive, again)
	failure = errors.New("no")
	at(8100*time.Millisecond, 1, alive, again)
	at(9000*time.Millisecond, 0, alive, again) // left alone for a while
	at(39*time.Second, 1, alive, again)
}

func TestRunStopsAndSleeps(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	r := NewSlotReclaimer(&fakeGrants{}, nil, slog.New(slog.DiscardHandler))
	go func() { r.Run(ctx); close(done) }()
	r.Wake()
	r.Wake()
	cancel()
	<-done
}

// deadCache is a cache of nobody's with a slot of a dead process.
func deadCache(t *testing.T) (string, libvgpu.SlotOwner) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cache")
	spec := libvgpu.GrantSpec{JobID: 7, UID: nobody, Cards: []libvgpu.GrantCard{{UUID: "GPU-a", MemLimit: 1 << 30}}}
	if err := libvgpu.CreateCache(path, spec, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	owner := uint64(cmd.Process.Pid) << 32
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	words := make([]byte, 72)
	for i := range 8 {
		words[i] = byte(owner >> (8 * i))
	}
	words[64] = 5 // bytes of memory
	const slots, high = 2097152 + 3072, 2097152 + 32
	if _, err := f.WriteAt(words, slots); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{1}, high); err != nil {
		t.Fatal(err)
	}
	return path, libvgpu.SlotOwner{Index: 0, Owner: owner}
}

func TestSlotChild(t *testing.T) {
	path, dead := deadCache(t)
	file := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	const self = "/proc/self/exe"
	secret, err := os.OpenFile(filepath.Join(t.TempDir(), "secret"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	_, err = ClearInChild(self, "who")(t.Context(), file(), nobody, nobody, nil)
	if want := fmt.Sprintf("user %d group %d ", nobody, nobody); err == nil || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), " cache") || strings.Contains(err.Error(), "secret") {
		t.Errorf("child: %v, want %s, and of our files only the cache", err, want)
	}
	if n, err := ClearInChild(self, "clear")(t.Context(), file(), nobody, nobody, []libvgpu.SlotOwner{{Index: 0, Owner: 1}}); err != nil || n != 0 {
		t.Errorf("slot of another owner: %d, %v", n, err)
	}
	if n, err := ClearInChild(self, "clear")(t.Context(), file(), nobody, nobody, []libvgpu.SlotOwner{dead}); err != nil || n != 1 {
		t.Errorf("slot of a dead process: %d, %v", n, err)
	}
	if view, err := libvgpu.ReadCache(path); err != nil || len(view.Slots) != 0 {
		t.Errorf("left: %+v, %v", view.Slots, err)
	}
	if n, err := ClearInChild("/bin/echo")(t.Context(), file(), nobody, nobody, []libvgpu.SlotOwner{dead}); err == nil {
		t.Errorf("another answer: %d", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := ClearInChild(self, "hang")(ctx, file(), nobody, nobody, []libvgpu.SlotOwner{dead}); err == nil || time.Since(start) > 3*time.Second {
		t.Errorf("child that hangs: %v after %v", err, time.Since(start))
	}
	if _, err := ClearInChild(self, "cut")(t.Context(), file(), nobody, nobody, nil); err == nil || !strings.Contains(err.Error(), "fault address") {
		t.Errorf("child whose file is cut: %v, want a fault, and in the child only", err)
	}
	if _, err := ClearInChild(self, "clear")(t.Context(), file(), nobody, nobody, []libvgpu.SlotOwner{dead}); err == nil || !strings.Contains(err.Error(), "not a cache") {
		t.Errorf("cut file: %v", err)
	}
}

func TestClearInheritedRefuses(t *testing.T) {
	for _, words := range [][]string{nil, {"0:0"}, {"", "[]"}, {"1", "[]"}, {"0:x", "[]"}, {"-1:0", "[]"}, {"4294967296:0", "[]"}} {
		if n, err := ClearInherited(words); err == nil || !strings.Contains(err.Error(), "UID:GID") {
			t.Errorf("%q: %d, %v", words, n, err)
		}
	}
}

// The child is outside of the job's cgroup, and may do what gresd's children may.
// Its user must not get into it, though it has that user's rights.
func TestTheUserCannotTakeTheChildOver(t *testing.T) {
	path, dead := deadCache(t)
	cache, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan bool)
	go func() {
		defer close(ended)
		_, _ = ClearInChild("/proc/self/exe", "hang")(ctx, cache, nobody, nobody, []libvgpu.SlotOwner{dead})
	}()
	defer func() { cancel(); <-ended }()
	pid := 0
	for end := time.Now().Add(5 * time.Second); pid == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		tasks, _ := os.ReadFile("/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/children")
		all, _ := filepath.Glob("/proc/self/task/*/children")
		for _, file := range all {
			more, _ := os.ReadFile(file)
			tasks = append(append(tasks, ' '), more...)
		}
		for _, word := range strings.Fields(string(tasks)) {
			status, _ := os.ReadFile("/proc/" + word + "/status")
			if strings.Contains(string(status), fmt.Sprintf("\nUid:\t%[1]d\t%[1]d", nobody)) {
				pid, _ = strconv.Atoi(word)
			}
		}
	}
	if pid == 0 {
		t.Fatal("no child of that user")
	}
	script := fmt.Sprintf("cat /proc/%[1]d/environ || ls /proc/%[1]d/fd || cat /proc/%[1]d/maps || true >/proc/%[1]d/mem", pid)
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("its user gets into it: %s", out)
	}
}

// What a child prints is its user's: gresd keeps little of it.
func TestAChildThatTalks(t *testing.T) {
	path, dead := deadCache(t)
	cache, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	_, err = ClearInChild("/proc/self/exe", "flood")(t.Context(), cache, nobody, nobody, []libvgpu.SlotOwner{dead})
	if err == nil || len(err.Error()) > 2*mostSaid {
		t.Errorf("got an error of %d bytes, want one, of %d at most", len(fmt.Sprint(err)), 2*mostSaid)
	}
}
