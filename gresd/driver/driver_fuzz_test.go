// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
)

var (
	busForm  = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2,8}:[0-9a-f]{2,8}\.0$`)
	typeForm = regexp.MustCompile(`^[a-z0-9._-]*$`)
)

// FuzzSysfs: numbers and lists in sysfs, and a card's name and place on the bus, whatever
// they are: what cannot be is not known, and sets are sets of processors that are there.
func FuzzSysfs(f *testing.F) {
	for _, s := range [][6]string{
		{"0-3", "0-255", "0-1,3", "1", "0", "0"},
		{"", "", "", "-1", "-1", "65535"},
		{"0", "0-65535", "0-70000", "1023", "x", ""},
		{"2,1,0", "7-0", "not a list", "1024", "9223372036854775807", "-9223372036854775808"},
		{"0-2,127\n\n", "+1", "0x1", " 2 ", "00", "1 2"},
		{"0-65535,0-65535,0-65535", ",", "0-", "9223372036854775808", "1", "1"},
	} {
		f.Add(s[0], s[1], s[2], s[3], s[4], s[5], "NVIDIA A100-SXM4-80GB", uint32(1), uint32(1), uint32(0))
		f.Add(s[2], s[0], s[1], s[4], s[3], s[5], "ﬁ/İ \x00\xff=,", ^uint32(0), ^uint32(0), uint32(31))
	}
	card := &fake{minor: 0, bus: 1}
	n := library(f, card)
	f.Fuzz(func(t *testing.T, online, possible, near, node, pack, core, name string, domain, bus, device uint32) {
		const place, cpu = "bus/pci/devices/0001:01:00.0/", "devices/system/cpu/"
		sysfs(t, n, map[string]string{
			cpu + "online": online, cpu + "possible": possible, place + "local_cpulist": near, place + "numa_node": node,
			cpu + "cpu0/topology/physical_package_id": pack, cpu + "cpu0/topology/core_id": core,
			cpu + "cpu1/topology/physical_package_id": core, cpu + "cpu1/topology/core_id": pack,
		})
		facts, err := n.Topology()
		if err != nil || len(facts.Cards) != 1 {
			t.Fatalf("%+v, %v", facts, err)
		}
		c := facts.Cards[0]
		number, err := strconv.Atoi(strings.TrimSpace(node))
		if known := err == nil && number >= 0 && number < 1024; known && c.NUMANode != number || !known && c.NUMANode != topology.NoNUMANode {
			t.Fatalf("NUMA node %q is %d", node, c.NUMANode)
		}
		there := n.processors("online")
		for _, set := range []topology.Set{c.CPUs, there} {
			again, err := topology.ParseSet(set.String())
			if err != nil || !slices.Equal(again, set) || len(set) > 1<<16 {
				t.Fatalf("set of %d processors, %v", len(set), err)
			}
		}
		if len(there) > 0 && len(c.CPUs.And(there)) != len(c.CPUs) {
			t.Fatalf("processors %s of %s", c.CPUs, there)
		}
		cores := n.Cores()
		if cores.Len() > len(there) || cores.Len() > 0 && len(cores.Cores(there)) != cores.Len() {
			t.Fatalf("%d cores of %s", cores.Len(), there)
		}
		// The place is part of a path, the type a word of gres.conf.
		if id := busID(nvml.PciInfo{Domain: domain, Bus: bus, Device: device}); !busForm.MatchString(id) || filepath.Base(id) != id {
			t.Fatalf("bus id %q", id)
		}
		if word := typeOf(name); !typeForm.MatchString(word) || len(word) > len(name) {
			t.Fatalf("type %q of %q", word, name)
		}
	})
}
