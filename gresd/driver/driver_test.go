// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// fake is one simulated card; the NVML index is its place in the list.
type fake struct {
	uuid  string
	minor int
	bus   uint32
	mig   int
	// broken is what reading the name answers; SUCCESS for a good card.
	broken nvml.Return
	migRet nvml.Return

	compute, mps, graphics []nvml.ProcessInfo
	computeRet             nvml.Return
	graphicsRet            nvml.Return

	instances []*instance // a nil is a hole in the numbers

	joins // what the card says of its neighbours
}

const total = 143771 << 20

func (f *fake) device(ancestor func(a, b int) nvml.GpuTopologyLevel) nvml.Device {
	d := &mock.Device{
		GetUUIDFunc:        func() (string, nvml.Return) { return f.uuid, nvml.SUCCESS },
		GetNameFunc:        func() (string, nvml.Return) { return "NVIDIA H200", f.broken },
		GetMinorNumberFunc: func() (int, nvml.Return) { return f.minor, nvml.SUCCESS },
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: total, Used: 5 << 30}, nvml.SUCCESS
		},
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
			return nvml.PciInfo{Domain: 1, Bus: f.bus, Device: 0}, nvml.SUCCESS
		},
		GetMigModeFunc:                    func() (int, int, nvml.Return) { return f.mig, f.mig, f.migRet },
		GetComputeRunningProcessesFunc:    func() ([]nvml.ProcessInfo, nvml.Return) { return f.compute, f.computeRet },
		GetMPSComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return f.mps, nvml.SUCCESS },
		GetGraphicsRunningProcessesFunc:   func() ([]nvml.ProcessInfo, nvml.Return) { return f.graphics, f.graphicsRet },
		GetTopologyCommonAncestorFunc: func(other nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
			minor, _ := other.GetMinorNumber()
			return ancestor(f.minor, minor), nvml.SUCCESS
		},
	}
	f.cut(d)
	f.join(d)
	return d
}

// library returns an inventory of fake cards and a sysfs without NUMA nodes.
func library(t testing.TB, fakes ...*fake) *NVML {
	t.Helper()
	// Minors 0 and 1 share a switch, as do 2 and 3.
	ancestor := func(a, b int) nvml.GpuTopologyLevel {
		if a/2 == b/2 {
			return nvml.TOPOLOGY_SINGLE
		}
		return nvml.TOPOLOGY_NODE
	}
	devices := make([]nvml.Device, len(fakes))
	for i, f := range fakes {
		devices[i] = f.device(ancestor)
	}
	return &NVML{sysfs: t.TempDir(), stuck: newStuck(), lib: &mock.Interface{
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(fakes), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			return devices[i], nvml.SUCCESS
		},
		DeviceGetHandleByUUIDFunc: func(uuid string) (nvml.Device, nvml.Return) {
			for i, f := range fakes {
				if f.uuid == uuid {
					return devices[i], nvml.SUCCESS
				}
				for _, part := range f.instances {
					if part != nil && part.uuid == uuid {
						return part.device(devices[i]), nvml.SUCCESS
					}
				}
			}
			return nil, nvml.ERROR_NOT_FOUND
		},
		SystemGetDriverVersionFunc:     func() (string, nvml.Return) { return "580.95.05", nvml.SUCCESS },
		SystemGetNVMLVersionFunc:       func() (string, nvml.Return) { return "13.580.95.05", nvml.SUCCESS },
		SystemGetCudaDriverVersionFunc: func() (int, nvml.Return) { return 12090, nvml.SUCCESS },
		ShutdownFunc:                   func() nvml.Return { return nvml.SUCCESS },
	}}
}

func TestCardsAreSortedByMinorNotByBus(t *testing.T) {
	n := library(t,
		&fake{uuid: "GPU-c", minor: 2, bus: 0x1b},
		&fake{uuid: "GPU-a", minor: 0, bus: 0x5c},
		&fake{uuid: "GPU-b", minor: 1, bus: 0xda},
	)
	node := filepath.Join(n.sysfs, "bus/pci/devices/0001:5c:00.0")
	if err := os.MkdirAll(node, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(node, "numa_node"), []byte("3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := n.Cards()
	if err != nil {
		t.Fatal(err)
	}
	want := []gpu.Card{
		{UUID: "GPU-a", Index: 0, Minor: 0, PCIBusID: "0001:5c:00.0", NUMANode: 3},
		{UUID: "GPU-b", Index: 1, Minor: 1, PCIBusID: "0001:da:00.0", NUMANode: -1},
		{UUID: "GPU-c", Index: 2, Minor: 2, PCIBusID: "0001:1b:00.0", NUMANode: -1},
	}
	for i := range want {
		want[i].Name, want[i].Type, want[i].Memory, want[i].Physical, want[i].Healthy = "NVIDIA H200", "h200", total, total, true
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestIndexesHaveNoHolesWhereMinorsDo(t *testing.T) {
	got, err := library(t, &fake{uuid: "GPU-x", minor: 7}, &fake{uuid: "GPU-y", minor: 4}).Cards()
	if err != nil {
		t.Fatal(err)
	}
	if got[0].UUID != "GPU-y" || got[0].Index != 0 || got[1].UUID != "GPU-x" || got[1].Index != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestALostCardIsNamedAndMovesNoOther(t *testing.T) {
	n := library(t,
		&fake{uuid: "GPU-a", minor: 0},
		&fake{uuid: "GPU-b", minor: 1, broken: nvml.ERROR_GPU_IS_LOST},
		&fake{uuid: "GPU-c", minor: 2},
	)
	got, err := n.Cards()
	var lost *CardError
	if !errors.As(err, &lost) || lost.NVMLIndex != 1 || !errors.Is(err, nvml.ERROR_GPU_IS_LOST) {
		t.Errorf("error is %v", err)
	}
	if len(got) != 2 || got[0].Index != 0 || got[1].UUID != "GPU-c" || got[1].Index != 2 {
		t.Errorf("got %+v", got)
	}
	topo, err := n.Topology()
	if err != nil || len(topo.Cards) != 2 || topo.Cards[1].Index != 2 || len(topo.Unread) != 1 || !strings.Contains(topo.Unread[0], "NVML index 1") {
		t.Errorf("topology %+v, %v", topo, err)
	}
}

func TestMIGIsSeenAndCardsWithoutItAreFine(t *testing.T) {
	got, err := library(t,
		&fake{uuid: "GPU-a", minor: 0, mig: nvml.DEVICE_MIG_ENABLE},
		&fake{uuid: "GPU-b", minor: 1, migRet: nvml.ERROR_NOT_SUPPORTED},
	).Cards()
	if err != nil {
		t.Fatal(err)
	}
	if !got[0].MIG || got[1].MIG {
		t.Errorf("MIG is %v and %v", got[0].MIG, got[1].MIG)
	}
}

func TestANodeWithoutCardsIsNoError(t *testing.T) {
	n := library(t)
	if got, err := n.Cards(); err != nil || len(got) != 0 {
		t.Errorf("cards %v, %v", got, err)
	}
	if got, err := n.Topology(); err != nil || len(got.Cards) != 0 || len(got.Unread) != 0 {
		t.Errorf("topology %+v, %v", got, err)
	}
}

func TestProcessesOfAllListsAreJoined(t *testing.T) {
	n := library(t, &fake{
		uuid:    "GPU-a",
		compute: []nvml.ProcessInfo{{Pid: 30, UsedGpuMemory: 100}, {Pid: 10, UsedGpuMemory: math.MaxUint64}},
		mps:     []nvml.ProcessInfo{{Pid: 20, UsedGpuMemory: 7}},
		graphics: []nvml.ProcessInfo{
			{Pid: 30, UsedGpuMemory: 90},
		},
	})
	got, err := n.Processes("GPU-a")
	want := []Process{{PID: 10, Kind: Compute}, {PID: 20, Memory: 7, Kind: MPSClient}, {PID: 30, Memory: 100, Kind: Compute | Graphics}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

func TestAListThatTheCardDoesNotHaveIsEmpty(t *testing.T) {
	n := library(t, &fake{uuid: "GPU-a", graphicsRet: nvml.ERROR_NOT_SUPPORTED})
	if got, err := n.Processes("GPU-a"); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

// No list is not an empty list: the caller would take all processes for ended.
func TestAListThatFailsIsAnError(t *testing.T) {
	n := library(t, &fake{uuid: "GPU-a", computeRet: nvml.ERROR_UNKNOWN})
	if got, err := n.Processes("GPU-a"); err == nil {
		t.Errorf("got %v", got)
	}
}

func TestAnUnknownCardIsNamed(t *testing.T) {
	n := library(t, &fake{uuid: "GPU-a"})
	if _, err := n.Processes("GPU-z"); err == nil || !strings.Contains(err.Error(), "GPU-z") {
		t.Errorf("Processes: %v", err)
	}
	if _, err := n.MemoryUsed("GPU-z"); err == nil || !strings.Contains(err.Error(), "GPU-z") {
		t.Errorf("MemoryUsed: %v", err)
	}
	if used, err := n.MemoryUsed("GPU-a"); err != nil || used != 5*gpu.GiB {
		t.Errorf("MemoryUsed of GPU-a: %v, %v", used, err)
	}
}

func TestVersions(t *testing.T) {
	got, err := library(t).Versions()
	if want := (Versions{Driver: "580.95.05", NVML: "13.580.95.05", CUDA: "12.9"}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestTypesFitIntoGresConf(t *testing.T) {
	for name, want := range map[string]string{
		"NVIDIA H200":           "h200",
		"NVIDIA A100-SXM4-80GB": "a100-sxm4-80gb",
		"Tesla V100-PCIE-16GB":  "tesla-v100-pcie-16gb",
		"NVIDIA RTX 6000 (Ada)": "rtx-6000-ada",
	} {
		if got := typeOf(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestALibraryThatIsNotThereIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	if _, err := Open(path); !errors.Is(err, ErrNoNVML) || !strings.Contains(err.Error(), path) {
		t.Errorf("error is %v", err)
	}
}

func TestALibraryThatLacksAFunctionIsRefused(t *testing.T) {
	n := &NVML{stuck: newStuck(), lib: &mock.Interface{ExtensionsFunc: func() nvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
			if name == "nvmlDeviceGetMigMode" {
				return errors.New("undefined symbol")
			}
			return nil
		}}
	}}}
	if err := n.checkSymbols(); !errors.Is(err, ErrNoNVML) || !strings.Contains(err.Error(), "nvmlDeviceGetMigMode") {
		t.Errorf("error is %v", err)
	}
}
