// SPDX-License-Identifier: Apache-2.0

package libvgpu

import (
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What is read here is in memory (the cache file like the grant, which is mapped) or made
// by the kernel at once. So these are calls of which Go's scheduler is not told: with
// others it wakes, each time, a thread that sees to it that a long call holds nobody up,
// and that costs more than the reading.

// pread fills buf from a place of an open file; [io.ErrUnexpectedEOF]: it is shorter.
func pread(fd int, buf []byte, at int64) error {
	for len(buf) > 0 {
		n, _, errno := unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), uintptr(at), 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return os.NewSyscallError("pread", errno)
		case n == 0:
			return io.ErrUnexpectedEOF
		default:
			buf, at = buf[n:], at+int64(n)
		}
	}
	return nil
}

// checkSize is checkRegular of an open file.
func checkSize(fd int, size int64, sentinel error) error {
	var st unix.Stat_t
	if _, _, errno := unix.RawSyscall(unix.SYS_FSTAT, uintptr(fd), uintptr(unsafe.Pointer(&st)), 0); errno != 0 {
		return os.NewSyscallError("fstat", errno)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != size {
		return fmt.Errorf("%w: mode 0%o, %d bytes; want a file of %d bytes", sentinel, st.Mode, st.Size, size)
	}
	return nil
}

// readSmall reads a file of /proc that fits into buf with one reading.
func readSmall(path string, buf []byte) (text []byte, ok bool) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return nil, false
	}
	here, errno := unix.AT_FDCWD, unix.EINTR
	var fd, got uintptr
	for errno == unix.EINTR {
		fd, _, errno = unix.RawSyscall6(unix.SYS_OPENAT, uintptr(here), uintptr(unsafe.Pointer(name)), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0)
	}
	if errno != 0 {
		return nil, false
	}
	for errno = unix.EINTR; errno == unix.EINTR; {
		got, _, errno = unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
	}
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	if errno != 0 { // of a process that has ended since its file was opened, say
		return nil, false
	}
	return buf[:got], int(got) < len(buf)
}
