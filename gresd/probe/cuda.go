// SPDX-License-Identifier: Apache-2.0

package probe

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "cuda.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// reason has the error text of a C function.
type reason [512]C.char

func (r *reason) size() C.size_t { return C.size_t(len(r)) }

func (r *reason) error() error { return errors.New(C.GoString(&r[0])) }

// makeContext makes a CUDA context that lasts as long as the process.
func makeContext(library string, uuid gpu.UUID) error {
	lib, name := C.CString(library), C.CString(string(uuid))
	defer C.free(unsafe.Pointer(lib))
	defer C.free(unsafe.Pointer(name))
	var why reason
	if C.libcuda_make_context(lib, name, &why[0], why.size()) != 0 {
		return fmt.Errorf("make a context on %s: %w", uuid, why.error())
	}
	return nil
}

// TotalMemory returns the first card's memory as this process sees it: from the function by its
// name, and from the function that the CUDA runtime finds. The second is 0 if the driver has no such
// way. It makes no context.
func TotalMemory(library string) (byName, byAddress gpu.Bytes, err error) {
	lib := C.CString(library)
	defer C.free(unsafe.Pointer(lib))
	var why reason
	var name, address C.ulonglong
	if C.libcuda_total_memory(lib, &name, &address, &why[0], why.size()) != 0 {
		return 0, 0, fmt.Errorf("ask %s for memory: %w", library, why.error())
	}
	return gpu.Bytes(name), gpu.Bytes(address), nil
}

// Work keeps the first card busy until standard input is closed.
func Work(library string) error {
	lib := C.CString(library)
	defer C.free(unsafe.Pointer(lib))
	var why reason
	if C.libcuda_work(lib, &why[0], why.size()) != 0 {
		return why.error()
	}
	return nil
}
