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
