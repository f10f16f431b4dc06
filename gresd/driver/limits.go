// SPDX-License-Identifier: Apache-2.0

package driver

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "limits.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// ErrNoLimits: the driver has no memory limits for cgroups (before r615, in MIG mode, or switched off).
var ErrNoLimits = errors.New("the driver has no memory limits for cgroups")

const limitsSymbol = "nvmlDeviceSetMemoryLimits_v1"

// HasLimits says whether the driver may have memory limits for cgroups.
func (n *NVML) HasLimits() bool { return n.lib.Extensions().LookupSymbol(limitsSymbol) == nil }

// LimitMemory lets the processes in a cgroup, and in those below, have no more of a card.
func (n *NVML) LimitMemory(uuid gpu.UUID, folder string, most gpu.Bytes) error {
	_, err := askCard(n, uuid, func(nvml.Device) (struct{}, error) {
		library, card, cgroup := C.CString(n.library), C.CString(string(uuid)), C.CString(folder)
		defer C.free(unsafe.Pointer(library))
		defer C.free(unsafe.Pointer(card))
		defer C.free(unsafe.Pointer(cgroup))
		switch ret := C.limits_set(library, card, cgroup, C.ulonglong(most)); nvml.Return(ret) {
		case C.LIMITS_MISSING, nvml.ERROR_NOT_SUPPORTED:
			return struct{}{}, ErrNoLimits
		default:
			return struct{}{}, check(fmt.Sprintf("limit memory of %s for %s", uuid, folder), nvml.Return(ret))
		}
	})
	return err
}
