// SPDX-License-Identifier: Apache-2.0

package gputime

/*
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>

static int vgpu_open(const char *path)
{
	return open(path, O_RDWR | O_CLOEXEC);
}

static int vgpu_ioctl(int fd, unsigned long request, void *arg)
{
	return ioctl(fd, request, arg);
}
*/
import "C"

import "unsafe"

// The driver's files are opened and called through libc, and not by system calls of
// this program's own, so that what stands in for the driver can be preloaded
// (tests/simgpu/librm).

// openFile opens a file of the driver for reading and writing; it is closed on exec.
func openFile(path string) (fd int, err error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	n, err := C.vgpu_open(name)
	if n < 0 {
		return -1, err
	}
	return int(n), nil
}

// ioctl calls the driver. What arg points to holds no pointers that Go knows of.
func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	if n, err := C.vgpu_ioctl(C.int(fd), C.ulong(request), arg); n < 0 {
		return err
	}
	return nil
}
