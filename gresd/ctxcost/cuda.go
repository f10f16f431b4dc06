// SPDX-License-Identifier: Apache-2.0

package ctxcost

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

// makeContext makes a CUDA context that lasts as long as the process.
func makeContext(library string, uuid gpu.UUID) error {
	lib, name := C.CString(library), C.CString(string(uuid))
	defer C.free(unsafe.Pointer(lib))
	defer C.free(unsafe.Pointer(name))
	var why [512]C.char
	if C.probe_make_context(lib, name, &why[0], C.size_t(len(why))) != 0 {
		return fmt.Errorf("make a context on %s: %w", uuid, errors.New(C.GoString(&why[0])))
	}
	return nil
}

// TotalMemory is what this process is told of the first card's memory: by the
// function's name, and as the CUDA runtime finds it (0 where there is no such way).
func TotalMemory(library string) (byName, byAddress gpu.Bytes, err error) {
	lib := C.CString(library)
	defer C.free(unsafe.Pointer(lib))
	var why [512]C.char
	var name, address C.ulonglong
	if C.probe_total_memory(lib, &name, &address, &why[0], C.size_t(len(why))) != 0 {
		return 0, 0, fmt.Errorf("ask %s for memory: %w", library, errors.New(C.GoString(&why[0])))
	}
	return gpu.Bytes(name), gpu.Bytes(address), nil
}
