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

// call calls a C function that writes the text of its error.
func call(function func(why *C.char, size C.size_t) C.int) error {
	var why [512]C.char
	if function(&why[0], C.size_t(len(why))) != 0 {
		return errors.New(C.GoString(&why[0]))
	}
	return nil
}

// makeContext makes a CUDA context that lasts as long as the process.
func makeContext(library string, uuid gpu.UUID) error {
	lib, name := C.CString(library), C.CString(string(uuid))
	defer C.free(unsafe.Pointer(lib))
	defer C.free(unsafe.Pointer(name))
	if err := call(func(why *C.char, size C.size_t) C.int { return C.libcuda_make_context(lib, name, why, size) }); err != nil {
		return fmt.Errorf("make a context on %s: %w", uuid, err)
	}
	return nil
}

// TotalMemory returns the first card's memory as this process sees it: from the function by its
// name, and from the function that the CUDA runtime finds. The second is 0 if the driver has no such
// way. It makes no context.
func TotalMemory(library string) (byName, byAddress gpu.Bytes, err error) {
	lib := C.CString(library)
	defer C.free(unsafe.Pointer(lib))
	var name, address C.ulonglong
	err = call(func(why *C.char, size C.size_t) C.int { return C.libcuda_total_memory(lib, &name, &address, why, size) })
	if err != nil {
		return 0, 0, fmt.Errorf("ask %s for memory: %w", library, err)
	}
	return gpu.Bytes(name), gpu.Bytes(address), nil
}

// Work keeps the first card busy until standard input is closed.
func Work(library string) error {
	lib := C.CString(library)
	defer C.free(unsafe.Pointer(lib))
	return call(func(why *C.char, size C.size_t) C.int { return C.libcuda_work(lib, why, size) })
}
