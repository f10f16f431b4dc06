// SPDX-License-Identifier: Apache-2.0

package slicetest

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "cuda.h"
import "C"

import (
	"errors"
	"unsafe"
)

// Work is what the program of [Parts.Child] does: it keeps the card busy until its standard
// input is closed.
func Work(library string) error {
	lib := C.CString(library)
	defer C.free(unsafe.Pointer(lib))
	var why [512]C.char
	if C.slicetest_work(lib, &why[0], C.size_t(len(why))) != 0 {
		return errors.New(C.GoString(&why[0]))
	}
	return nil
}
