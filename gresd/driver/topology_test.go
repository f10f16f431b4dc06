// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
)

// joins is what a fake card says of its neighbours. The zero value says
// "not supported" to all but the common ancestor.
type joins struct {
	links []fakeLink
	p2p   nvml.GpuP2PStatus
	p2pOK bool
	cpus  []uint
	nodes []uint
	// hang, if set, is waited for before any answer about NVLink.
	hang chan struct{}
	// asked is the number of links that were asked for.
	asked int
}

// fakeLink is an NVLink; a bus of 0 is an end that the driver does not place.
type fakeLink struct {
	down bool
	kind nvml.IntNvLinkDeviceType
	bus  uint32
	ret  nvml.Return // of the question about the kind
}

func (j *joins) join(d *mock.Device) {
	d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		if j.hang != nil {
			<-j.hang
		} else {
			j.asked++
		}
		switch {
		case j.links == nil:
			return 0, nvml.ERROR_NOT_SUPPORTED
		case link >= len(j.links):
			return 0, nvml.ERROR_INVALID_ARGUMENT
		case j.links[link].down:
			return nvml.FEATURE_DISABLED, nvml.SUCCESS
		}
		return nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	d.GetNvLinkRemoteDeviceTypeFunc = func(link int) (nvml.IntNvLinkDeviceType, nvml.Return) {
		return j.links[link].kind, j.links[link].ret
	}
	d.GetNvLinkRemotePciInfoFunc = func(link int) (nvml.PciInfo, nvml.Return) {
		if j.links[link].bus == 0 {
			return nvml.PciInfo{}, nvml.ERROR_NOT_SUPPORTED
		}
		return nvml.PciInfo{Domain: 1, Bus: j.links[link].bus}, nvml.SUCCESS
	}
	d.GetP2PStatusFunc = func(nvml.Device, nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
		if !j.p2pOK {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return j.p2p, nvml.SUCCESS
	}
	words := func(w []uint) ([]uint, nvml.Return) {
		if w == nil {
			return nil, nvml.ERROR_NOT_SUPPORTED
		}
		return w, nvml.SUCCESS
	}
	d.GetCpuAffinityFunc = func(int) ([]uint, nvml.Return) { return words(j.cpus) }
	d.GetMemoryAffinityFunc = func(int, nvml.AffinityScope) ([]uint, nvml.Return) { return words(j.nodes) }
}

func sysfs(t testing.TB, n *NVML, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(n.sysfs, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTopologyIsInTheOrderOfTheCards(t *testing.T) {
	n := library(t, &fake{minor: 3}, &fake{minor: 0}, &fake{minor: 2}, &fake{minor: 1})
	got, err := n.Topology()
	if err != nil || len(got.Unread) != 0 {
		t.Fatal(got.Unread, err)
	}
	near, far := topology.PIX, topology.NODE
	for i, want := range [][]topology.Level{{0, near, far, far}, {near, 0, far, far}, {far, far, 0, near}, {far, far, near, 0}} {
		if got.Levels[i][i] = 0; !slices.Equal(got.Levels[i], want) || got.Cards[i].Index != i {
			t.Errorf("row %d: got %v of card %d, want %v", i, got.Levels[i], got.Cards[i].Index, want)
		}
	}
}

// go-nvml's own names, of which TOPOLOGY_CPU is not the level of that name.
func TestLevelsAreThoseOfNVML(t *testing.T) {
	for want, number := range map[topology.Level]nvml.GpuTopologyLevel{
		topology.INT: nvml.TOPOLOGY_INTERNAL, topology.PIX: nvml.TOPOLOGY_SINGLE, topology.PXB: nvml.TOPOLOGY_MULTIPLE,
		topology.PHB: nvml.TOPOLOGY_HOSTBRIDGE, topology.NODE: nvml.TOPOLOGY_NODE, topology.SYS: nvml.TOPOLOGY_SYSTEM,
	} {
		if got := topology.LevelOf(int(number)); got != want {
			t.Errorf("%d is %s, want %s", number, got, want)
		}
	}
}

func TestWhatACardDoesNotHaveIsUnknownAndNoWonder(t *testing.T) {
	n := library(t, &fake{minor: 0, bus: 1}, &fake{minor: 1, bus: 2})
	got, err := n.Topology()
	if err != nil || len(got.Unread) != 0 {
		t.Fatal(got.Unread, err)
	}
	if c := got.Cards[0]; c.CPUs != nil || c.NUMANode != topology.NoNUMANode || c.Links != nil || got.P2P[0][1] != (topology.P2P{}) {
		t.Errorf("got %+v, %+v", c, got.P2P)
	}
}

func TestLinksAndTheirEnds(t *testing.T) {
	first := &fake{
		minor: 0, bus: 0x1b, joins: joins{p2pOK: true, p2p: nvml.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED, links: []fakeLink{
			{kind: nvml.NVLINK_DEVICE_TYPE_GPU, bus: 0x5c},
			{down: true},
			{kind: nvml.NVLINK_DEVICE_TYPE_SWITCH, bus: 0xc1},
			{ret: nvml.ERROR_NOT_SUPPORTED, bus: 0x5c},
			{kind: nvml.NVLINK_DEVICE_TYPE_IBMNPU},
			{ret: nvml.ERROR_UNKNOWN},
		}},
	}
	got, err := library(t, first, &fake{minor: 1, bus: 0x5c}).Topology()
	if err != nil {
		t.Fatal(err)
	}
	want := []topology.Link{
		{Remote: topology.RemoteCard, PCIBusID: "0001:5c:00.0"},
		{Remote: topology.RemoteSwitch},
		{PCIBusID: "0001:5c:00.0"},
		{},
		{},
	}
	if !reflect.DeepEqual(got.Cards[0].Links, want) {
		t.Errorf("got %+v, want %+v", got.Cards[0].Links, want)
	}
	if len(got.Unread) != 1 || got.Unread[0] != "card 0: NVLink 5: nvmlDeviceGetNvLinkRemoteDeviceType: NVML error 999" {
		t.Errorf("unread: %q", got.Unread)
	}
	if first.asked != 7 { // the seventh is not there
		t.Errorf("%d links were asked for", first.asked)
	}
	if p := got.P2P[0][1]; p.Read != topology.StatusNoWay || p.Atomics != topology.StatusNoWay || got.P2P[1][0].Read != topology.StatusUnknown {
		t.Errorf("P2P: %+v", got.P2P)
	}
}

func TestProcessorsAndMemoryNearACard(t *testing.T) {
	n := library(t,
		&fake{minor: 0, bus: 1, joins: joins{cpus: []uint{0xf, 1 << 63}, nodes: []uint{0b100}}}, // the kernel knows the node
		&fake{minor: 1, bus: 2, joins: joins{cpus: []uint{0}, nodes: []uint{0, 0b10}}},          // NVML knows the node
		&fake{minor: 2, bus: 3, joins: joins{nodes: []uint{0b11}}},                              // two nodes
	)
	sysfs(t, n, map[string]string{
		"devices/system/cpu/online":                  "0-2,127",
		"devices/system/cpu/possible":                "0-255",
		"bus/pci/devices/0001:01:00.0/numa_node":     "1",
		"bus/pci/devices/0001:02:00.0/numa_node":     "-1",
		"bus/pci/devices/0001:02:00.0/local_cpulist": "1,2",
		"bus/pci/devices/0001:03:00.0/local_cpulist": "not a list",
	})
	got, err := n.Topology()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		cpus string
		node int
	}{{"0-2,127", 1}, {"1-2", 65}, {"", topology.NoNUMANode}} {
		if c := got.Cards[i]; c.CPUs.String() != want.cpus || c.NUMANode != want.node {
			t.Errorf("card %d: cpus %s, node %d; want %+v", i, c.CPUs, c.NUMANode, want)
		}
	}
}

func TestCores(t *testing.T) {
	n := library(t)
	if got := n.Cores(); got.Len() != 0 {
		t.Errorf("without sysfs: %d cores", got.Len())
	}
	files := map[string]string{"devices/system/cpu/online": "0-3"}
	for cpu := range 4 {
		dir := fmt.Sprintf("devices/system/cpu/cpu%d/topology/", cpu)
		files[dir+"physical_package_id"], files[dir+"core_id"] = fmt.Sprint(cpu%2), "0"
	}
	sysfs(t, n, files)
	if got := n.Cores(); got.Len() != 2 || got.Cores(topology.Set{1, 3}).String() != "1" {
		t.Errorf("got %+v", got)
	}
	if err := os.Remove(filepath.Join(n.sysfs, "devices/system/cpu/cpu3/topology/core_id")); err != nil {
		t.Fatal(err)
	}
	if got := n.Cores(); got.Len() != 0 {
		t.Errorf("with a core that is not known: %+v", got)
	}
}

func TestAFunctionThatTheLibraryLacksIsNotCalled(t *testing.T) {
	n := library(t, &fake{minor: 0, joins: joins{links: []fakeLink{{}}}}, &fake{minor: 1})
	n.missing = map[string]bool{}
	for _, name := range optional {
		n.missing[name] = true
	}
	for _, card := range []int{0, 1} {
		d, _ := n.lib.DeviceGetHandleByIndex(card)
		m := d.(*mock.Device) // a function that is nil panics when it is called
		m.GetNvLinkStateFunc, m.GetP2PStatusFunc, m.GetCpuAffinityFunc, m.GetMemoryAffinityFunc = nil, nil, nil, nil
	}
	if got, err := n.Topology(); err != nil || len(got.Unread) != 0 || got.Levels[0][1] != topology.PIX {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestADriverThatHangsIsNotWaitedForAndNotAskedForEver(t *testing.T) {
	hang := make(chan struct{})
	n := library(t, &fake{minor: 0, joins: joins{links: []fakeLink{{}}, hang: hang}}, &fake{minor: 1})
	n.stuck.Timeout = 20 * time.Millisecond
	shut := 0
	n.lib.(*mock.Interface).ShutdownFunc = func() nvml.Return { shut++; return nvml.SUCCESS }
	start := time.Now()
	got, err := n.Topology()
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("took %s", took)
	}
	if len(got.Unread) == 0 || !strings.Contains(got.Unread[0], "card 0: NVLink 0: nvmlDeviceGetNvLinkState: no answer in time") {
		t.Errorf("unread: %q", got.Unread)
	}
	if asked := n.stuck.Blocked(theNode); asked != mostUnanswered {
		t.Errorf("%d questions wait, want %d", asked, mostUnanswered)
	}
	if err := n.Close(); err != nil || shut != 0 { // it must not unload the library below them
		t.Errorf("closed: %v, shut down %d times", err, shut)
	}
	if _, err := n.Cards(); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("cards: %v", err)
	}

	close(hang) // the driver comes back, and so does the topology
	for range 500 {
		if n.stuck.Blocked(theNode) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if got, err = n.Topology(); err != nil || len(got.Unread) != 0 || len(got.Cards[0].Links) != 1 || got.Levels[0][1] != topology.PIX {
		t.Errorf("after it came back: %+v, %v", got, err)
	}
	if err := n.Close(); err != nil || shut != 1 {
		t.Errorf("closed: %v, shut down %d times", err, shut)
	}
}
