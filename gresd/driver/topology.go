// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
)

// optional are functions that are called only where the library has them.
var optional = []string{
	"nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2",
	"nvmlDeviceGetP2PStatus", "nvmlDeviceGetCpuAffinity", "nvmlDeviceGetMemoryAffinity",
}

// reader puts the questions about topology and notes those without an answer.
type reader struct {
	*NVML
	unread []string
}

// query asks one thing. What the library or the card does not have is no
// answer, and no wonder; anything else without an answer is noted.
func query[T any](r *reader, symbol, what string, question func() (T, nvml.Return)) (T, nvml.Return) {
	var none T
	if r.missing[symbol] {
		return none, nvml.ERROR_NOT_SUPPORTED
	}
	got, err := ask(r.NVML, theNode, patience, symbol, func() (T, error) {
		value, ret := question()
		return value, ret
	})
	ret := nvml.ERROR_TIMEOUT
	_ = errors.As(err, &ret) // ErrNoAnswer is none of NVML's
	switch ret {
	case nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_FUNCTION_NOT_FOUND:
	default:
		r.unread = append(r.unread, fmt.Sprintf("%s: %s: %s", what, symbol, returnText(ret)))
	}
	return got, ret
}

// returnText does not ask NVML for its words: it may hang.
func returnText(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_TIMEOUT:
		return "no answer in time"
	case nvml.ERROR_GPU_IS_LOST:
		return "the card is lost"
	}
	return fmt.Sprintf("NVML error %d", int(ret))
}

// Topology returns how the cards are joined. It takes hundreds of calls on a node of eight cards.
// Facts without an answer in time are unknown. The only error is that there are no cards to ask.
func (n *NVML) Topology() (topology.Facts, error) {
	found, err := n.devices()
	var unreadable *CardError
	if err != nil && !errors.As(err, &unreadable) {
		return topology.Facts{}, err
	}
	r := &reader{NVML: n}
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			r.unread = append(r.unread, strings.TrimSpace(line))
		}
	}
	facts := topology.Facts{
		Levels: make([][]topology.Level, len(found)),
		P2P:    make([][]topology.P2P, len(found)),
	}
	online := n.processors("online")
	for i, d := range found {
		facts.Cards = append(facts.Cards, r.card(d, online))
		facts.Levels[i] = make([]topology.Level, len(found))
		facts.P2P[i] = make([]topology.P2P, len(found))
		for j, other := range found {
			if i != j {
				facts.Levels[i][j] = r.level(d, other)
				facts.P2P[i][j] = r.p2p(d, other)
			}
		}
	}
	facts.Unread = r.unread
	return facts, nil
}

func (r *reader) card(d device, online topology.Set) topology.Card {
	c := topology.Card{
		Index: d.card.Index, UUID: d.card.UUID, PCIBusID: d.card.PCIBusID, MIG: d.card.MIG,
		Instance: d.card.IsInstance(), NUMANode: d.card.NUMANode,
	}
	name := fmt.Sprintf("card %d", d.card.Index)
	if c.NUMANode < 0 {
		c.NUMANode = r.memoryNode(d, name)
	}
	c.CPUs = r.cpus(d, name, online)
	for link := range nvml.NVLINK_MAX_LINKS {
		if c.Instance { // it has none
			break
		}
		state, ret := query(r, "nvmlDeviceGetNvLinkState", fmt.Sprintf("%s: NVLink %d", name, link),
			func() (nvml.EnableState, nvml.Return) { return d.handle.GetNvLinkState(link) })
		if ret == nvml.ERROR_INVALID_ARGUMENT { // past the last link of this card
			break
		}
		if ret == nvml.SUCCESS && state == nvml.FEATURE_ENABLED {
			c.Links = append(c.Links, r.link(d, link, fmt.Sprintf("%s: NVLink %d", name, link)))
		}
	}
	return c
}

func (r *reader) link(d device, link int, name string) topology.Link {
	var end topology.Link
	kind, ret := query(r, "nvmlDeviceGetNvLinkRemoteDeviceType", name,
		func() (nvml.IntNvLinkDeviceType, nvml.Return) { return d.handle.GetNvLinkRemoteDeviceType(link) })
	if ret == nvml.SUCCESS {
		switch kind {
		case nvml.NVLINK_DEVICE_TYPE_GPU:
			end.Remote = topology.RemoteCard
		case nvml.NVLINK_DEVICE_TYPE_SWITCH:
			end.Remote = topology.RemoteSwitch
		}
	}
	if end.Remote == topology.RemoteSwitch {
		return end // its own place on the bus says nothing about cards
	}
	pci, ret := query(r, "nvmlDeviceGetNvLinkRemotePciInfo_v2", name,
		func() (nvml.PciInfo, nvml.Return) { return d.handle.GetNvLinkRemotePciInfo(link) })
	if ret == nvml.SUCCESS {
		end.PCIBusID = busID(pci)
	}
	return end
}

func (r *reader) level(a, b device) topology.Level {
	if a.card.IsInstance() && a.card.GPU() == b.card.GPU() {
		return topology.INT
	}
	level, ret := query(r, "nvmlDeviceGetTopologyCommonAncestor", pairName(a, b),
		func() (nvml.GpuTopologyLevel, nvml.Return) { return a.handle.GetTopologyCommonAncestor(b.handle) })
	if ret != nvml.SUCCESS {
		return topology.Unknown
	}
	return topology.LevelOf(int(level))
}

func (r *reader) p2p(a, b device) topology.P2P {
	if a.card.IsInstance() || b.card.IsInstance() { // CUDA has no peer access there
		no := topology.StatusNotSupported
		return topology.P2P{Read: no, Write: no, NVLink: no, Atomics: no}
	}
	status := func(caps nvml.GpuP2PCapsIndex) topology.Status {
		s, ret := query(r, "nvmlDeviceGetP2PStatus", pairName(a, b),
			func() (nvml.GpuP2PStatus, nvml.Return) { return a.handle.GetP2PStatus(b.handle, caps) })
		if ret != nvml.SUCCESS {
			return topology.StatusUnknown
		}
		return statuses[s]
	}
	return topology.P2P{
		Read: status(nvml.P2P_CAPS_INDEX_READ), Write: status(nvml.P2P_CAPS_INDEX_WRITE),
		NVLink: status(nvml.P2P_CAPS_INDEX_NVLINK), Atomics: status(nvml.P2P_CAPS_INDEX_ATOMICS),
	}
}

var statuses = map[nvml.GpuP2PStatus]topology.Status{
	nvml.P2P_STATUS_OK:                         topology.StatusOK,
	nvml.P2P_STATUS_CHIPSET_NOT_SUPPORTED:      topology.StatusNoChipset,
	nvml.P2P_STATUS_GPU_NOT_SUPPORTED:          topology.StatusNoCard,
	nvml.P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: topology.StatusNoWay,
	nvml.P2P_STATUS_DISABLED_BY_REGKEY:         topology.StatusDisabled,
	nvml.P2P_STATUS_NOT_SUPPORTED:              topology.StatusNotSupported,
}

func pairName(a, b device) string {
	return fmt.Sprintf("cards %d and %d", a.card.Index, b.card.Index)
}

// Enough for every machine whose kernel does not say how many it has.
const (
	manyProcessors = 4096
	manyNodes      = 1024
)

// cpus are the processors near a card: what NVML says, else what the kernel does.
func (r *reader) cpus(d device, name string, online topology.Set) topology.Set {
	size := manyProcessors
	if possible := r.processors("possible"); len(possible) > 0 {
		size = possible[len(possible)-1] + 1
	}
	words, ret := query(r, "nvmlDeviceGetCpuAffinity", name,
		func() ([]uint, nvml.Return) { return d.handle.GetCpuAffinity(size) })
	near := setOf(words)
	if ret != nvml.SUCCESS || len(near) == 0 {
		near = r.list(filepath.Join("bus/pci/devices", d.card.PCIBusID, "local_cpulist"))
	}
	if len(online) > 0 {
		near = near.And(online)
	}
	return near
}

// memoryNode asks NVML where the kernel does not know a card's NUMA node. More
// than one node is no answer.
func (r *reader) memoryNode(d device, name string) int {
	words, ret := query(r, "nvmlDeviceGetMemoryAffinity", name,
		func() ([]uint, nvml.Return) {
			return d.handle.GetMemoryAffinity(manyNodes, nvml.AFFINITY_SCOPE_NODE)
		})
	if nodes := setOf(words); ret == nvml.SUCCESS && len(nodes) == 1 {
		return nodes[0]
	}
	return topology.NoNUMANode
}

// setOf reads a set of bits, the lowest first.
func setOf(words []uint) topology.Set {
	var set topology.Set
	for i, word := range words {
		for ; word != 0; word &= word - 1 {
			set = append(set, i*bits.UintSize+bits.TrailingZeros(word))
		}
	}
	return set
}

func (n *NVML) processors(which string) topology.Set {
	return n.list("devices/system/cpu/" + which)
}

// list reads a list of processors from sysfs; nil where there is none.
func (n *NVML) list(file string) topology.Set {
	text, err := os.ReadFile(filepath.Join(n.sysfs, file))
	if err != nil {
		return nil
	}
	set, err := topology.ParseSet(string(text))
	if err != nil {
		return nil
	}
	return set
}

// Cores reads the processors of the node; the map is empty where the kernel
// does not tell.
func (n *NVML) Cores() topology.CoreMap {
	var cpus []topology.CPU
	for _, id := range n.processors("online") {
		dir := fmt.Sprintf("devices/system/cpu/cpu%d/topology", id)
		pack, err := n.number(filepath.Join(dir, "physical_package_id"))
		if err != nil {
			return topology.CoreMap{}
		}
		core, err := n.number(filepath.Join(dir, "core_id"))
		if err != nil {
			return topology.CoreMap{}
		}
		cpus = append(cpus, topology.CPU{ID: id, Package: pack, Core: core})
	}
	return topology.NewCoreMap(cpus)
}

func (n *NVML) number(file string) (int, error) {
	text, err := os.ReadFile(filepath.Join(n.sysfs, file))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
