// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func itoa(n int) string { return strconv.Itoa(n) }

// openNVML loads the simulated NVML through the binding that gresd uses.
func openNVML(t *testing.T, state string) nvml.Interface {
	t.Helper()
	t.Setenv("SIMGPU_STATE", state)
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(bin, "simgpu", "lib", "libnvidia-ml.so.1")))
	if rc := lib.Init(); rc != nvml.SUCCESS {
		t.Fatalf("Init: %v", rc)
	}
	t.Cleanup(func() { lib.Shutdown() })
	return lib
}

func ok(t *testing.T, what string, rc nvml.Return) {
	t.Helper()
	if rc != nvml.SUCCESS {
		t.Fatalf("%s: %v", what, rc)
	}
}

// One test for all of NVML: the library keeps one machine for the life of a process.
func TestNVML(t *testing.T) {
	m, state := newMachine(t, "four-cards")
	lib := openNVML(t, state)
	n, rc := lib.DeviceGetCount()
	ok(t, "DeviceGetCount", rc)
	if n != 4 {
		t.Fatalf("%d cards", n)
	}
	var cards []nvml.Device
	for i := range n {
		d, rc := lib.DeviceGetHandleByIndex(i)
		ok(t, "DeviceGetHandleByIndex", rc)
		cards = append(cards, d)
	}
	t.Run("identity", func(t *testing.T) { nvmlIdentity(t, lib, m, cards) })
	t.Run("topology", func(t *testing.T) { nvmlTopology(t, cards) })
	t.Run("use", func(t *testing.T) { nvmlUse(t, m, state, cards[0]) })
	t.Run("events", func(t *testing.T) { nvmlEvents(t, lib, m, cards) })
	t.Run("limits", func(t *testing.T) { nvmlLimits(t, state, m.Status()[0].UUID) })
}

func nvmlIdentity(t *testing.T, lib nvml.Interface, m *Machine, cards []nvml.Device) {
	for i, s := range m.Status() {
		uuid, rc := cards[i].GetUUID()
		ok(t, "GetUUID", rc)
		if uuid != s.UUID {
			t.Errorf("card %d: uuid %s, want %s", i, uuid, s.UUID)
		}
		again, rc := lib.DeviceGetHandleByUUID(uuid)
		ok(t, "DeviceGetHandleByUUID", rc)
		minor, rc := again.GetMinorNumber()
		ok(t, "GetMinorNumber", rc)
		if minor != i {
			t.Errorf("card %d: minor %d", i, minor)
		}
		pci, rc := again.GetPciInfo()
		ok(t, "GetPciInfo", rc)
		if pci.Bus != uint32(0x10+i*0x10) {
			t.Errorf("card %d: bus %#x", i, pci.Bus)
		}
		mode, _, rc := again.GetMigMode()
		ok(t, "GetMigMode", rc)
		if mode != nvml.DEVICE_MIG_DISABLE {
			t.Errorf("card %d: MIG mode %d", i, mode)
		}
		major, _, rc := again.GetCudaComputeCapability()
		ok(t, "GetCudaComputeCapability", rc)
		if major != 9 {
			t.Errorf("card %d: capability %d", i, major)
		}
	}
	if _, rc := lib.DeviceGetHandleByUUID("GPU-none"); rc != nvml.ERROR_NOT_FOUND {
		t.Errorf("unknown UUID: %v", rc)
	}
}

func nvmlTopology(t *testing.T, cards []nvml.Device) {
	for _, c := range []struct {
		a, b int
		want nvml.GpuTopologyLevel
	}{{0, 1, nvml.TOPOLOGY_SINGLE}, {0, 2, nvml.TOPOLOGY_SYSTEM}, {3, 2, nvml.TOPOLOGY_SINGLE}} {
		got, rc := cards[c.a].GetTopologyCommonAncestor(cards[c.b])
		ok(t, "GetTopologyCommonAncestor", rc)
		if got != c.want {
			t.Errorf("cards %d and %d: level %d, want %d", c.a, c.b, got, c.want)
		}
	}
	links := 0
	for i := range nvml.NVLINK_MAX_LINKS {
		if state, rc := cards[2].GetNvLinkState(i); rc == nvml.SUCCESS && state == nvml.FEATURE_ENABLED {
			links++
			kind, rc := cards[2].GetNvLinkRemoteDeviceType(i)
			ok(t, "GetNvLinkRemoteDeviceType", rc)
			pci, rc := cards[2].GetNvLinkRemotePciInfo(i)
			ok(t, "GetNvLinkRemotePciInfo", rc)
			if kind != nvml.NVLINK_DEVICE_TYPE_GPU || pci.Bus != 0x40 {
				t.Errorf("link %d: type %d, bus %#x", i, kind, pci.Bus)
			}
		}
	}
	if links != 4 {
		t.Errorf("card 2 has %d links, want 4", links)
	}
	if p2p, rc := cards[0].GetP2PStatus(cards[1], nvml.P2P_CAPS_INDEX_NVLINK); rc != nvml.SUCCESS || p2p != nvml.P2P_STATUS_OK {
		t.Errorf("P2P over NVLink: %v, %v", p2p, rc)
	}
	cpus, rc := cards[3].GetCpuAffinityWithinScope(2, nvml.AFFINITY_SCOPE_NODE)
	ok(t, "GetCpuAffinityWithinScope", rc)
	if len(cpus) == 0 || cpus[0] != 2 {
		t.Errorf("processors of card 3: %v, want the second alone", cpus)
	}
	if node, rc := cards[3].GetNumaNodeId(); rc != nvml.SUCCESS || node != 1 {
		t.Errorf("node of card 3: %d, %v", node, rc)
	}
}

func nvmlUse(t *testing.T, m *Machine, state string, card nvml.Device) {
	x := startTenant(t, state, "--alloc", "7G", "--kernel-us", "200", "--saturate", "30")
	x.next()
	v1, rc := card.GetMemoryInfo()
	ok(t, "GetMemoryInfo", rc)
	v2, rc := card.GetMemoryInfo_v2()
	ok(t, "GetMemoryInfo_v2", rc)
	if v1.Used != 7<<30+500<<20 || v2.Used != v1.Used || v1.Free+v1.Used != v1.Total {
		t.Errorf("used %d and %d, free %d of %d", v1.Used, v2.Used, v1.Free, v1.Total)
	}
	procs, rc := card.GetComputeRunningProcesses()
	ok(t, "GetComputeRunningProcesses", rc)
	if len(procs) != 1 || int(procs[0].Pid) != x.pid() || procs[0].UsedGpuMemory != v1.Used {
		t.Errorf("processes: %+v", procs)
	}
	waitFor(t, "the saturating part", func() bool {
		u, rc := card.GetUtilizationRates()
		return rc == nvml.SUCCESS && u.Gpu >= 98
	})
	since := uint64(time.Now().UnixMicro())
	time.Sleep(500 * time.Millisecond)
	samples, rc := card.GetProcessUtilization(since)
	ok(t, "GetProcessUtilization", rc)
	if len(samples) != 1 {
		t.Errorf("%d samples of one process", len(samples))
	}
	for _, s := range samples {
		if int(s.Pid) != x.pid() || s.SmUtil < 90 || s.TimeStamp <= since {
			t.Errorf("sample %+v", s)
		}
	}
	if err := x.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = x.cmd.Wait() // it was killed
	if procs, rc := card.GetComputeRunningProcesses(); rc != nvml.SUCCESS || len(procs) != 0 {
		t.Errorf("after the kill: %v, %+v", rc, procs)
	}
	if got := m.Status()[0].Used; got != 0 {
		t.Errorf("after the kill: %d bytes used", got)
	}
}

func nvmlEvents(t *testing.T, lib nvml.Interface, m *Machine, cards []nvml.Device) {
	set, rc := lib.EventSetCreate()
	ok(t, "EventSetCreate", rc)
	for _, c := range cards {
		ok(t, "RegisterEvents", c.RegisterEvents(nvml.EventTypeXidCriticalError, set))
	}
	if _, rc := set.Wait(1); rc != nvml.ERROR_TIMEOUT {
		t.Errorf("quiet machine: %v", rc)
	}
	if err := m.XID(2, 79, 3, 999); err != nil {
		t.Fatal(err)
	}
	e, rc := set.Wait(1000)
	ok(t, "Wait", rc)
	if e.EventData != 79 || e.Device != cards[2] {
		t.Errorf("event %+v", e)
	}
	if _, rc := cards[2].GetMemoryInfo(); rc != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("lost card: %v", rc)
	}
	if err := m.XID(2, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if n, rc := cards[2].GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); rc != nvml.SUCCESS || n != 3 {
		t.Errorf("ECC errors: %d, %v", n, rc)
	}
	ok(t, "Free", set.Free())
	if err := m.XID(9, 1, 0, 0); err == nil {
		t.Error("card 9 of 4 took an XID")
	}
}
