// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
)

// instance is a MIG instance of a fake card.
type instance struct {
	uuid        string
	gi, ci      int
	profile     string // "" where the driver does not tell it in the name
	mib         uint64
	slices      uint32
	computeOnly uint32 // compute slices, where they are fewer
}

func (i *instance) device(of nvml.Device) nvml.Device {
	return &mock.Device{
		GetUUIDFunc:                            func() (string, nvml.Return) { return i.uuid, nvml.SUCCESS },
		GetGpuInstanceIdFunc:                   func() (int, nvml.Return) { return i.gi, nvml.SUCCESS },
		GetComputeInstanceIdFunc:               func() (int, nvml.Return) { return i.ci, nvml.SUCCESS },
		GetDeviceHandleFromMigDeviceHandleFunc: func() (nvml.Device, nvml.Return) { return of, nvml.SUCCESS },
		GetMemoryInfoFunc:                      func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: i.mib << 20}, nvml.SUCCESS },
		GetNameFunc: func() (string, nvml.Return) {
			if i.profile == "" {
				return "", nvml.ERROR_NOT_SUPPORTED
			}
			return "NVIDIA H200 MIG " + i.profile, nvml.SUCCESS
		},
		GetAttributesFunc: func() (nvml.DeviceAttributes, nvml.Return) {
			compute := i.computeOnly
			if compute == 0 {
				compute = i.slices
			}
			return nvml.DeviceAttributes{GpuInstanceSliceCount: i.slices, ComputeInstanceSliceCount: compute, MemorySizeMB: i.mib}, nvml.SUCCESS
		},
	}
}

func (f *fake) cut(d *mock.Device) {
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i >= len(f.instances) || f.instances[i] == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return f.instances[i].device(d), nvml.SUCCESS
	}
}

// capabilities writes those of cards as the driver does.
func capabilities(t *testing.T, n *NVML, fakes ...*fake) {
	t.Helper()
	n.root = t.TempDir()
	for _, f := range fakes {
		for _, i := range f.instances {
			if i == nil {
				continue
			}
			dir := filepath.Join(n.root, "proc/driver/nvidia/capabilities", fmt.Sprintf("gpu%d/mig/gi%d", f.minor, i.gi))
			minor := 3 + 135*f.minor + 9*i.gi
			for path, minor := range map[string]int{"access": minor, fmt.Sprintf("ci%d/access", i.ci): minor + 1 + i.ci} {
				path = filepath.Join(dir, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				text := fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor)
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// cutCard is one in MIG mode, with a hole, a name that is not told, and a GPU instance of two.
func cutCard() *fake {
	return &fake{uuid: "GPU-a", minor: 1, mig: nvml.DEVICE_MIG_ENABLE, instances: []*instance{
		{uuid: "MIG-2", gi: 9, profile: "1g.18gb+me", mib: 17 << 10, slices: 1},
		nil,
		{uuid: "MIG-1", gi: 2, mib: 35 << 10, slices: 2},
		{uuid: "MIG-4", gi: 10, ci: 1, mib: 35 << 10, slices: 2, computeOnly: 1},
		{uuid: "MIG-3", gi: 10, ci: 0, mib: 35 << 10, slices: 2, computeOnly: 1},
	}}
}

func TestInstancesAreCards(t *testing.T) {
	cut, plain := cutCard(), &fake{uuid: "GPU-b", minor: 0}
	empty := &fake{uuid: "GPU-c", minor: 2, mig: nvml.DEVICE_MIG_ENABLE}
	n := library(t, cut, plain, empty)
	capabilities(t, n, cut)
	cards, err := n.Cards()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, c := range cards {
		if c.Index != i {
			t.Errorf("card %d is at %d", i, c.Index)
		}
		got = append(got, fmt.Sprintf("%s %s of %s, %d GiB, %v, MIG %v", c.UUID, c.Type, c.GPU(), c.Memory/gpu.GiB, c.Files(), c.MIG))
	}
	want := []string{
		"GPU-b h200 of GPU-b, 140 GiB, [/dev/nvidia0], MIG false",
		"MIG-1 2g.35gb of GPU-a, 35 GiB, [/dev/nvidia1 /dev/nvidia-caps/nvidia-cap156 /dev/nvidia-caps/nvidia-cap157], MIG false",
		"MIG-2 1g.18gb.me of GPU-a, 17 GiB, [/dev/nvidia1 /dev/nvidia-caps/nvidia-cap219 /dev/nvidia-caps/nvidia-cap220], MIG false",
		"MIG-3 1c.2g.35gb of GPU-a, 35 GiB, [/dev/nvidia1 /dev/nvidia-caps/nvidia-cap228 /dev/nvidia-caps/nvidia-cap229], MIG true",
		"MIG-4 1c.2g.35gb of GPU-a, 35 GiB, [/dev/nvidia1 /dev/nvidia-caps/nvidia-cap228 /dev/nvidia-caps/nvidia-cap230], MIG true",
		"GPU-c h200 of GPU-c, 140 GiB, [/dev/nvidia2], MIG true",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A card whose instances cannot be read is not taken for a whole one.
func TestInstanceWithoutItsCapability(t *testing.T) {
	n := library(t, cutCard(), &fake{uuid: "GPU-b", minor: 0})
	n.root = t.TempDir()
	cards, err := n.Cards()
	var unread *CardError
	if !errors.As(err, &unread) || !errors.Is(err, os.ErrNotExist) || len(cards) != 1 || cards[0].UUID != "GPU-b" {
		t.Errorf("cards %+v, %v", cards, err)
	}
}

// Places depend on instances: those of Slurm's gres.conf hold until gresd starts anew.
func TestPlacesStayWhenInstancesChange(t *testing.T) {
	cut, plain := cutCard(), &fake{uuid: "GPU-b", minor: 2}
	n := library(t, cut, plain)
	capabilities(t, n, cut)
	places := func() string {
		cards, err := n.Cards()
		var words []string
		for _, c := range cards {
			words = append(words, fmt.Sprintf("%d:%s", c.Index, c.UUID))
		}
		if err != nil {
			words = append(words, fmt.Sprint(errors.Is(err, errChanged)))
		}
		return strings.Join(words, " ")
	}
	const all = "0:MIG-1 1:MIG-2 2:MIG-3 3:MIG-4 4:GPU-b"
	whole := cut.instances
	for _, step := range []struct {
		name      string
		mig       int
		instances []*instance
		broken    nvml.Return
		want      string
	}{
		{"as it is", nvml.DEVICE_MIG_ENABLE, whole, 0, all},
		{"one is gone", nvml.DEVICE_MIG_ENABLE, whole[1:], 0, "0:MIG-1 2:MIG-3 3:MIG-4 4:GPU-b true"},
		{
			"another is in its place", nvml.DEVICE_MIG_ENABLE, append([]*instance{{uuid: "MIG-5", gi: 9, mib: 9, slices: 1}}, whole[1:]...), 0,
			"0:MIG-1 2:MIG-3 3:MIG-4 4:GPU-b true",
		},
		{"none is left", nvml.DEVICE_MIG_ENABLE, nil, 0, "4:GPU-b true"},
		{"MIG mode is off", nvml.DEVICE_MIG_DISABLE, nil, 0, "4:GPU-b true"},
		{"the GPU is lost", nvml.DEVICE_MIG_ENABLE, whole, nvml.ERROR_GPU_IS_LOST, "4:GPU-b false"},
		{"as it was", nvml.DEVICE_MIG_ENABLE, whole, 0, all},
	} {
		cut.mig, cut.instances, cut.broken = step.mig, step.instances, step.broken
		capabilities(t, n, cut)
		if got := places(); got != step.want {
			t.Errorf("%s: got %s, want %s", step.name, got, step.want)
		}
	}
}

// MIG mode that is switched on shifts the places of the cards behind.
func TestPlacesStayWhenMIGModeIsSwitchedOn(t *testing.T) {
	cut, plain := &fake{uuid: "GPU-a", minor: 1}, &fake{uuid: "GPU-b", minor: 2}
	n := library(t, cut, plain)
	if cards, err := n.Cards(); err != nil || len(cards) != 2 {
		t.Fatalf("cards %+v, %v", cards, err)
	}
	cut.mig, cut.instances = nvml.DEVICE_MIG_ENABLE, cutCard().instances
	capabilities(t, n, cut)
	cards, err := n.Cards()
	if !errors.Is(err, errChanged) || len(cards) != 1 || cards[0].UUID != "GPU-b" || cards[0].Index != 1 {
		t.Errorf("cards %+v, %v", cards, err)
	}
}

func TestTopologyOfInstances(t *testing.T) {
	cut, plain := cutCard(), &fake{uuid: "GPU-b", minor: 0}
	n := library(t, cut, plain)
	capabilities(t, n, cut)
	facts, err := n.Topology()
	if err != nil || len(facts.Cards) != 5 || len(facts.Unread) != 0 {
		t.Fatalf("%+v, %v", facts, err)
	}
	if a := facts.Cards[1]; !a.Instance || len(a.Links) != 0 || facts.Levels[1][2] != topology.INT || facts.Levels[0][1] != topology.PIX {
		t.Errorf("got %+v and %v", a, facts.Levels)
	}
	if p := facts.P2P[1][2]; p.NVLink != topology.StatusNotSupported {
		t.Errorf("peers: %+v", p)
	}
	if warnings := topology.New(facts).Warnings; len(warnings) != 0 {
		t.Errorf("warnings %q", warnings)
	}
}

// What happens to a GPU happens to all of its instances.
func TestFaultsOfAGPUAreItsInstances(t *testing.T) {
	cut := cutCard()
	n := library(t, cut)
	capabilities(t, n, cut)
	gpuHandle, _ := n.lib.DeviceGetHandleByIndex(0)
	card := gpuHandle.(*mock.Device)
	card.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 3, nvml.SUCCESS }
	card.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, true, false, nvml.SUCCESS }
	registered := 0
	card.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { registered++; return nvml.SUCCESS }
	if p, err := n.Probe("MIG-1"); err != nil || p.Uncorrected != 3 || !p.WaitsForReset {
		t.Errorf("probe %+v, %v", p, err)
	}
	n.lib.(*mock.Interface).EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			FreeFunc: func() nvml.Return { return nvml.SUCCESS },
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				return nvml.EventData{Device: card, EventType: nvml.EventTypeXidCriticalError, EventData: 79}, nvml.SUCCESS
			},
		}, nvml.SUCCESS
	}
	events, err := n.Events([]gpu.UUID{"MIG-1", "MIG-2"})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	for _, want := range []gpu.UUID{"MIG-1", "MIG-2"} {
		if e, any, err := events.Next(t.Context()); err != nil || !any || e != (Event{UUID: want, XID: 79}) {
			t.Errorf("got %+v, %v, %v, want XID 79 of %s", e, any, err, want)
		}
	}
	if registered != 1 {
		t.Errorf("the GPU was registered %d times, want once", registered)
	}
}
