// SPDX-License-Identifier: Apache-2.0

package wakeup

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sleeper lets one goroutine sleep many times a second, until a time or until others wake
// it, with a timer of the kernel's. At each end of one of Go's own an idle program is woken
// twice: Go's monitor thread wakes with them, and then looks every 20 µs at what is done.
// Nor does it wait at a channel, which somebody else would have to fill: two goroutines
// that wake each other wake two threads.
//
// A Sleeper is ready for use.
type Sleeper struct {
	woken atomic.Bool
	mu    sync.Mutex
	timer timer // nil before the first sleep, and after Stop
}

// timer ends once after each set, if it is not set again before.
type timer interface {
	set(d time.Duration) // d > 0
	wait()               // for an end, or the end of the timer itself
	stop()
}

// Sleep returns when d has passed or somebody has called Wake since it last returned;
// woken says which. Seldom it returns a little early. It is for one goroutine.
func (s *Sleeper) Sleep(d time.Duration) (woken bool) {
	s.mu.Lock()
	if s.timer == nil {
		s.timer = newTimer()
	}
	t := s.timer
	s.mu.Unlock()
	t.set(max(d, 1))
	// Who wakes says so first and sets the timer then: one of both is seen.
	if s.woken.Swap(false) {
		return true
	}
	t.wait()
	return s.woken.Swap(false)
}

// Wake ends the sleep, or the next one at once. It never blocks.
func (s *Sleeper) Wake() {
	s.woken.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.set(1)
	}
}

// Stop frees the timer. Nobody may sleep meanwhile.
func (s *Sleeper) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.stop()
		s.timer = nil
	}
}

func newTimer() timer {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		t := &goTimer{ended: make(chan struct{}, 1)}
		t.own = time.AfterFunc(time.Hour, t.tell)
		return t
	}
	t := &kernelTimer{file: os.NewFile(uintptr(fd), "timer"), fd: uintptr(fd)}
	if t.conn, err = t.file.SyscallConn(); err != nil {
		panic(err) // the file is open
	}
	t.read = t.over
	return t
}

// kernelTimer tells Go's scheduler of none of its calls: they never wait, and to be told
// wakes its monitor thread.
type kernelTimer struct {
	file *os.File
	fd   uintptr
	conn syscall.RawConn
	ends uint64
	read func(fd uintptr) bool // over
}

func (t *kernelTimer) set(d time.Duration) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	_, _, errno := unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, t.fd, 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	if errno != 0 {
		panic(os.NewSyscallError("timerfd_settime", errno)) // the file is open, and the time valid
	}
}

func (t *kernelTimer) wait() { _ = t.conn.Read(t.read) } // an error: the file was closed

func (t *kernelTimer) over(fd uintptr) bool {
	_, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&t.ends)), unsafe.Sizeof(t.ends))
	return errno == 0
}

func (t *kernelTimer) stop() { _ = t.file.Close() }

// goTimer is for a program that has as many files open as it may.
type goTimer struct {
	own   *time.Timer
	ended chan struct{} // of one; it may also speak of an end before the last set
}

func (t *goTimer) tell() {
	select {
	case t.ended <- struct{}{}:
	default:
	}
}

func (t *goTimer) set(d time.Duration) { t.own.Reset(d) }

func (t *goTimer) wait() { <-t.ended }

func (t *goTimer) stop() { t.own.Stop(); t.tell() }
