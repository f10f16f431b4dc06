// SPDX-License-Identifier: Apache-2.0

// Package driver reads the node's cards from NVML, and lets the driver limit the memory of cgroups. It
// is the only importer of go-nvml.
//
// Calls give up when the driver does not answer ([ErrNoAnswer]). Only [NVML.Versions] can block.
package driver

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/timeout"
)

// ErrNoNVML: the library cannot be loaded or started; the driver may be absent
// or of another version than the library.
var ErrNoNVML = errors.New("NVML is not usable")

// ErrNoAnswer: the driver hangs. The same question may be answered later.
var ErrNoAnswer = errors.New("the driver does not answer")

// NVML is the node's cards, read from one loaded library. It is safe for concurrent use. It keeps no
// handle, because the handle of a card that was reset is stale.
type NVML struct {
	lib     nvml.Interface
	library string          // its path or name
	sysfs   string          // "/sys", another place in tests
	root    string          // "", another folder in tests, of /proc
	missing map[string]bool // of optional
	stuck   *timeout.Calls[gpu.UUID]
	places  places
	// listening are the threads that wait for events.
	listening atomic.Int32
}

// Open loads NVML from a library path; "" is libnvidia-ml.so.1 wherever the
// loader finds it. The error is ErrNoNVML. Callers must call [NVML.Close].
func Open(library string) (*NVML, error) {
	var options []nvml.LibraryOption
	if library != "" {
		options = append(options, nvml.WithLibraryPath(library))
	}
	lib := nvml.New(options...)
	library = cmp.Or(library, "libnvidia-ml.so.1")
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("load %s: %w: %w", library, ErrNoNVML, ret)
	}
	n := &NVML{lib: lib, library: library, sysfs: "/sys", missing: map[string]bool{}, stuck: newStuck()}
	if err := n.checkSymbols(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	for _, name := range slices.Concat(optional, healthSymbols, usageSymbols, migSymbols) {
		n.missing[name] = lib.Extensions().LookupSymbol(name) != nil
	}
	return n, nil
}

// needed are the functions called below. go-nvml binds them lazily, and a call
// of one that is missing ends the process.
var needed = []string{
	"nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlSystemGetCudaDriverVersion",
	"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID",
	"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetMemoryInfo",
	"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMigMode", "nvmlDeviceGetTopologyCommonAncestor",
	"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
	"nvmlDeviceGetMPSComputeRunningProcesses_v3",
}

func (n *NVML) checkSymbols() error {
	for _, name := range needed {
		if err := n.lib.Extensions().LookupSymbol(name); err != nil {
			return fmt.Errorf("%w: it has no %s, want a driver of 510 or newer", ErrNoNVML, name)
		}
	}
	return nil
}

// check turns NVML's answer into an error that names the act.
func check(act string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return fmt.Errorf("%s: %w", act, ret)
}

// Close ends the use of NVML. A library that still owes an answer stays loaded.
func (n *NVML) Close() error {
	if len(n.stuck.List()) > 0 || n.listening.Load() > 0 {
		return nil
	}
	return check("shut NVML down", n.lib.Shutdown())
}

// read asks for one thing, unless *err says that an earlier question failed.
func read[T any](err *error, act string, question func() (T, nvml.Return)) (value T) {
	if *err == nil {
		var ret nvml.Return
		value, ret = question()
		*err = check(act, ret)
	}
	return value
}

// Versions asks the driver.
func (n *NVML) Versions() (v Versions, err error) {
	v.Driver = read(&err, "read driver version", n.lib.SystemGetDriverVersion)
	v.NVML = read(&err, "read NVML version", n.lib.SystemGetNVMLVersion)
	cuda := read(&err, "read CUDA version", n.lib.SystemGetCudaDriverVersion)
	v.CUDA = fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)
	return v, err
}

// device is a card with the handle of its GPU, which is good until that is lost.
type device struct {
	card   gpu.Card
	handle nvml.Device
}

// devices returns the cards by rising index, and what could not be read. It
// does not wait for ever, unlike the driver.
func (n *NVML) devices() ([]device, error) {
	return ask(n, theNode, firstPatience, "read cards", n.readAll)
}

func (n *NVML) readAll() ([]device, error) {
	total, ret := n.lib.DeviceGetCount()
	if err := check("count cards", ret); err != nil {
		return nil, err
	}
	var found []device
	var unread []error
	for i := range total {
		d, err := n.readCard(i)
		if err != nil {
			unread = append(unread, &CardError{NVMLIndex: i, Err: err})
			continue
		}
		parts := []device{d}
		if d.card.MIG {
			instances, err := n.instances(d)
			if err != nil {
				unread = append(unread, &CardError{NVMLIndex: i, Err: err})
				continue
			}
			if len(instances) > 0 { // they are the cards then
				parts = instances
			}
		}
		found = append(found, parts...)
	}
	found, unread = n.places.put(found, unread)
	return found, errors.Join(unread...)
}

// readCard asks for all of one card; NVML's order is that of the PCI bus.
func (n *NVML) readCard(index int) (device, error) {
	handle, ret := n.lib.DeviceGetHandleByIndex(index)
	if err := check("get handle", ret); err != nil {
		return device{}, err
	}
	var err error
	uuid := read(&err, "read UUID", handle.GetUUID)
	name := read(&err, "read name", handle.GetName)
	minor := read(&err, "read minor number", handle.GetMinorNumber)
	memory := read(&err, "read memory", handle.GetMemoryInfo)
	pci := read(&err, "read PCI place", handle.GetPciInfo)
	mig := read(&err, "read MIG mode", func() (int, nvml.Return) {
		mig, _, ret := handle.GetMigMode()
		if ret == nvml.ERROR_NOT_SUPPORTED {
			return nvml.DEVICE_MIG_DISABLE, nvml.SUCCESS
		}
		return mig, ret
	})
	if err != nil {
		return device{}, err
	}
	bus := busID(pci)
	return device{
		card: gpu.Card{
			UUID:     gpu.UUID(uuid),
			Minor:    minor,
			Name:     name,
			Type:     typeOf(name),
			Memory:   gpu.Bytes(memory.Total),
			Physical: gpu.Bytes(memory.Total),
			PCIBusID: bus,
			NUMANode: n.numaNode(bus),
			MIG:      mig == nvml.DEVICE_MIG_ENABLE,
			Healthy:  true,
		},
		handle: handle,
	}, nil
}

// busID writes a place on the bus as sysfs does. The function is 0 for every GPU.
func busID(pci nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
}

// typeOf turns "NVIDIA A100-SXM4-80GB" into "a100-sxm4-80gb": one word in the
// letters that gres.conf allows.
func typeOf(name string) string {
	var b strings.Builder
	for word := range strings.FieldsSeq(strings.ToLower(name)) {
		if word == "nvidia" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('-')
		}
		for _, c := range word {
			if c == '-' || c == '_' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' {
				b.WriteRune(c)
			}
		}
	}
	return b.String()
}

// numaNode asks the kernel, since NVML's own answer is about another thing;
// -1 where it is not known.
func (n *NVML) numaNode(bus string) int {
	node, err := n.number(filepath.Join("bus/pci/devices", bus, "numa_node"))
	if err != nil || node < 0 || node >= manyNodes {
		return -1
	}
	return node
}

// Cards reads all cards, by rising index. It leaves out cards that it cannot read: the error joins one
// [*CardError] for each. The returned cards are valid all the same.
func (n *NVML) Cards() ([]gpu.Card, error) {
	found, err := n.devices()
	cards := make([]gpu.Card, len(found))
	for i, d := range found {
		cards[i] = d.card
	}
	return cards, err
}

func (n *NVML) handle(uuid gpu.UUID) (nvml.Device, error) {
	handle, ret := n.lib.DeviceGetHandleByUUID(string(uuid))
	if ret != nvml.SUCCESS {
		return handle, fmt.Errorf("find: %w", sick(uuid, ret))
	}
	return handle, nil
}

// MemoryUsed returns the memory in use on a card, the driver's own included.
func (n *NVML) MemoryUsed(uuid gpu.UUID) (gpu.Bytes, error) {
	return askCard(n, uuid, func(card nvml.Device) (gpu.Bytes, error) {
		memory, ret := card.GetMemoryInfo()
		return gpu.Bytes(memory.Used), check("read memory of "+string(uuid), ret)
	})
}

// Processes returns the processes on a card by rising pid. It joins NVML's three lists: a process with
// CUDA and graphics is in two of them, an MPS client in its own.
func (n *NVML) Processes(uuid gpu.UUID) ([]Process, error) {
	return askCard(n, uuid, func(card nvml.Device) ([]Process, error) { return processes(uuid, card) })
}

func processes(uuid gpu.UUID, card nvml.Device) ([]Process, error) {
	found := map[uint32]Process{}
	for _, list := range []struct {
		read func() ([]nvml.ProcessInfo, nvml.Return)
		kind ProcessKind
	}{
		{card.GetComputeRunningProcesses, Compute},
		{card.GetMPSComputeRunningProcesses, MPSClient},
		{card.GetGraphicsRunningProcesses, Graphics},
	} {
		processes, ret := list.read()
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if err := check("list processes of "+string(uuid), ret); err != nil {
			return nil, err
		}
		for _, p := range processes {
			used := gpu.Bytes(p.UsedGpuMemory)
			if p.UsedGpuMemory == math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
				used = 0
			}
			before := found[p.Pid]
			found[p.Pid] = Process{PID: p.Pid, Memory: max(before.Memory, used), Kind: before.Kind | list.kind}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Process) int { return cmp.Compare(a.PID, b.PID) }), nil
}

// Versions are the versions of driver, NVML and CUDA.
type Versions struct {
	Driver string // "580.95.05"
	NVML   string // "13.580.95.05"
	CUDA   string // the newest CUDA that the driver serves, "13.0"
}

// Process is one process on a card, with its pid in the host's namespace.
type Process struct {
	PID    uint32
	Memory gpu.Bytes // 0: the driver does not say
	Kind   ProcessKind
}

// ProcessKind is a set of the kinds of work of a process on a card.
type ProcessKind uint8

// Kinds of processes, one bit each.
const (
	Compute   ProcessKind = 1 << iota
	MPSClient             // computes through an MPS server
	Graphics              // draws, as a display server does
)

// CardError is an error of one card. Index -1 stands for cards that disappeared.
type CardError struct {
	NVMLIndex int
	Err       error
}

func (e *CardError) Error() string {
	if e.NVMLIndex < 0 {
		return e.Err.Error()
	}
	return fmt.Sprintf("read card at NVML index %d: %v", e.NVMLIndex, e.Err)
}

// Unwrap returns what NVML said.
func (e *CardError) Unwrap() error { return e.Err }

const (
	// patience is how long the driver may take for one answer, and
	// firstPatience how long for all that a card is: without persistence mode
	// the first question starts the card.
	patience      = 3 * time.Second
	firstPatience = time.Minute
	// mostUnanswered limits the threads that wait in a hanging driver for questions about one card.
	// So a card that hangs takes no answers from other cards.
	mostUnanswered = 4
	// theNode stands for the node in questions that name no card.
	theNode gpu.UUID = ""
)

func newStuck() *timeout.Calls[gpu.UUID] { return timeout.New[gpu.UUID](mostUnanswered, math.MaxInt) }

// ask returns the answer, or ErrNoAnswer when there was none in time, or when too many earlier
// questions wait for theirs.
func ask[T any](n *NVML, about gpu.UUID, wait time.Duration, what string, question func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	got, ok := timeout.Run(n.stuck, about, wait, func() answer {
		value, err := question()
		return answer{value, err}
	})
	if !ok {
		got.err = fmt.Errorf("%s: %w", what, ErrNoAnswer)
	}
	return got.value, got.err
}

// ErrUnknown: the driver does not tell this of the card.
var ErrUnknown = errors.New("the driver does not tell")

// Usage is how much of a card is in use, by all processes.
type Usage struct {
	Memory gpu.Bytes // the driver's own included
	// Busy and MemoryBusy are the percentage of the last moments with a running kernel, and with
	// reads or writes of memory, as the driver samples them. Known is false without samples, as in
	// MIG mode.
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
