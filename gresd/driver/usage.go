// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// ErrUnknown: the driver does not tell this of the card.
var ErrUnknown = errors.New("the driver does not tell")

// Usage is how much of a card is in use, by all processes.
type Usage struct {
	Memory gpu.Bytes // the driver's own included
	// Busy and MemoryBusy are the percentage of the last moments in which a kernel
	// ran, and in which memory was read or written, as the driver samples them.
	// Known is false where it does not, as in MIG mode.
	Busy, MemoryBusy uint32
	Known            bool
}

// usageSymbols are called only where the library has them.
var usageSymbols = []string{"nvmlDeviceGetUtilizationRates"}

// Usage asks the card.
func (n *NVML) Usage(uuid gpu.UUID) (Usage, error) {
	return askCard(n, uuid, func(card nvml.Device) (u Usage, err error) {
		memory, ret := card.GetMemoryInfo()
		if err := check("read memory of "+string(uuid), ret); err != nil {
			return u, err
		}
		u.Memory = gpu.Bytes(memory.Used)
		if n.missing["nvmlDeviceGetUtilizationRates"] {
			return u, nil
		}
		rates, ret := card.GetUtilizationRates()
		if ret == nvml.SUCCESS && rates.Gpu != math.MaxUint32 { // NVML_VALUE_NOT_AVAILABLE
			u.Busy, u.MemoryBusy, u.Known = min(rates.Gpu, 100), min(rates.Memory, 100), true
		}
		return u, nil
	})
}
