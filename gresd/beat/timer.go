// SPDX-License-Identifier: Apache-2.0

package beat

import (
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Timer is a timer of the kernel's, for what happens many times a second. At each end
// of one of Go's own timers an idle program is woken twice: Go's monitor thread wakes
// with them, and then looks every 20 µs at what is done.
type Timer struct {
	C    <-chan struct{} // of one; it may also speak of an end before the last Reset
	file *os.File        // nil: there is none
	fd   uintptr
	own  *time.Timer // where the kernel has none for us
}

// NewTimer returns a timer that does not run. Stop frees it.
func NewTimer() *Timer {
	ended := make(chan struct{}, 1)
	t := &Timer{C: ended}
	tell := func() {
		select {
		case ended <- struct{}{}:
		default:
		}
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		t.own = time.AfterFunc(time.Hour, tell)
		t.own.Stop()
		return t
	}
	t.file, t.fd = os.NewFile(uintptr(fd), "timer"), uintptr(fd)
	conn, err := t.file.SyscallConn()
	if err != nil {
		panic(err) // the file is open
	}
	go listen(conn, tell)
	return t
}

// listen tells of every end until the file is closed.
func listen(conn syscall.RawConn, tell func()) {
	for {
		var ends uint64
		err := conn.Read(func(fd uintptr) bool {
			// It never waits, so Go's scheduler is not told of it, which would wake
			// that thread after all.
			_, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&ends)), unsafe.Sizeof(ends))
			return errno == 0
		})
		if err != nil {
			return
		}
		tell()
	}
}

// Reset lets the timer end once, after d; whatever it did before is over.
func (t *Timer) Reset(d time.Duration) {
	d = max(d, 1) // 0 would stop it
	if t.file == nil {
		t.own.Reset(d)
		return
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	_, _, errno := unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, t.fd, 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	if errno != 0 {
		panic(os.NewSyscallError("timerfd_settime", errno)) // the file is open, and the time valid
	}
}

// Stop frees the timer.
func (t *Timer) Stop() {
	if t.file == nil {
		t.own.Stop()
		return
	}
	_ = t.file.Close()
}
